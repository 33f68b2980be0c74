"""Detectors of what the policy writes: loops, empty reasoning, another script."""

import re
from collections.abc import Iterator

from agentrl.detectors.base import Place, Source, texts
from agentrl.types import Prompt, Trajectory

_STRIDE = 16
"""Distance of the positions at which a loop is looked for, and the characters compared there first."""
_MAX_UNIT = 1_000
_MIN_COPIES = 4
_MIN_LOOP = 64
_WORD = re.compile(r"[^\W\d_]{3}|!!!")
"""A word, which a loop must hold: ruled lines and table cells repeat honestly. Broken weights write `!` without end."""

_REASONING = re.compile(
    r"<(think|thinking|thought|reasoning|scratchpad)>(?P<block>.*?)</\1>|\[THINK\](?P<other>.*?)\[/THINK\]", re.DOTALL
)
_OPEN, _CLOSE = "<think>", "</think>"
_MIN_WORDS = 3

_SCRIPTS = {
    "Chinese, Japanese or Korean": (re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+"), 12),
    "Cyrillic": (re.compile("[\u0400-\u052f]+"), 30),
    "Arabic": (re.compile("[\u0600-\u06ff\u0750-\u077f]+"), 30),
    "Hebrew": (re.compile("[\u0590-\u05ff]+"), 30),
    "Indic": (re.compile("[\u0900-\u0dff]+"), 30),
    "Thai": (re.compile("[\u0e00-\u0e7f]+"), 30),
}
"""Letters of each script, and the number of them that is no quoted name. Greek is that of formulas."""
_ASKS_FOR_LANGUAGE = re.compile(
    r"\b(?:translat|chinese|mandarin|japanese|korean|russian|ukrainian|bulgarian|serbian|arabic|persian|urdu|hebrew|hindi"
    r"|bengali|tamil|thai|cyrillic|kanji|multilingual|unicode)",
    re.IGNORECASE,
)


def repeated_text(trajectory: Trajectory, _prompt: Prompt | None) -> list[Place]:
    """Return passages in which a unit with a word in it follows itself at least four times, over 64 characters or more."""
    return [
        Place(turn=whole.turn, start=start, end=end)
        for whole, text in texts(trajectory, Source.POLICY)
        for start, end in _loops(text)
    ]


def empty_reasoning(trajectory: Trajectory, _prompt: Prompt | None) -> list[Place]:
    """Return the blocks of reasoning if none has three words; a policy that writes no blocks is never hit."""
    places = []
    for whole, text in texts(trajectory, Source.POLICY):
        blocks = [
            (match.start(), match.end(), match["block"] or match["other"] or "") for match in _REASONING.finditer(text)
        ]
        before, closed, _ = text.partition(_CLOSE)
        if closed and _OPEN not in before:  # the chat template has written the opening tag
            blocks.append((0, len(before) + len(closed), before))
        for start, end, block in blocks:
            if len(block.split()) >= _MIN_WORDS:
                return []
            places.append(Place(turn=whole.turn, start=start, end=end))
    return places


def language_switch(trajectory: Trajectory, prompt: Prompt | None) -> list[Place]:
    """Return passages in a script that neither prompt nor tools have written, unless the prompt names such a language."""
    written = [(whole, text) for whole, text in texts(trajectory, Source.POLICY) if not text.isascii()]
    if not written:
        return []
    asked = "\n".join(str(message.get("content") or "") for message in prompt.messages) if prompt else ""
    if _ASKS_FOR_LANGUAGE.search(asked):
        return []
    read = [asked, *(text for source in (Source.TOOL, Source.ENVIRONMENT) for _, text in texts(trajectory, source))]
    places = []
    for letters, min_letters in _SCRIPTS.values():
        found = [(whole, match) for whole, text in written for match in letters.finditer(text)]
        if sum(len(match[0]) for _, match in found) >= min_letters and not any(map(letters.search, read)):
            places += [Place(turn=whole.turn, start=match.start(), end=match.end()) for whole, match in found]
    return places


def _loops(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while (end := start + _STRIDE) <= len(text):
        copy = text.find(text[start:end], start + 1, end + _MAX_UNIT)
        if copy < 0:
            start = end
            continue
        first, stop, length = start, _end_of_copies(text, start, copy - start), copy - start
        while first > max(0, start - _STRIDE) and text[first - 1] == text[first - 1 + length]:
            first -= 1  # it began between two strides
        is_long = stop - first >= max(_MIN_LOOP, _MIN_COPIES * length)
        if is_long and _WORD.search(text, first, stop):
            yield first, stop
        start = stop if is_long else end


def _end_of_copies(text: str, start: int, length: int) -> int:
    unit, stop = text[start : start + length], start + length
    while text.startswith(unit, stop):
        stop += length
    while stop < len(text) and text[stop] == text[stop - length]:
        stop += 1
    return stop
