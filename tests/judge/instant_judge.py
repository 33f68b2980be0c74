"""The real server, with everything of it but programs: each "prints" its own source at once.

    python instant_judge.py [SETTING ...]

For tests of what is between a caller and the programs: client, HTTP, queue, verdicts.
"""

import sys
from collections.abc import Mapping, Sequence

from code_judge_server import __main__ as command_line
from code_judge_server.sandbox.executor import ExecutorLoad, Job, Outcome
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import Canary, IsolationTier
from code_judge_server.settings import Settings


class EchoExecutor:
    """An `Executor` that runs nothing. What reads its input prints that instead, as the server's own canary expects."""

    tier = IsolationTier.D
    memory_enforcement = "sampled"
    canaries: Sequence[Canary] = ()
    preloads: Mapping[str, Sequence[str]] = {}

    def load(self) -> ExecutorLoad:
        return ExecutorLoad()

    async def start(self) -> None:
        pass

    async def execute(self, job: Job) -> Outcome:
        source = next(iter(job.files.values()), b"")
        return Outcome(
            ending=Ending.EXITED,
            exit_code=0,
            signal=None,
            stdout=job.stdin if b"input()" in source else source,
            stderr=b"",
            stdout_cut=False,
            stderr_cut=False,
            cpu_time_s=0.0,
            wall_time_s=0.0,
            peak_memory_bytes=0,
        )

    async def aclose(self) -> None:
        pass


def main() -> int:
    def instant(_: Settings) -> EchoExecutor:
        return EchoExecutor()

    command_line.choose_executor = instant
    return command_line.main()


if __name__ == "__main__":
    sys.exit(main())
