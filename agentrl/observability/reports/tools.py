"""Tools whose calls all failed in a step, with the most common reason; the policy or the tool may be at fault."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrl.observability.logs import repeating
from agentrl.types import ToolStatus, ToolTally, TrajectorySummary, Turn

logger = logging.getLogger(__name__)

_MIN_CALLS = 4
"""Fewer failures may be chance."""
_MAX_CAUSE_CHARACTERS = 200
_WITHOUT_TOOL = (ToolStatus.UNPARSABLE, ToolStatus.UNKNOWN_TOOL, ToolStatus.TOO_MANY_CALLS)
_FAILURE = "failure: "


def tally_calls(turns: Iterable[Turn]) -> tuple[ToolTally, ...]:
    """Return the answered calls of a trajectory, counted by tool; calls that reached no tool have an empty name."""
    tallies: dict[str, _Count] = {}
    for turn in turns:
        for call, result in zip(turn.calls, turn.results, strict=False):  # the last turn may have no results
            count = tallies.setdefault("" if result.status in _WITHOUT_TOOL else call.name, _Count())
            count.num_calls += 1
            if result.status is not ToolStatus.OK:
                count.num_failed += 1
                reason = result.cause or _first_line(result.text)
                count.causes[f"`{result.status}`, {reason}"[:_MAX_CAUSE_CHARACTERS]] += 1
    return tuple(
        ToolTally(name=name, num_calls=count.num_calls, num_failed=count.num_failed, cause=count.most_common)
        for name, count in tallies.items()
    )


def describe_failing_tools(summaries: Iterable[TrajectorySummary]) -> dict[str, str]:
    """Return a line for each tool whose calls all failed, keyed by its name; the name is empty if no call reached a tool.

    Example: `{"calc": "tool `calc`: 12 of 12 calls failed, most often with `error`, ValueError at t.py:11"}`.
    """
    counts: dict[str, _Count] = {}
    for tally in (tally for summary in summaries for tally in summary.tools):
        count = counts.setdefault(tally.name, _Count())
        count.num_calls += tally.num_calls
        count.num_failed += tally.num_failed
        count.causes[tally.cause] += tally.num_failed
    return {
        name: f"{f'tool `{name}`' if name else 'tools'}: {count.num_failed} of {count.num_calls} calls "
        f"failed, most often with {count.most_common}"
        for name, count in counts.items()
        # Calls that reach no tool always fail: reported only if no call reached one.
        if count.num_calls == count.num_failed >= _MIN_CALLS and (name or len(counts) == 1)
    }


def warn_of_failing_tools(during: str, summaries: Iterable[TrajectorySummary]) -> None:
    """Log the lines of `describe_failing_tools`; the console shows a tool that keeps failing the 1st, 10th, 100th ... time."""
    for name, line in describe_failing_tools(summaries).items():
        extra = repeating(f"tool `{name}` fails", on_console=f"{during}: {line}")
        logger.warning("%s: %s", during, line, extra=extra)


@dataclass(slots=True)
class _Count:
    num_calls: int = 0
    num_failed: int = 0
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def most_common(self) -> str:
        return self.causes.most_common(1)[0][0] if self.num_failed else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].removeprefix(_FAILURE)
