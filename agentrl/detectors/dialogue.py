"""Detectors of what happens over the turns of an episode: errors that are ignored, and its length."""

import re

from agentrl.detectors.base import Place
from agentrl.types import Prompt, ToolCall, ToolStatus, Trajectory, Turn

_MIN_WORDS = 12
"""Words of a turn that is more than an answer."""
_MENTIONS_FAILURE = re.compile(
    r"(?i)error|fail|exception|traceback|timed? ?out|invalid|did(?: not|n't) work|instead|by hand|manual|without the tool"
)
_MARKUP = re.compile(r"<[^<>]*>|\\boxed|\\[a-z]+")
_RETRIABLE = {ToolStatus.TIMEOUT, ToolStatus.TOO_MANY_CALLS}
"""Failures after which the same call is the right one."""


def ignored_error(trajectory: Trajectory, _prompt: Prompt | None) -> list[Place]:
    """Return turns that ignore the failure before them: they repeat the failed call, or answer without a word about it.

    An answer is only a hit if no call of the episode succeeded, so that it cannot come from a tool.
    """
    places = []
    has_result = False
    for number, (turn, following) in enumerate(zip(trajectory.turns, trajectory.turns[1:], strict=False), start=1):
        has_result |= any(result.status is ToolStatus.OK for result in turn.results)
        failed = [
            (call, result.status)
            for call, result in zip(turn.calls, turn.results, strict=False)
            if result.status is not ToolStatus.OK
        ]
        if not failed or len(failed) < len(turn.calls):
            continue
        repeats = [call for call, status in failed if status not in _RETRIABLE and _is_in(call, following)]
        if repeats or (not has_result and not following.calls and _only_answers(following)):
            places.append(Place(turn=number, start=0, end=len(following.text)))
    return places


def response_tokens(trajectory: Trajectory, _prompt: Prompt | None) -> float:
    """Return the number of sampled tokens."""
    return float(trajectory.num_response_tokens)


def _is_in(call: ToolCall, turn: Turn) -> bool:
    return not call.parse_error and any(
        (other.name, other.arguments) == (call.name, call.arguments) for other in turn.calls
    )


def _only_answers(turn: Turn) -> bool:
    words = _MARKUP.sub(" ", turn.text).split()
    return len(words) < _MIN_WORDS and not _MENTIONS_FAILURE.search(turn.text)
