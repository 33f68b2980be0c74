"""A right and a wrong trajectory as text, short enough for a terminal."""

from collections.abc import Iterable
from pathlib import Path

from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.types import Prompt, Termination, Trajectory, Turn

_MAX_CHARACTERS = 400
"""Characters shown of each text; a longer one is shown by both ends."""
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
    prompt = prompts[trajectory.prompt_id]
    yield f"{title}: {trajectory.trajectory_id}, reward {trajectory.reward:g}, ended by `{trajectory.termination}`"
    yield from _indented("prompt", str(prompt.messages[-1].get("content", "")))
    turns, left_out = trajectory.turns[:_MAX_TURNS], len(trajectory.turns) - _MAX_TURNS
    for turn in turns:
        yield from _turn(turn)
    if left_out > 0:
        yield f"  ({left_out} more turns)"
    if prompt.answer is not None:
        yield from _indented("reference", str(prompt.answer))


def _turn(turn: Turn) -> Iterable[str]:
    yield from _indented("policy", turn.text)
    for result in turn.results:
        yield from _indented(f"tool ({result.status})", result.text)
    if turn.observation is not None:
        yield from _indented("environment", turn.observation)


def _indented(name: str, text: str) -> Iterable[str]:
    for number, line in enumerate(_shortened(text.strip()).splitlines() or [""]):
        yield f"  {name + ':' if number == 0 else '':14} {line}"


def _shortened(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
