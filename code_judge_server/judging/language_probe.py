"""Checks that languages work inside the jail: a program on the machine may be invisible there, or not run."""

import asyncio
from collections.abc import Mapping, Sequence

from code_judge_server.judging.run_results import end_of
from code_judge_server.languages import LanguageRules
from code_judge_server.sandbox.executor import Executor, ExecutorError, Job, JobLimits
from code_judge_server.sandbox.outcome import Ending

_LIST_UNSEEN = 'for program do [ -x "$program" ] || echo "$program"; done'
_SHOWN_BYTES = 300
_UNDECIDED = (Ending.WALL_TIME, Ending.CANCELLED)
"""Ends of a probe that are caused by a busy machine, and say nothing about the language."""


async def unusable_languages(
    executor: Executor, languages: Mapping[str, LanguageRules], *, limits: JobLimits
) -> dict[str, str]:
    """Return the languages whose programs a job cannot see, or whose probe fails in the jail, each with the reason.

    Raises:
        ExecutorError: the executor failed, or so did the job that looks for the programs.
    """
    unseen = await _unseen_programs(executor, languages, limits=limits)
    reasons = {
        name: f"programs cannot run {program}. Name its folder in read_only_paths"
        for name, rules in languages.items()
        for program in rules.programs
        if program in unseen
    }
    probed = [name for name, rules in languages.items() if name not in reasons and rules.probe is not None]
    failures = await asyncio.gather(*(_probe_failure(executor, languages[name], limits=limits) for name in probed))
    return reasons | {name: failure for name, failure in zip(probed, failures, strict=True) if failure is not None}


async def first_usable(
    executor: Executor, candidates: Sequence[LanguageRules], *, limits: JobLimits
) -> LanguageRules | None:
    """Return the first of several rows of a language that `unusable_languages` would not return."""
    for rules in candidates:
        if not await unusable_languages(executor, {"candidate": rules}, limits=limits):
            return rules
    return None


async def _unseen_programs(
    executor: Executor, languages: Mapping[str, LanguageRules], *, limits: JobLimits
) -> set[str]:
    wanted = sorted({program for rules in languages.values() for program in rules.programs})
    outcome = await executor.execute(Job(argv=("/bin/sh", "-c", _LIST_UNSEEN, "sh", *wanted), limits=limits))
    if outcome.exit_code != 0:
        raise ExecutorError(f"languages: looking for their programs failed: {outcome.stderr.decode(errors='replace')}")
    return set(outcome.stdout.decode(errors="replace").splitlines())


async def _probe_failure(executor: Executor, rules: LanguageRules, *, limits: JobLimits) -> str | None:
    if rules.probe is None:
        return None
    outcome = await executor.execute(Job(argv=rules.probe, limits=limits))
    if outcome.exit_code == 0 or outcome.ending in _UNDECIDED:
        return None
    output = (outcome.stderr or outcome.stdout)[:_SHOWN_BYTES].decode(errors="replace").strip()
    return f"in the jail `{' '.join(rules.probe)}` {end_of(outcome)}: {output}"
