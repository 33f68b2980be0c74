"""A judge without a server: it has its own executor, and the test gets its verdicts directly."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from code_judge_server.judging.judge import create_judge
from code_judge_server.languages import offered_languages
from code_judge_server.sandbox.executor import Executor, Job, Outcome
from code_judge_server.schemas import IsolationTier, Submission, Verdict
from code_judge_server.settings import Settings
from code_judge_server.tier_choice import IsolationRefusedError, choose_executor

WITHOUT_MODULES: dict[str, list[str]] = {"sympy": [], "sci": []}
"""Settings of warm interpreters that import nothing, which start sooner; `preloads={}` are those of a server."""


class JudgeInProcess:
    """A started judge; `jobs` are those that it gave to its executor. It is also an `Executor` that passes everything on."""

    def __init__(self, settings: Settings, executor: Executor) -> None:
        self.jobs: list[Job] = []
        self.executor = executor
        self.tier = executor.tier
        self.memory_enforcement: Literal["cgroup", "sampled"] = executor.memory_enforcement
        self.canaries = executor.canaries
        self.preloads = executor.preloads
        self.load = executor.load
        self.start = executor.start
        self.aclose = executor.aclose
        self.settings = settings
        self.forget()

    def forget(self) -> None:
        """Start anew, with no job and no compiled program."""
        self.jobs.clear()
        self._judge = create_judge(self.settings, self, offered_languages(self.settings.languages))

    async def execute(self, job: Job) -> Outcome:
        """Run a job, and keep it."""
        self.jobs.append(job)
        return await self.executor.execute(job)

    async def execute_pair(self, jobs: tuple[Job, Job]) -> tuple[Outcome, Outcome]:
        """Run two jobs that talk to each other, and keep them."""
        self.jobs += jobs
        return await self.executor.execute_pair(jobs)

    async def verdict(self, **submission: Any) -> Verdict:
        """Judge one program."""
        submission = {"id": "it", **submission}
        return await self._judge.judge(Submission.model_validate(submission), queue_time_s=0.0)


@asynccontextmanager
async def judge_in_process(folder: Path, *, isolation: str = "D", **settings: Any) -> AsyncIterator[JudgeInProcess]:
    """Start a judge with two slots, without preloaded modules; skip the test if that isolation is not available."""
    tier = IsolationTier(isolation)
    limits = {
        "max_cpu_time_s": 2,
        "default_cpu_time_s": 1,
        "max_wall_time_s": 100,
        "max_memory_mb": 256,
        "num_slots": 1,
        "spare_slots": 1,
        "preloads": WITHOUT_MODULES,
    }
    chosen = Settings(**{**limits, "work_dir": folder, "require_isolation": tier, "use_isolation": tier, **settings})
    try:
        executor = choose_executor(chosen)
    except IsolationRefusedError as error:
        pytest.skip(str(error))
    await executor.start()
    try:
        yield JudgeInProcess(chosen, executor)
    finally:
        await executor.aclose()
