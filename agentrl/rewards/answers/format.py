r"""Extraction of the final answer from a completion.

Every format reads at most one answer, from the end of the last turn: a policy gains nothing by another format, or by several
answers. `auto` takes the format from the prompt, never from the completion. If the prompt asks for none, the reference decides
whether words alone are an answer.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.schema.reward import AnswerFormat
from agentrl.rewards.answers.text import normalised
from agentrl.types import Message

_THINKING_OPEN, _THINKING_CLOSE = "<think>", "</think>"
_ANSWER_OPEN, _ANSWER_CLOSE = "<answer>", "</answer>"
_BOXED = re.compile(r"\\boxed\s*\{")
_ASKS_FOR_BOX = re.compile(r"\\boxed\b")
_ASKS_FOR_HASHES = re.compile(r"(?<!#)####(?!#)")
_HEADING = re.compile(r"^####[ \t]+[A-Za-z*].*$", re.MULTILINE)
_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*(.*)")
_STATED = re.compile(r"\banswer(?:\s+is\b\s*:?|\s*[:=])", re.IGNORECASE)
_STATEMENT_END = re.compile(
    r"""\.(?=\s|$)
    |,\s*(?:so|as)\b
    |[\s,](?:because|since|which)\b
    |\((?:because|since)\b
    |(?<=[\w$%})])\s+\((?!(?:or|and|not|mod|if|unless)\b)                   # a remark in brackets, no condition:
     (?:(?=[^()]*(?:(?<![\\A-Za-z])[A-Za-z]{2}|=))(?:[^()]|\([^()]*\))*       # words or an equation,
       |(?=[^()]*[-+*/\u00d7\u00f7])[-\d\s.+*/\u00d7\u00f7$]*)                # or a sum; neither a factor nor a point
     \)(?=\s*(?:[.,;:!]|$))""",
    re.IGNORECASE | re.VERBOSE,
)
"""End of a stated answer on its line: the next sentence, a reason, or a remark in brackets."""
_VALUE = re.compile(
    r"[\d\\\u221e\u2205\u221a\u00bc-\u00be]|(?<![\w'\u2019])(?!(?:a|I)\s+[A-Za-z]{2})[^\W\d_](?!\w|['\u2019]\w)"
)
"""Part of a value: a digit, LaTeX or a single letter; `correct` and `a good one` have none."""
_MAX_SCANNED_CHARS = 50_000
"""Length of the searched end of a completion."""
_NUMBER = re.compile(
    r"""(?<![\w.])
    (?:(?<!\))[-\u2212])?                                                    # not the minus of a difference
    (?:\$(?=[\d.]))?
    (?:\\[dt]?frac\{\d+\}\{\d+\}
      |(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?:/\d+)?
      |\.\d+)
    (?:\s?\\?%)?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAnswer:
    r"""The final answer of a completion. Example: `FoundAnswer(text="42")`, or `FoundAnswer(problem=r"no \boxed{}")`."""

    text: str = ""
    """Empty if there is none."""
    problem: str = ""
    """Reason for a missing answer."""


def find_answer(
    completion: str, messages: Sequence[Message], answer_format: AnswerFormat, *, reference: str | None = None
) -> FoundAnswer:
    r"""Return the final answer in the last turn of an episode.

    A `reference` of words (`red`) allows a stated answer of words; it is not compared here.

    >>> find_answer(r"so <answer>\boxed{\frac{1}{2}}</answer>", [], "tagged").text
    '\\frac{1}{2}'
    """
    if _THINKING_CLOSE in completion:
        completion = completion.rpartition(_THINKING_CLOSE)[2]
    elif _THINKING_OPEN in completion:
        return FoundAnswer(problem=f"`{_THINKING_OPEN}` is not closed")
    completion = completion[-_MAX_SCANNED_CHARS:]
    request = "\n".join(_instructions(messages))
    match answer_format if answer_format != "auto" else requested_format(request):
        case "tagged":
            return _tagged(completion, needs_box=bool(_ASKS_FOR_BOX.search(request)))
        case "boxed":
            return _boxed(completion)
        case "hashes":
            return _last(_HASHES, completion, problem="no `####`")
        case "last_number":
            return _last(_NUMBER, completion, problem="no number")
        case _:
            is_words = reference is not None and not _VALUE.search(normalised(reference).replace(r"\text", ""))
            return _stated(completion, may_be_words=is_words)


def requested_format(request: str) -> AnswerFormat | None:
    """Return the format that the text of a prompt asks for; None if it asks for none."""
    if _ANSWER_OPEN in request:
        return "tagged"
    if _ASKS_FOR_BOX.search(request):
        return "boxed"
    return "hashes" if _ASKS_FOR_HASHES.search(_HEADING.sub("", request)) else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`; None without one, or if it is not closed."""
    start, depth = max((match.end() for match in _BOXED.finditer(text)), default=len(text)), 1
    for index in range(start, len(text)):
        if text[index] in "{}" and text[index - 1] != "\\":
            depth += 1 if text[index] == "{" else -1
            if depth == 0:
                return text[start:index].strip()
    return None


def _instructions(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.get("role") != "assistant":
            content: Any = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            yield from (part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _tagged(completion: str, *, needs_box: bool) -> FoundAnswer:
    end = completion.rfind(_ANSWER_CLOSE)
    start = completion.rfind(_ANSWER_OPEN, 0, max(0, end))
    if start < 0:
        return FoundAnswer(problem=f"no `{_ANSWER_OPEN}...{_ANSWER_CLOSE}`")
    block = completion[start + len(_ANSWER_OPEN) : end].strip()
    boxed = _boxed(block)
    if boxed.text or needs_box or _BOXED.search(block):
        return boxed if boxed.text else FoundAnswer(problem=f"{boxed.problem} in `{_ANSWER_OPEN}`")
    return FoundAnswer(text=block) if block else FoundAnswer(problem=f"`{_ANSWER_OPEN}` is empty")


def _boxed(text: str) -> FoundAnswer:
    problem = r"the last `\boxed{}` is empty or not closed" if _BOXED.search(text) else r"no `\boxed{}`"
    return FoundAnswer(text=content) if (content := last_boxed(text)) else FoundAnswer(problem=problem)


def _stated(completion: str, *, may_be_words: bool) -> FoundAnswer:
    r"""Read the last of `\boxed{}` and "the answer is ..."; without either, the last number.

    A statement without a value ("so the answer is correct") is skipped if there is another candidate; if `may_be_words`, only
    after a box.
    """
    text = completion.replace("**", "")
    box_at = max((match.start() for match in _BOXED.finditer(text)), default=-1)
    words, end = "", len(text)
    for match in reversed(list(_STATED.finditer(text, max(0, box_at)))):
        # Up to the next statement, so that the time is linear in their number.
        statement, end = _statement(text[match.end() : end]), match.start()
        if _VALUE.search(statement) or (statement and may_be_words and box_at < 0):
            return FoundAnswer(text=statement)
        words = words or statement
    fallback = _boxed(text) if box_at >= 0 else _last(_NUMBER, text, problem="no number")
    return FoundAnswer(text=words) if words and not fallback.text else fallback


def _statement(text: str) -> str:
    """Return the first line of `text`, without a reason for the answer or further sentences."""
    # Cut in steps: one pattern would take quadratic time on a line of blanks.
    line = text.partition("\n")[0].strip()
    end = _STATEMENT_END.search(line, 1)
    return line[: end.start()].rstrip(" \t,") if end else line


def _last(pattern: re.Pattern[str], completion: str, *, problem: str) -> FoundAnswer:
    matches = pattern.findall(completion)
    text = matches[-1].strip() if matches else ""
    return FoundAnswer(text=text) if text else FoundAnswer(problem=problem)
