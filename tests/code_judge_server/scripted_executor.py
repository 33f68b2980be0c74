"""An executor that runs nothing, for tests of the queue alone: a job ends when the test says so."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from code_judge_server.judging.judge import create_judge
from code_judge_server.languages import offered_languages
from code_judge_server.metrics import Metrics
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.sandbox.executor import ExecutorError, ExecutorLoad, Job, Outcome
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import Canary, IsolationTier, Submission
from code_judge_server.settings import Settings


class ScriptedExecutor:
    """Runs jobs by their code: `print ...` ends at once, `hold ...` at `release`, `break ...` is an ExecutorError."""

    tier: IsolationTier = IsolationTier.D
    memory_enforcement: Literal["cgroup", "sampled"] = "sampled"
    canaries: Sequence[Canary] = ()
    preloads: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self) -> None:
        self.started: list[str] = []
        self.killed: list[str] = []
        self.num_asleep = 0
        self._held: dict[str, asyncio.Event] = {}

    def load(self) -> ExecutorLoad:
        return ExecutorLoad(num_asleep=self.num_asleep)

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""

    async def execute_pair(self, jobs: tuple[Job, Job]) -> tuple[Outcome, Outcome]:
        """Run each as if it were alone."""
        return await self.execute(jobs[0]), await self.execute(jobs[1])

    async def execute(self, job: Job) -> Outcome:
        code = job.files["main.py"].decode()
        self.started.append(code)
        try:
            if code.startswith("hold"):
                await self._held.setdefault(code, asyncio.Event()).wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.killed.append(code)
            raise
        if code.startswith("break"):
            raise ExecutorError("broken")
        if code.startswith("bug"):
            raise ZeroDivisionError(code)
        return Outcome(
            ending=Ending.EXITED,
            exit_code=0,
            signal=None,
            stdout=code.encode(),
            stderr=b"",
            stdout_cut=False,
            stderr_cut=False,
            cpu_time_s=0.001,
            wall_time_s=0.001,
            peak_memory_bytes=1,
        )

    def release(self, code: str) -> None:
        """End a held job."""
        self._held.setdefault(code, asyncio.Event()).set()


def queue_on(executor: ScriptedExecutor, **settings: object) -> SubmissionQueue:
    """Return a queue with one slot and no spare one, unless the settings say otherwise."""
    chosen = Settings.model_validate({"num_slots": 1, "spare_slots": 0, **settings})
    judge = create_judge(chosen, executor, offered_languages({}))
    return SubmissionQueue(judge, executor, chosen, Metrics())


def submissions(*codes: str) -> list[Submission]:
    """Return one submission for each code, whose id is the beginning of the code."""
    return [Submission(id=code[:64], code=code) for code in codes]


async def settle() -> None:
    """Let all pending callbacks run."""
    for _ in range(50):
        await asyncio.sleep(0)
