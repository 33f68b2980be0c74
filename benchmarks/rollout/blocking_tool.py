"""Cost of a tool that blocks for 50 ms for the trajectories that do not call it.

    python -m benchmarks.rollout.blocking_tool [--trajectories 256] [--rounds 3] [--json FILE]

One agent-loop worker, a real tokenizer, an engine that waits 1 to 2 s a turn. Half of the trajectories call a tool that waits
for 50 ms as it should. The other half call, in turn, the same tool (the ideal), a plain function that blocks for 50 ms, and an
`async def` that does. Printed is the ideal mean time of a trajectory over the one measured, for those that do not call the tool
that blocks and for those that do; medians over interleaved rounds.
"""

import asyncio
import statistics
import sys
import time

import uvloop

from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker
from agentrl.tools.base import ToolConfig
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.types import Prompt
from benchmarks.judge import report
from benchmarks.rollout.loop_overhead import PacedEngine, prompts, worker_config

_BLOCKS_S = 0.05
_TURN_S = (1.0, 2.0)


async def wait() -> str:
    """Wait, and let others work."""
    await asyncio.sleep(_BLOCKS_S)
    return "waited"


def block() -> str:
    """Block the thread."""
    time.sleep(_BLOCKS_S)
    return "blocked"


async def block_in_async() -> str:
    """Block the event loop."""
    time.sleep(_BLOCKS_S)  # noqa: ASYNC251 - what is measured
    return "blocked"


def tool(name: str) -> ToolConfig:
    """Return the tool of a function of this file."""
    return ToolConfig(class_name=FUNCTION_TOOL, config={"function": f"benchmarks.rollout.blocking_tool.{name}"})


async def play(name: str, count: int) -> tuple[float, float]:
    """Play so many trajectories, half of which call the tool `name`.

    Returns:
        Mean seconds of those that call `wait`, and of those that call `name`.
    """
    tools = dict.fromkeys(("wait", name))
    worker = AgentLoopWorker(worker_config(*map(tool, tools)), "agent_loop")
    engines = [
        PacedEngine((f'{{"name": "{called}", "arguments": {{}}}}', *_TURN_S), "engine") for called in ("wait", name)
    ]
    await worker.start()

    async def run(index: int, prompt: Prompt) -> float:
        request = TrajectoryRequest(step=1, prompt=prompt, sample_index=0)
        summary, _ = await worker.run(request, engines[index % 2])  # pyright: ignore[reportArgumentType]  # it only samples
        if summary.failures or summary.num_failed_tool_calls:
            raise RuntimeError(f"not played as written: {summary}")
        return summary.wall_time_s

    times = await asyncio.gather(*(run(index, prompt) for index, prompt in enumerate(prompts(count))))
    await worker.aclose()
    return statistics.mean(times[::2]), statistics.mean(times[1::2])


def round_of(count: int) -> report.Row:
    """Return the ratios of one round."""
    ideal_s, _ = uvloop.run(play("wait", count))
    row: report.Row = {"ideal s": ideal_s}
    for name in ("block", "block_in_async"):
        others_s, callers_s = uvloop.run(play(name, count))
        row |= {f"{name}: others": ideal_s / others_s, f"{name}: callers": ideal_s / callers_s}
    return row | {"load": report.machine()["load"][0]}


def main() -> int:
    """Measure and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--trajectories", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report.print_machine()
    rounds = [round_of(options.trajectories) for _ in range(options.rounds)]
    report.print_table("every round: ideal over measured", rounds)
    medians = {column: statistics.median(row[column] for row in rounds) for column in rounds[0]}
    report.print_table("medians (the aim: 0.95 for the others)", [medians])
    report.write_json(options.json, {"rounds": rounds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
