"""The report of an evaluation as Markdown, every text of a trajectory in a fenced block."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from agentrl.checkpoints.store import write_whole
from agentrl.evaluation.figures import interval, number
from agentrl.evaluation.report import METHOD, Report
from agentrl.pages.conversation import Conversation
from agentrl.pages.page import Table


def write_report_markdown(file: Path, report: Report) -> None:
    """Write an evaluation's report."""
    # A policy can write half a surrogate pair, which has no UTF-8 form.
    write_whole(file, "\n".join([*_lines(report), ""]).encode(errors="replace"))


def _lines(report: Report) -> Iterator[str]:
    yield f"# {_escaped(report.title)}"
    for note in report.notes:
        yield from ("", f"> {_escaped(note)}")
    yield from ("", "## Figures")
    rows = [(name, number(v.mean), interval(v), f"{v.num_prompts}") for name, v in report.figures[0].rows()]
    yield from _table(Table(columns=("what", "value", "95 % interval", "prompts"), rows=rows))
    yield from ("", METHOD)
    if report.subsets.rows:
        yield from ("", "## By data set and category")
        yield from _table(report.subsets)
    yield from ("", "## What was evaluated")
    yield from _table(Table(columns=("", ""), rows=list(report.facts), num_texts=1))
    yield from ("", "## How episodes ended")
    yield from _table(report.endings)
    for line in report.failures:
        yield from ("", f"> {_escaped(line)}")
    for title, table in (("Lengths", report.lengths), ("Tools", report.tools), ("Time", report.times)):
        if table.rows:
            yield from ("", f"## {title}")
            yield from _table(table)
    yield from ("", "## Examples")
    for conversation in report.examples:
        yield from _conversation(conversation)


def _conversation(talk: Conversation) -> Iterator[str]:
    verdict = "Right" if talk.is_right else "Wrong"
    yield from ("", f"### {verdict}: {_escaped(talk.trajectory_id)}")
    yield from ("", f"Reward {talk.reward:g}, ended by {talk.termination}, {talk.num_response_tokens} tokens.")
    for message in [*talk.prompt, *talk.messages]:
        yield from ("", f"{_escaped(message.title)}:", "")
        yield from _fenced(message.text)
    if talk.reference:
        yield from ("", "reference:", "")
        yield from _fenced(talk.reference)


def _fenced(text: str) -> Iterator[str]:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (fence, text, fence)


def _table(table: Table) -> Iterator[str]:
    first_of_words = len(table.columns) - table.num_texts
    yield ""
    yield f"| {' | '.join(table.columns)} |"
    is_text = [index == 0 or index >= first_of_words for index in range(len(table.columns))]
    yield f"|{'|'.join('---' if text else '---:' for text in is_text)}|"
    for row in table.rows:
        yield f"| {' | '.join(_escaped(cell) for cell in row)} |"


def _escaped(text: str) -> str:
    """Return text on one line that Markdown and HTML show as it is."""
    text = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
