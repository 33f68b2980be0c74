"""Detectors of the user: `detectors.yaml` with regular expressions and Python predicates.

- {name: apology, regex: "(?i)i apologi[sz]e", where: policy}
- {name: short_answer, class_name: my_detectors.short_answer}
"""

import numbers
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import regex
import yaml
from pydantic import Field, model_validator

from agentrl.config.class_path import import_by_path
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.detectors.base import Detector, Finding, Place, Source, texts
from agentrl.detectors.shipped import SHIPPED
from agentrl.errors import ConfigError, DataError
from agentrl.types import Prompt, Trajectory
from agentrl.user_code import contained, require_parameters

_GRACE_S = 1.0
_MAX_S_PER_CHARACTER = 0.1 / 1e6
"""CPU time of a search: a regular expression that takes longer is given up. The fast ones take a hundredth of it."""


class DetectorEntry(PlainConfig):
    """One entry of `detectors.yaml`."""

    name: str = Field(min_length=1, pattern=r"^[\w.-]+$")
    """Its name in tables and curves."""
    regex: str | None = None
    """Regular expression, in the syntax of the `regex` package."""
    where: Literal["policy", "tool", "environment"] = "policy"
    """Author of the texts that it searches."""
    class_name: str | None = None
    """Import path of a function `(trajectory, prompt)`, or of a class with a method `hits` of these parameters."""
    meaning: str = ""
    """One line on what a hit is."""

    @model_validator(mode="after")
    def _has_one_search(self) -> "DetectorEntry":
        if (self.regex is None) == (self.class_name is None):
            raise ValueError("give either `regex` or `class_name`")
        return self


class RegexDetector:
    """Finds the matches of a regular expression."""

    def __init__(self, name: str, pattern: str, where: Source, *, meaning: str = "") -> None:
        """Raise ConfigError for what is no regular expression."""
        self.name = name
        self.meaning = meaning or f"`{pattern}` in the text of the {where}"
        self._where = where
        try:
            self._pattern = regex.compile(pattern)
        except regex.error as error:
            raise ConfigError(f"detector `{name}`: `{pattern}` is no regular expression: {error}") from error

    def hits(self, trajectory: Trajectory, prompt: Prompt | None) -> list[Place]:
        """Return the matches; DataError once the expression is far too slow."""
        return [place for whole, text in texts(trajectory, self._where) for place in self._search(whole, text)]

    def _search(self, whole: Place, text: str) -> list[Place]:
        limit_s = _GRACE_S + _MAX_S_PER_CHARACTER * len(text)
        try:
            matches = [match.span() for match in self._pattern.finditer(text, timeout=limit_s)]
        except TimeoutError as error:
            raise DataError(
                f"its regular expression took more than {limit_s:.1f} s for {len(text):,} characters. Nested repeats such as "
                "`(a+)+` take exponential time: make them possessive, `(a++)+`"
            ) from error
        return [
            Place(turn=whole.turn, start=start, end=end, source=whole.source, result=whole.result)
            for start, end in matches
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateDetector:
    """A function of the user's."""

    name: str
    meaning: str
    function: Callable[[Trajectory, Prompt | None], Any] = field(repr=False)

    def hits(self, trajectory: Trajectory, prompt: Prompt | None) -> Finding:
        """Return what the function returns.

        Raises:
            DataError: it is neither places, nor a truth value, nor a number.
            Exception: any that the function raised.
        """
        found = contained(self.function, trajectory, prompt)
        if isinstance(found, bool):
            return found
        if isinstance(found, numbers.Real):
            return float(found)
        if isinstance(found, list) and all(isinstance(place, Place) for place in found):
            return found
        raise DataError(
            f"it returned {found!r:.80}; return a bool, a number or a list of `agentrl.detectors.base.Place`"
        )


def load_detectors(file: Path | None) -> list[Detector]:
    """Return the shipped detectors and those of a file, whose folder is searched for the user's modules.

    Raises:
        ConfigError: the file is missing, or an entry is wrong.
    """
    if file is None:
        return [*SHIPPED]
    sys.path.insert(0, str(file.resolve().parent))
    detectors = [*SHIPPED, *(_detector(entry, key=f"[{index}]") for index, entry in enumerate(_entries(file)))]
    names = [detector.name for detector in detectors]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"{file}: two detectors are called `{twice[0]}`; `agentrl/detectors/shipped.py` has the shipped ones"
        )
    return detectors


def _entries(file: Path) -> Sequence[DetectorEntry]:
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: it cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ConfigError(f"{file}: it must be a list of detectors, such as `- {{name: apology, regex: sorry}}`")
    return [
        read_plain_config(DetectorEntry, entry, source=f"{file}", prefix=f"[{index}].")
        for index, entry in enumerate(content)
    ]


def _detector(entry: DetectorEntry, *, key: str) -> Detector:
    if entry.class_name is None:
        return RegexDetector(entry.name, entry.regex or "", Source(entry.where), meaning=entry.meaning)
    found = import_by_path(entry.class_name, key=f"{key}.class_name")
    try:
        function = contained(found).hits if isinstance(found, type) else found
        require_parameters(function, "trajectory", "prompt")
    except Exception as error:
        raise ConfigError(f"detector `{entry.name}`: `{entry.class_name}` cannot be used: {error}") from error
    return PredicateDetector(name=entry.name, meaning=entry.meaning or entry.class_name, function=function)
