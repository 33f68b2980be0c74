"""Echo matching: which stored tokens a call of an agent continues.

An agent sends its whole dialogue with every call. The policy's turns in it are compared with what the agent was given, all
other messages with what it sent before. Where a call differs, a further row of tokens begins: a *fork*.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.types import Message, ToolCall


class ForkReason(StrEnum):
    """Reason why a call does not continue the tokens of an earlier one."""

    TOOLS = "tools"
    """It has other tools."""
    EDITED = "edited"
    """A message before the policy's first turn is another, as after a compaction or in a dialogue of its own."""
    ANSWER = "answer"
    """A turn of the policy came back changed."""
    FOREIGN = "foreign"
    """It has a turn of the assistant that the policy did not write."""
    BRANCH = "branch"
    """It goes on from an earlier turn, whose tokens are the prompt of the new row."""
    TEMPLATE = "template"
    """The template renders the dialogue to other tokens (`history: exact`)."""
    INDEPENDENT = "independent"
    """Every call is a row (`rows: independent`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedTurn:
    """A turn of the policy as the agent received it."""

    text: str
    thought: str
    calls: tuple[ToolCall, ...]

    def echoed_by(self, message: Message, *, by_id: bool) -> bool:
        """Return whether a message is this turn.

        Calls are equal if their names are, and their arguments as JSON; ids may be new. Texts are equal but for white space at
        their ends. A thought may be missing. With `by_id` the id of a call in the text is enough.
        """
        text = str(message.get("content") or "")
        if by_id and any(call.call_id in text for call in self.calls):
            return True
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        thought = str(message.get("reasoning_content") or "").strip()
        return (
            [(call["name"], call["arguments"]) for call in calls] == [(c.name, c.arguments) for c in self.calls]
            and text.strip() == self.text.strip()
            and thought in ("", self.thought.strip())
        )


Entry = Message | IssuedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Leading messages of a call that equal those of a row."""

    num_equal: int
    num_kept: int
    """Entries of the row up to its last turn that the call goes on from; 0: none."""
    reason: ForkReason | None
    """Reason why the call does not continue the row; None: it does."""


def match(entries: Sequence[Entry], ends: Container[int], messages: Sequence[Message], *, by_id: bool) -> Match:
    """Compare the messages of a call with a row's entries, of which the last is a turn of the policy.

    `ends` are the numbers of entries at which a turn of the policy has just ended, and its tokens are known.
    """
    equal = 0
    for entry, message in zip(entries, messages, strict=False):
        if not _is_equal(entry, message, by_id=by_id):
            break
        equal += 1
    kept = next((n for n in range(equal, 0, -1) if n in ends and n < len(messages)), 0)
    reason = None
    if any(message["role"] == "assistant" for message in messages[kept:]):
        changed = equal < len(entries) and isinstance(entries[equal], IssuedTurn)
        is_answer = changed and equal < len(messages) and messages[equal]["role"] == "assistant"
        reason, kept = ForkReason.ANSWER if is_answer else ForkReason.FOREIGN if equal else ForkReason.EDITED, 0
    elif kept < len(entries):
        reason = ForkReason.BRANCH if equal and (kept or equal == len(messages)) else ForkReason.EDITED
    return Match(num_equal=equal, num_kept=kept, reason=reason)


def comparable(message: Message) -> dict[str, Any]:
    """Return the parts of a message in which two must agree; the name of a tool is derived from its call."""
    return {key: value for key, value in message.items() if value not in (None, "", []) and key != "name"}


def _is_equal(entry: Entry, message: Message, *, by_id: bool) -> bool:
    if isinstance(entry, IssuedTurn):
        return message["role"] == "assistant" and entry.echoed_by(message, by_id=by_id)
    return entry == message or comparable(entry) == comparable(message)
