"""Conversations of single trajectories for a page."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.trajectories.transcripts import shortened
from agentrl.types import Prompt, Termination, ToolStatus, Trajectory

_MAX_CHARACTERS = 6_000
"""Characters shown of each text; a longer one is shown by both ends."""
_MAX_TURNS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One text of a conversation."""

    role: str
    """`system`, `user`, `policy`, `tool` or `environment`."""
    title: str
    text: str
    is_failure: bool = False
    """True for a failed tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One trajectory, as a person reads it."""

    trajectory_id: str
    is_right: bool
    reward: float
    termination: Termination
    num_response_tokens: int
    reference: str
    """Reference answer; empty if there is none."""
    prompt: list[Message]
    messages: list[Message]
    """Texts of the policy, and the answers to them."""


def conversation_of(prompt: Prompt, trajectory: Trajectory, *, is_right: bool) -> Conversation:
    """Return a scored trajectory of a prompt as a conversation."""
    return Conversation(
        trajectory_id=trajectory.trajectory_id,
        is_right=is_right,
        reward=trajectory.reward or 0.0,
        termination=trajectory.termination,
        num_response_tokens=trajectory.num_response_tokens,
        reference="" if prompt.answer is None else _shortened(str(prompt.answer)),
        prompt=[*_prompt_messages(prompt)],
        messages=[*_turn_messages(trajectory)],
    )


def _prompt_messages(prompt: Prompt) -> Iterable[Message]:
    for message in prompt.messages:
        role = str(message.get("role", ""))
        yield Message(role=role, title=role, text=_shortened(str(message.get("content") or "")))


def _turn_messages(trajectory: Trajectory) -> Iterable[Message]:
    for turn in trajectory.turns[:_MAX_TURNS]:
        yield Message(role="policy", title="policy", text=_shortened(turn.text))
        for call, result in zip(turn.calls, turn.results, strict=False):  # the last turn may have no results
            title = f"tool {call.name}: {result.status}, {result.wall_time_s:.2f} s"
            is_failure = result.status is not ToolStatus.OK
            yield Message(role="tool", title=title, text=_shortened(result.text), is_failure=is_failure)
        if turn.observation is not None:
            yield Message(role="environment", title="environment", text=_shortened(turn.observation))
    if (left_out := len(trajectory.turns) - _MAX_TURNS) > 0:
        yield Message(role="environment", title="report", text=f"{left_out} more turns")


def _shortened(text: str) -> str:
    return shortened(text.strip(), _MAX_CHARACTERS)
