"""Failures of a step's trajectories: a count and an example for each class."""

import logging
from collections.abc import Iterable, Sequence

from agentrl.observability.logs import repeating
from agentrl.observability.reports.tools import warn_of_failing_tools
from agentrl.types import FailureClass, TrajectorySummary

logger = logging.getLogger(__name__)

_MAX_NAMED_PROMPTS = 5


def count_failures(summaries: Iterable[TrajectorySummary]) -> dict[str, float]:
    """Return the number of failed tries of every class, as `failures_judge`."""
    failures = [failure.failure_class for summary in summaries for failure in summary.failures]
    return {f"failures_{name}": float(failures.count(name)) for name in FailureClass}


def describe_failures(summaries: Iterable[TrajectorySummary]) -> list[str]:
    """Return a line for each class that occurs, in the order of the classes.

    Example: "`judge`: 3 tries failed, 1 trajectory lost, such as 4-p3-0: judge http://10.0.0.1:8088: no verdict in 30 s".
    """
    return [line for line, _ in _lines(summaries).values()]


def warn_of_failures(during: str, summaries: Iterable[TrajectorySummary]) -> None:
    """Log the lines of `describe_failures`, and the tools whose calls all failed, as warnings; `during` names the step.

    On the console they name no trajectory, and a class that occurs in many steps is shown the 1st, 10th, 100th ... time.
    """
    summaries = list(summaries)
    for name, (line, short_line) in _lines(summaries).items():
        logger.warning(
            "%s: %s", during, line, extra=repeating(f"failures of `{name}`", on_console=f"{during}: {short_line}")
        )
    warn_of_failing_tools(during, summaries)


def _lines(summaries: Iterable[TrajectorySummary]) -> dict[FailureClass, tuple[str, str]]:
    """Return a line for each class that occurs, with a trajectory's name and without."""
    failed = [summary for summary in summaries if summary.failures]
    classes = {failure.failure_class for summary in failed for failure in summary.failures}
    return {name: _describe(name, failed) for name in FailureClass if name in classes}


def _describe(name: FailureClass, summaries: Sequence[TrajectorySummary]) -> tuple[str, str]:
    tries = [
        (summary, failure) for summary in summaries for failure in summary.failures if failure.failure_class is name
    ]
    lost = [summary for summary in summaries if summary.reward is None and summary.failures[-1].failure_class is name]
    prompts = f" (of {_named(dict.fromkeys(summary.prompt_id for summary, _ in tries))})" if name.is_data else ""
    first, failure = tries[0]
    counts = (
        f"`{name}`: {len(tries)} {'try' if len(tries) == 1 else 'tries'} failed{prompts}, {len(lost)} "
        f"{'trajectory' if len(lost) == 1 else 'trajectories'} lost"
    )
    return f"{counts}, such as {first.trajectory_id}: {failure.message}", f"{counts}: {failure.message}"


def _named(prompt_ids: Iterable[str]) -> str:
    names = [f"`{name}`" for name in prompt_ids]
    more = len(names) - _MAX_NAMED_PROMPTS
    return ", ".join(names[:_MAX_NAMED_PROMPTS]) + (f" and {more} more" if more > 0 else "")
