"""Costs of the rollout service beside an evaluation: CPU, latency, cancellation, memory.

    python -m benchmarks.rollout.service [--prompts 128] [--samples 8] [--open 1024] [--json FILE]

The demo's engine, agent loop, judge and reward run as for an evaluation; the service is in the same process, clients in others.

- *CPU per trajectory* of this process, all threads: the evaluation's own (rollout and trajectory files) and the service's, in
  turn, medians of three rounds. Engines and agent-loop workers are other processes, and do the same work in both.
- *first line*: from sending a request of one trajectory to its line, with nothing else to do; and without the episode itself.
- *cancelled*: from closing the connection of a request of `prompts` x `samples` to the end of the engine's last request.
- *memory*: growth of this process with `--open` requests, each with one unfinished trajectory.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil

from agentrl.config.load import load_run_config
from agentrl.config.schema.run import ServiceSection
from agentrl.config.validation.relations import Purpose
from agentrl.run.plan import EvaluationRun, evaluating
from agentrl.serve.app import ServiceApp, listening
from agentrl.serve.plan import bind, prepare_service
from agentrl.serve.requests import PromptReader, RolloutBody, RolloutRequest
from agentrl.serve.rollouts import RolloutService
from agentrl.serve.weights import PolicyWeights
from benchmarks.judge import report

_ROWS = Path("examples/arithmetic/train.jsonl")
_ROUNDS = 3
_NUM_FIRST_LINES = 30
_QUIET_S = 1.0
"""Time without requests after which an engine gets no more."""


async def evaluation_ms(run: EvaluationRun, request: RolloutRequest, *, step: int) -> float:
    """Return the CPU time per trajectory of rolling out as an evaluation does, in milliseconds."""
    started = time.process_time()
    groups = await run.rollouts.collect(
        request.prompts, step=step, samples_per_prompt=request.samples_per_prompt, on_finished=lambda summary: None
    )
    await run.rollouts.record(groups, request.prompts, step=step, validation=True)
    await run.rollouts.forget_reports()
    return 1e3 * (time.process_time() - started) / request.num_trajectories


async def service_ms(url: str, num_prompts: int, samples: int) -> float:
    """Return the CPU time of this process per trajectory of one request, in milliseconds."""
    started = time.process_time()
    await client(url, "whole", num_prompts, samples)
    return 1e3 * (time.process_time() - started) / (num_prompts * samples)


async def cancellation_s(url: str, run: EvaluationRun, num_prompts: int, samples: int) -> float:
    """Return the time from the end of a client that has read one line to the end of the engine's last request."""
    busy_at = left_at = float(await client(url, "leave", num_prompts, samples))
    while time.time() < busy_at + _QUIET_S:  # an episode between two turns may still send one more
        if any(stats is None or stats.num_running + stats.num_waiting for stats in await run.engines.loads()):
            busy_at = time.time()
    return busy_at - left_at


async def memory_growth_mb(url: str, rollouts: RolloutService, num_open: int) -> float:
    """Return the growth of this process while `num_open` requests have a trajectory each."""
    before, most = psutil.Process().memory_info().rss, 0
    clients = asyncio.create_task(client(url, "many", num_open, 1))
    while not clients.done():
        most = max(most, psutil.Process().memory_info().rss) if rollouts.num_requests > num_open // 2 else most
        await asyncio.sleep(0.01)
    await clients
    return (most - before) / 1e6


async def client(url: str, what: str, *numbers: int) -> str:
    """Run a client in a process of its own, and return what it prints."""
    words = ("-m", "benchmarks.rollout.service", "client", url, what, *map(str, numbers))
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def as_client(url: str, what: str, num_prompts: int, samples: int) -> None:
    """Be a client: read a whole reply, leave after a line, measure first lines, or send many requests."""
    prompts = body(num_prompts, samples).prompts
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as session:

        async def ask(rows: list[dict[str, Any]], *, leave: bool = False) -> str:
            asked = {"prompts": rows, "samples_per_prompt": samples}
            async with session.stream("POST", "/v1/rollouts", json=asked) as reply:
                reply.raise_for_status()
                lines = reply.aiter_lines()
                first = await anext(lines)
                while not leave and await anext(lines, None):
                    pass
            return first

        match what:
            case "whole":
                await ask(prompts)
            case "leave":
                await ask(prompts, leave=True)
                print(time.time())
            case "first":
                for row in prompts:
                    started = time.perf_counter()
                    line = await ask([row], leave=True)
                    passed_s = time.perf_counter() - started
                    print(passed_s, passed_s - orjson.loads(line)["wall_time_s"])
            case "many":
                await asyncio.gather(*(ask([row]) for row in prompts))


def body(num_prompts: int, samples: int) -> RolloutBody:
    """Return a request; prompts repeat beyond the number of rows."""
    lines = _ROWS.read_text().splitlines()
    rows = [orjson.loads(lines[index % len(lines)]) | {"id": index} for index in range(num_prompts)]
    return RolloutBody(prompts=rows, samples_per_prompt=samples)


async def measure(num_prompts: int, samples: int, num_open: int, run_dir: Path) -> dict[str, float]:
    """Return all figures."""
    words = [f"run.dir={run_dir}", "service.port=0"]
    plan = prepare_service(load_run_config("configs/demo.yaml", words, purpose=Purpose.SERVICE))
    plan.socket.close()
    config = plan.run.config
    reader = PromptReader(config.data, None)
    async with evaluating(plan.run, num_steps=0) as run:
        rollouts = RolloutService(run.rollouts, max_open=10**6, max_prompt_tokens=config.data.max_prompt_tokens)
        app = ServiceApp(rollouts, PolicyWeights(config, run.engines), run.engines, reader).build(token=None)
        with bind(ServiceSection(port=0)) as socket:
            async with listening(app, socket):
                url = f"http://127.0.0.1:{socket.getsockname()[1]}"
                request = reader.read(body(num_prompts, samples))
                await run.rollouts.check_prompts(request.prompts)
                await service_ms(url, num_prompts, 1)  # warm
                own, served = [], []
                for step in range(10**6, 10**6 + _ROUNDS):
                    own.append(await evaluation_ms(run, request, step=step))
                    served.append(await service_ms(url, num_prompts, samples))
                firsts = [float(word) for word in (await client(url, "first", _NUM_FIRST_LINES, 1)).split()]
                cancelled = [await cancellation_s(url, run, num_prompts, samples) for _ in range(_ROUNDS)]
                growth = await memory_growth_mb(url, rollouts, num_open)
    return {
        "evaluation, CPU ms per trajectory": statistics.median(own),
        "service, CPU ms per trajectory": statistics.median(served),
        "first line, ms (median)": 1e3 * statistics.median(firsts[::2]),
        "without the episode": 1e3 * statistics.median(firsts[1::2]),
        "cancelled, s (largest)": max(cancelled),
        "memory, MB": growth,
    }


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["client"]:
        url, what, num_prompts, samples = sys.argv[2:]
        asyncio.run(as_client(url, what, int(num_prompts), int(samples)))
        return
    parser = report.arguments(__doc__)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--open", type=int, default=1024)
    words = parser.parse_args()
    report.print_machine()
    with tempfile.TemporaryDirectory() as folder:
        row = asyncio.run(measure(words.prompts, words.samples, words.open, Path(folder, "run")))
    report.print_table("the rollout service", [row])
    report.write_json(words.json, {"service": row})


if __name__ == "__main__":
    main()
