"""The protocol of detectors, and the places that they find in a trajectory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agentrl.types import Prompt, Trajectory


class Source(StrEnum):
    """Author of a text."""

    POLICY = "policy"
    TOOL = "tool"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Characters of a trajectory. Example: the first ten of what its second turn's first call returned:
    `Place(turn=1, start=0, end=10, source=Source.TOOL)`.
    """

    turn: int
    start: int
    end: int
    source: Source = Source.POLICY
    result: int = 0
    """Index of the call in its turn, for the text of a tool."""


Finding = list[Place] | bool | float
"""Places or a truth value: hit or not. A number is a hit if nine of ten trajectories of the first step have less."""


class Detector(Protocol):
    """A saved search."""

    @property
    def name(self) -> str:
        """Its name, unique in a scan."""
        ...

    @property
    def meaning(self) -> str:
        """One line on what a hit is."""
        ...

    def hits(self, trajectory: Trajectory, prompt: Prompt | None) -> Finding:
        """Return what it finds in a trajectory; the prompt's record may be missing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDetector:
    """A detector that is a function."""

    name: str
    meaning: str
    function: Callable[[Trajectory, Prompt | None], Finding]

    def hits(self, trajectory: Trajectory, prompt: Prompt | None) -> Finding:
        """See `Detector`."""
        return self.function(trajectory, prompt)


def texts(trajectory: Trajectory, source: Source) -> Iterator[tuple[Place, str]]:
    """Yield every text of an author with the place that covers all of it."""
    for number, turn in enumerate(trajectory.turns):
        match source:
            case Source.POLICY:
                found = [(0, turn.text)]
            case Source.TOOL:
                found = [(index, result.text) for index, result in enumerate(turn.results)]
            case Source.ENVIRONMENT:
                found = [] if turn.observation is None else [(0, turn.observation)]
        for index, text in found:
            yield Place(turn=number, start=0, end=len(text), source=source, result=index), text
