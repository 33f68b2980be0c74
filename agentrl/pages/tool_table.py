"""The tools of some trajectories as a table."""

from collections import Counter
from collections.abc import Iterable

from agentrl.pages.page import Table
from agentrl.types import TrajectorySummary


def tool_table(summaries: Iterable[TrajectorySummary]) -> Table:
    """Return calls and failed calls of each tool, and its most common failure."""
    calls: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    causes: dict[str, Counter[str]] = {}
    for tally in (tally for summary in summaries for tally in summary.tools):
        name = tally.name or "(no such tool)"
        calls[name] += tally.num_calls
        failed[name] += tally.num_failed
        if tally.num_failed:
            causes.setdefault(name, Counter())[tally.cause] += tally.num_failed
    rows = [
        (
            name,
            f"{count:,}",
            f"{failed[name]:,}",
            f"{failed[name] / count:.1%}",
            causes[name].most_common(1)[0][0] if name in causes else "",
        )
        for name, count in calls.most_common()
    ]
    return Table(columns=("tool", "calls", "failed", "share", "most common failure"), rows=rows, num_texts=1)
