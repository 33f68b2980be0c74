"""Whether jobs can see the programs of a language: what is on the machine need not be in the jail."""

from collections.abc import Mapping

from code_judge_server.languages import LanguageRules
from code_judge_server.sandbox import Executor, ExecutorError, Job, JobLimits

_LIST_UNSEEN = 'for program do [ -x "$program" ] || echo "$program"; done'


async def unseen_programs(
    executor: Executor, languages: Mapping[str, LanguageRules], *, limits: JobLimits
) -> dict[str, str]:
    """Return the languages that have a program which a job cannot see or run, and that program.

    Raises:
        ExecutorError: the executor failed, or so did the job that looks for them.
    """
    programs = {name: rules.programs for name, rules in languages.items()}
    wanted = sorted({program for several in programs.values() for program in several})
    outcome = await executor.execute(Job(argv=("/bin/sh", "-c", _LIST_UNSEEN, "sh", *wanted), limits=limits))
    if outcome.exit_code != 0:
        raise ExecutorError(f"languages: looking for their programs failed: {outcome.stderr.decode(errors='replace')}")
    unseen = set(outcome.stdout.decode(errors="replace").splitlines())
    return {name: program for name, several in programs.items() for program in several if program in unseen}
