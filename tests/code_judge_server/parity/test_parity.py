"""Every program of `programs/` prints and ends in a warm interpreter as `python main.py` does, run in the very same jail.

A program may have its standard input beside it, as `name.in`. The programs are meant to be odd: they are neither formatted nor
checked.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from jail_driver import PYTHON, Jail, jail
from jail_tiers import EVERY_TIER, NAMESPACE_TIERS

from code_judge_server.jail.canaries import find_tier
from code_judge_server.jail.preload import choose
from code_judge_server.preload_sets import preload_sets
from code_judge_server.schemas import IsolationTier

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
PRELOADS = preload_sets({})
LIMITS = {"memory_bytes": 1 << 30, "max_tasks": 128}
QUICK = ("main_", "frames_", "excepthook_", "exit_")
SHOW_WHAT_IS_LOADED = {"lib_tracemalloc_faulthandler", "warnings_filters"}
"""They print what importing a module leaves behind: the same only in the set that is chosen for them."""
MAX_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Seen:
    """What a person sees of a program that ran."""

    stdout: str
    stderr: str
    exit_code: int | None
    signal: int | None
    error: str | None


def test_the_corpus_is_broad():
    assert len(PROGRAMS) >= 150


def test_a_program_cannot_tell_that_its_interpreter_was_warm():
    with parity_jail(NAMESPACE_TIERS[0]) as started:
        assert differences(started, [program for program in PROGRAMS if program.name.startswith(QUICK)]) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tier", EVERY_TIER)
def test_no_program_of_the_corpus_can(tier: IsolationTier):
    if find_tier(tier).tier is not tier:
        pytest.skip(f"this machine does not give tier {tier}")
    with parity_jail(tier) as started:
        assert differences(started, PROGRAMS) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_modules_that_a_program_did_not_ask_for_change_nothing():
    unasked = [
        program for program in PROGRAMS if chosen_preload(program) == "bare" and program.stem not in SHOW_WHAT_IS_LOADED
    ]
    with parity_jail(NAMESPACE_TIERS[0]) as started:
        assert differences(started, unasked, preload="sci") == ""


@contextmanager
def parity_jail(tier: IsolationTier) -> Iterator[Jail]:
    with jail(tier, preloads=PRELOADS) as started:
        yield started


def differences(started: Jail, programs: Sequence[Path], *, preload: str | None = None) -> str:
    """Return all that differs, empty if nothing does."""

    return "\n".join(filter(None, (difference(started, program, preload) for program in programs)))


def difference(started: Jail, program: Path, preload: str | None) -> str:
    plain = run(started, program, "bare", interpret=False)
    warm = run(started, program, preload or chosen_preload(program), interpret=True)
    if plain == warm:
        return ""
    lines = difflib.unified_diff(repr_lines(plain), repr_lines(warm), "plain", "warm", lineterm="", n=0)
    return "\n".join([f"== {program.name}", *[line[:200] for line in lines][:MAX_SHOWN_LINES]])


def repr_lines(seen: Seen) -> list[str]:
    ending = f"exit code {seen.exit_code}, signal {seen.signal}, error {seen.error}"
    return [ending, *seen.stdout.splitlines(), "-- stderr:", *seen.stderr.splitlines()]


def chosen_preload(program: Path) -> str:
    name = choose(program.read_bytes(), PRELOADS)
    assert name is not None
    return name


def run(started: Jail, program: Path, preload: str, *, interpret: bool) -> Seen:
    given = program.with_suffix(".in")
    ran = started.slot(0, preload).run(
        [PYTHON, "main.py"],
        files={"main.py": program.read_bytes()},
        stdin=given.read_bytes() if given.exists() else b"1 2\n3\n",
        interpret=interpret,
        limits=LIMITS,
    )
    return Seen(
        without_chance(ran.stdout), without_chance(ran.stderr), *map(ran.ended.get, ("exit_code", "signal", "error"))
    )


def without_chance(output: bytes) -> str:
    """Drop addresses and reference counts, which differ from one plain run to the next or tell nothing."""
    text = output.decode(errors="backslashreplace")
    return re.sub(r"0x[0-9a-f]{6,}|(?<=object refcount : )\d+", "...", text)
