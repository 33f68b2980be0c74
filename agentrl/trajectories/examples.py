"""A right and a wrong trajectory as text, short enough for a terminal."""

from collections.abc import Iterable
from pathlib import Path

from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.types import Prompt, Termination, ToolResult, Trajectory, Turn

_MAX_CHARACTERS = 400
"""Characters shown of each text; a longer one is shown by both ends."""
_MAX_TURNS = 6


def describe_examples(file: Path) -> str:
    """Return the best and the worst trajectory of a file as text; one where all have the same reward; empty without any.

    Of equal rewards the first that came to its own end is taken.
    """
    best: Trajectory | None = None
    worst: Trajectory | None = None
    for trajectory in read_trajectories(file) if file.is_file() else ():
        if trajectory.reward is None:
            continue
        if best is None or _goodness(trajectory) > _goodness(best):
            best = trajectory
        if worst is None or _badness(trajectory) > _badness(worst):
            worst = trajectory
    if best is None or worst is None:
        return ""
    prompts = read_prompts(file)
    if best.reward == worst.reward:
        return "\n".join(_described("every reward is the same; one trajectory", best, prompts))
    lines = [*_described("the best trajectory", best, prompts), "", *_described("the worst trajectory", worst, prompts)]
    return "\n".join(lines)


def _goodness(trajectory: Trajectory) -> tuple[float, bool]:
    return trajectory.reward or 0.0, trajectory.termination is Termination.ANSWERED


def _badness(trajectory: Trajectory) -> tuple[float, bool]:
    return -(trajectory.reward or 0.0), trajectory.termination is Termination.ANSWERED


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
        yield from _indented(_name_of(result), result.text)


def _name_of(result: ToolResult) -> str:
    return f"tool ({result.status})"


def _indented(name: str, text: str) -> Iterable[str]:
    for number, line in enumerate(_shortened(text.strip()).splitlines() or [""]):
        yield f"  {name + ':' if number == 0 else '':14} {line}"


def _shortened(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
