"""A right and a wrong trajectory as text, short enough for a terminal."""

from collections.abc import Iterable
from pathlib import Path

from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.trajectories.transcripts import describe_ending, transcript
from agentrl.types import Prompt, Termination, Trajectory

_MAX_CHARACTERS = 400
"""Characters shown of each text."""
_MAX_TURNS = 6


def describe_examples(file: Path) -> str:
    """Return the best and the worst trajectory of a file as text; one where all have the same reward; empty without any.

    Of equal rewards the first that came to its own end is taken.
    """
    best = max(_scored(file), key=lambda trajectory: _rank(trajectory, sign=1), default=None)
    worst = max(_scored(file), key=lambda trajectory: _rank(trajectory, sign=-1), default=None)
    if best is None or worst is None:
        return ""
    prompts = read_prompts(file)
    if best.reward == worst.reward:
        return "\n".join(_described("every reward is the same; one trajectory", best, prompts))
    lines = [*_described("the best trajectory", best, prompts), "", *_described("the worst trajectory", worst, prompts)]
    return "\n".join(lines)


def _scored(file: Path) -> Iterable[Trajectory]:
    return (trajectory for trajectory in read_trajectories(file) if trajectory.reward is not None)


def _rank(trajectory: Trajectory, *, sign: int) -> tuple[float, bool]:
    return sign * (trajectory.reward or 0.0), trajectory.termination is Termination.ANSWERED


def _described(title: str, trajectory: Trajectory, prompts: dict[str, Prompt]) -> Iterable[str]:
    yield f"{title}: {describe_ending(trajectory)}"
    prompt = prompts[trajectory.prompt_id]
    yield from transcript(trajectory, prompt, max_characters=_MAX_CHARACTERS, max_turns=_MAX_TURNS)
