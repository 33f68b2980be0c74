"""Cost of the agent loop itself: CPU time per turn, and lag of its event loop, with 1,024 trajectories at once.

    python -m benchmarks.rollout.loop_overhead [--trajectories 1024] [--rounds 3] [--json FILE]

Every trajectory has three turns of about 400 tokens: two call the Python tool with a program of 300 characters, the third
answers. An engine that only waits (3 to 9 s a turn, seeded) gives them; the tokenizer is the demo's.

- *alone*: the worker in this process with a tool that answers at once. CPU time of all threads of the process, less that of the
  engine and the tool alone (as many calls of them, without a loop).
- *with Ray and HTTP*: the worker and the engine in Ray actors, the tool asks a real judge over HTTP. CPU time of the worker's
  process, all threads, Ray's own included.

The lag is how late a timer of the event loop comes, the start of all trajectories at once included; beside it how long the
loop's thread computed from one timer to the next (10 ms), and the lag of a process that does nothing (`lag.py` says why).
Medians over rounds.
"""

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from agentrl.agent_loop.scheduling.manager import AgentLoopManager
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.ray.runtime import guarded_run, ray_runtime
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.workers.engine_calls import EngineHandle, PackedEngine
from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.judge.local import LocalJudge
from agentrl.models.tokenizer import load_tokenizer
from agentrl.runners.simulate import LocalWorker
from agentrl.simulation.reward import SIMULATED_REWARD
from agentrl.simulation.tool import SIMULATED_TOOL
from agentrl.tools.base import ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.python_tool import PYTHON_TOOL
from agentrl.types import Completion, Deadline, FinishReason, Prompt, SamplingParams
from benchmarks.judge import report
from benchmarks.rollout.lag import idle_lag, sample_lag

_MODEL = "examples/arithmetic/policy"
_NUM_TURNS = 3
_TURN_S = (3.0, 9.0)
_THOUGHT = "I add the two numbers and look whether the sum is right. " * 6
_PROGRAM = "".join(f"x{n} = {n} * {n} + 1\\n" for n in range(16)) + "print(x7)"
_PYTHON_CALL = f'{{"name": "python_code_with_standard_io", "arguments": {{"code": "{_PROGRAM}"}}}}'
_SIMULATED_CALL = f'{{"name": "simulated_tool", "arguments": {{"seed": 1, "note": "{_PROGRAM}"}}}}'


class PacedEngine(PackedEngine):
    """Gives the turns of the script, each after a while."""

    def __init__(self, config: tuple[str, float, float], role: str) -> None:
        """Take the JSON of a call, and the least and the most seconds that a turn takes."""
        PackedEngine.__init__(self)
        call, self._least_s, self._most_s = config
        tokenizer = load_tokenizer(_MODEL)
        texts = (f"{_THOUGHT}<tool_call>\n{call}\n</tool_call><|im_end|>", f"{_THOUGHT}<answer>4</answer><|im_end|>")
        self._call, self._answer = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        self._random = random.Random(0)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """See `Engine.generate`."""
        await asyncio.sleep(self._random.uniform(self._least_s, self._most_s))
        ids = self._answer if request_id.endswith(f"-{_NUM_TURNS - 1}") else self._call
        return Completion(
            token_ids=list(ids),
            logprobs=[-0.5] * len(ids),
            finish_reason=FinishReason.STOP,
            version_spans=((0, 0),),
        )


def worker_config(*tools: ToolConfig) -> WorkerConfig:
    """Return the plain data of a worker with these tools."""
    return WorkerConfig(
        model=ModelSection(path=_MODEL),
        rollout=RolloutSection(
            max_concurrent_trajectories=8192,
            max_response_tokens=8192,
            max_tool_response_tokens=512,
            tool_timeout_s=600,
            turn_timeout_s=600,
            trajectory_timeout_s=1800,
        ),
        reward=RewardSection(class_name=SIMULATED_REWARD, config={}),
        tools=tools,
        run_seed=0,
        run_dir="",
    )


def prompts(count: int) -> list[Prompt]:
    """Return so many prompts."""
    text = "How much is 6 * 7? Write a program that says so, and give the answer in <answer> tags. "
    return [
        Prompt(prompt_id=f"p{n}", messages=[{"role": "user", "content": f"{n}: {text * 2}"}], answer="42")
        for n in range(count)
    ]


async def play(worker: Any, engine: Any, config: WorkerConfig, count: int) -> None:
    """Play so many trajectories at once.

    Raises:
        RuntimeError: one of them was not played as written.
    """
    fleet = EngineFleet(lambda _: engine, num_engines=1)
    manager = AgentLoopManager(
        config.rollout,
        fleet,
        [worker],
        max_prompt_tokens=1024,
        kv_tokens=[0],
        reward_timeout_s=60,
        max_wait_s=60,
    )
    groups = await manager.collect(prompts(count), step=1, samples_per_prompt=1, on_finished=lambda _: None)
    for summary in (trajectory.summary for group in groups for trajectory in group.trajectories):
        if (summary.num_turns, summary.num_failed_tool_calls, summary.failures) != (_NUM_TURNS, 0, ()):
            raise RuntimeError(f"not played as written: {summary}")


async def calls_alone(engine: PacedEngine, tool: Any, count: int) -> None:
    """Make the calls of engine and tool that `play` makes, without a loop around them."""

    async def trajectory() -> None:
        for turn in range(_NUM_TURNS):
            params, deadline = SamplingParams(max_tokens=1), Deadline.after(600)
            await engine.generate([], params, request_id=f"t-{turn}", deadline=deadline)
            if turn < _NUM_TURNS - 1:
                await tool.call(None, {"seed": 1}, deadline=deadline)

    await asyncio.gather(*(trajectory() for _ in range(count)))


async def measure_alone(count: int, *, turn_s: tuple[float, float] = _TURN_S) -> report.Row:
    """Return the figures of one round of the loop alone."""
    tool = ToolConfig(class_name=SIMULATED_TOOL, config={"min_time_s": 0.0, "max_time_s": 0.0})
    config = worker_config(tool)
    worker, engine = AgentLoopWorker(config, "agent_loop"), PacedEngine((_SIMULATED_CALL, *turn_s), "engine")
    await worker.start()
    (live,) = build_tools([tool]).values()
    started = time.process_time()
    await calls_alone(engine, live, count)
    alone_s = time.process_time() - started
    lags: list[float] = []
    computed: list[float] = []
    idle_lags: list[float] = []
    with idle_lag(idle_lags):
        sampling = asyncio.create_task(sample_lag(lags, computed))
        started = time.process_time()
        await play(LocalWorker(worker), engine, config, count)
        cpu_time_s = time.process_time() - started
        sampling.cancel()
    await worker.aclose()
    return _row("alone", count, cpu_time_s - alone_s, (lags, computed, idle_lags))


class MeasuredWorker(AgentLoopWorker):
    """A worker that tells of its process."""

    async def begin(self) -> None:
        """Begin to measure."""
        self._lags: list[float] = []
        self._computed: list[float] = []
        self._sampling = asyncio.create_task(sample_lag(self._lags, self._computed))
        self._started_cpu_s = time.process_time()

    async def end(self) -> tuple[float, list[float], list[float]]:
        """Return the CPU time since `begin`, and what `sample_lag` noted."""
        self._sampling.cancel()
        return time.process_time() - self._started_cpu_s, self._lags, self._computed


async def measure_with_ray(count: int, judge: LocalJudge) -> report.Row:
    """Return the figures of one round with the worker and the engine in Ray actors and a tool that asks `judge`."""
    address = {"host_addr": judge.host, "host_port": judge.port}
    config = worker_config(ToolConfig(class_name=PYTHON_TOOL, config=address))
    pool = ResourcePool(num_processes=1)
    calls = count + 64
    (engine,) = spawn(PacedEngine, pool, (_PYTHON_CALL, *_TURN_S), "engine", max_concurrency=calls)
    (worker,) = spawn(MeasuredWorker, pool, config, "agent_loop", max_concurrency=calls)
    await worker.start()
    idle_lags: list[float] = []
    with idle_lag(idle_lags):
        await worker.begin()
        await play(worker, EngineHandle.of(engine), config, count)
        cpu_time_s, lags, computed = await worker.end()
    await worker.aclose()
    return _row("with Ray and HTTP", count, cpu_time_s, (lags, computed, idle_lags))


def _row(name: str, count: int, cpu_time_s: float, samples: Sequence[Sequence[float]]) -> report.Row:
    lag, computed, idle = (report.percentiles(values, scale=1000) for values in samples)
    return {
        "worker": name,
        "CPU ms per turn": 1000 * cpu_time_s / (count * _NUM_TURNS),
        "lag p99 ms": lag["p99"],
        "lag max ms": lag["max"],
        "computed p99 ms": computed["p99"],
        "idle lag p99 ms": idle["p99"],
        "load": os.getloadavg()[0],
    }


def measure(count: int, rounds: int) -> list[report.Row]:
    """Return the rows of all rounds."""
    rows = [uvloop.run(measure_alone(count)) for _ in range(rounds)]
    with guarded_run() as temp_dir, LocalJudge(JudgeSection(min_isolation="D")) as judge:
        nothing = temp_dir / "user"
        nothing.mkdir()
        with ray_runtime(num_cpus=4, temp_dir=temp_dir, user_folder=nothing, keep_logs_in=temp_dir / "logs"):
            rows += [uvloop.run(measure_with_ray(count, judge)) for _ in range(rounds)]
    return rows


def medians(rows: Sequence[report.Row]) -> list[report.Row]:
    """Return one row per kind of worker."""
    kinds = dict.fromkeys(row["worker"] for row in rows)
    return [
        {"worker": kind}
        | {
            column: statistics.median(row[column] for row in rows if row["worker"] == kind)
            for column in list(rows[0])[1:]
        }
        for kind in kinds
    ]


def main() -> int:
    """Measure and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--trajectories", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report.print_machine()
    rows = measure(options.trajectories, options.rounds)
    report.print_table("every round", rows)
    report.print_table("medians (the aims: 1 ms alone, 2.5 ms with Ray and HTTP, lag p99 20 ms)", medians(rows))
    path: Path | None = options.json
    report.write_json(path, {"rounds": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
