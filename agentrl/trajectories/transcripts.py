"""A trajectory as text for a terminal: its conversation, its calls with their results, and its times."""

import json
from collections.abc import Iterator
from typing import Any

from agentrl.timing import Span
from agentrl.types import Prompt, ToolCall, ToolResult, Trajectory, Turn


def describe_ending(trajectory: Trajectory) -> str:
    """Return a line with its id, its reward and the reason of its end."""
    reward = "no reward" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    return f"{trajectory.trajectory_id}, {reward}, ended by `{trajectory.termination}`"


def transcript(
    trajectory: Trajectory, prompt: Prompt | None, *, max_characters: int | None = None, max_turns: int | None = None
) -> Iterator[str]:
    """Yield the lines of a conversation, without a title; the prompt's record may be missing.

    Of a text longer than `max_characters` both ends are shown, and only the first `max_turns` turns.
    """
    for message in prompt.messages if prompt else ():
        yield from _indented(str(message.get("role", "")), _content(message.get("content", "")), max_characters)
    for turn in trajectory.turns[:max_turns]:
        yield from _turn(turn, max_characters)
    left_out = 0 if max_turns is None else len(trajectory.turns) - max_turns
    if left_out > 0:
        yield f"  ({left_out} more turns)"
    for failure in trajectory.failures:
        yield from _indented("failed attempt", f"{failure.failure_class}: {failure.message}", max_characters)
    if prompt is not None and prompt.answer is not None:
        yield from _indented("reference", str(prompt.answer), max_characters)


def _turn(turn: Turn, max_characters: int | None) -> Iterator[str]:
    yield from _indented(f"policy{_seconds(turn.sampled)}", turn.text, max_characters)
    for number, result in enumerate(turn.results):
        yield from _indented(_called(turn.calls[number], result), result.text, max_characters)
    for call in turn.calls[len(turn.results) :]:
        yield from _indented(f"tool {call.name}", "(the episode ended before this call)", max_characters)
    if turn.observation is not None:
        yield from _indented(f"environment{_seconds(turn.answered)}", turn.observation, max_characters)


def _called(call: ToolCall, result: ToolResult) -> str:
    name = f"tool {call.name}" if call.name else "tool"
    return f"{name} ({result.status}{f', {result.wall_time_s:.2f} s' if result.wall_time_s else ''})"


def _seconds(span: Span | None) -> str:
    return "" if span is None else f" ({span.duration_s:.2f} s)"


def _content(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _indented(name: str, text: str, max_characters: int | None) -> Iterator[str]:
    first, *more = shortened(text.strip(), max_characters).splitlines() or [""]
    yield f"  {name}: {first}"
    for line in more:
        yield f"      {line}"


def shortened(text: str, max_characters: int | None) -> str:
    """Return both ends of a text that is longer than `max_characters`, with the number of characters left out."""
    if max_characters is None or len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
