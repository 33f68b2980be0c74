"""Every program of `programs/` prints and ends in a warm interpreter like `python main.py` in the same jail.

A program may have its standard input beside it, as `name.in`. The programs are meant to be odd: they are neither formatted nor
checked.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from jail_driver import PYTHON, Jail, jail
from jail_tiers import EVERY_TIER, NAMESPACE_TIERS

from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.judging.preload_choice import choose_preload
from code_judge_server.preload_sets import preload_sets
from code_judge_server.schemas import IsolationTier

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
PRELOADS = preload_sets({})
LIMITS = {"memory_bytes": 1 << 30, "max_tasks": 128}
QUICK = ("main_", "frames_", "excepthook_", "exit_")
SHOW_WHAT_IS_LOADED = {"lib_tracemalloc_faulthandler", "warnings_filters"}
"""Programs that print what importing a module leaves behind: the same only in the set that is chosen for them."""
MAX_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Seen:
    """The visible result of a program."""

    stdout: str
    stderr: str
    exit_code: int | None
    signal: int | None
    error: str | None


PLAIN: dict[tuple[Jail, Path], Seen] = {}
"""Results of programs in a cold interpreter of a jail; they are the same for all sets, so each program mostly runs once."""

DIFFERENT_IN_TIER_C = {
    "main_import_system.py",
    "numpy_in_threads_and_processes.py",
    "processes_executor.py",
    "processes_pool_fork.py",
    "processes_queue_and_shared.py",
    "processes_shared_memory.py",
    "processes_spawn.py",
}
"""Programs that behave differently there: only warm interpreters have semaphores and shared memory, by a meta path finder."""


@pytest.fixture(scope="module")
def started() -> Iterator[Jail]:
    with jail(NAMESPACE_TIERS[0], preloads=PRELOADS) as running:
        yield running


def test_the_corpus_is_broad():
    assert len(PROGRAMS) >= 150


@pytest.mark.slow
def test_a_program_cannot_tell_that_its_interpreter_was_warm(started: Jail):
    assert differences(started, [program for program in PROGRAMS if program.name.startswith(QUICK)]) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_program_of_the_corpus_can(started: Jail):
    others = [program for program in PROGRAMS if not program.name.startswith(QUICK)]  # for those see above
    assert differences(started, others) == ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tier", [tier for tier in EVERY_TIER if tier is not NAMESPACE_TIERS[0]])
@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([program for program in PROGRAMS if program.name.startswith(QUICK)], marks=pytest.mark.slow),
        pytest.param(PROGRAMS, marks=pytest.mark.soak),
    ],
    ids=["quick", "all"],
)
def test_no_program_of_the_corpus_can_in_a_weaker_tier(tier: IsolationTier, programs: list[Path]):
    if find_tier(tier).tier is not tier:
        pytest.skip(f"this machine does not give tier {tier}")
    left_out = DIFFERENT_IN_TIER_C if tier is IsolationTier.C else set()
    with jail(tier, preloads=PRELOADS) as weaker:
        if tier is not IsolationTier.C:  # what a program shows in one jail with namespaces it mostly shows in another
            PLAIN.update({(weaker, program): seen for (_, program), seen in list(PLAIN.items())})
        assert differences(weaker, [program for program in programs if program.name not in left_out]) == ""


ENDS = ("excepthook_", "exit_")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_modules_that_a_program_did_not_ask_for_change_nothing(started: Jail):
    others = [program for program in programs_of_smaller_sets("sci") if not program.name.startswith(ENDS)]
    assert differences(started, others, preload="sci") == ""


@pytest.mark.parametrize("preload", ["sympy", "sci"])
def test_the_end_of_a_program_does_not_show_other_loaded_modules(started: Jail, preload: str):
    ends = [program for program in programs_of_smaller_sets(preload) if program.name.startswith(ENDS)]
    assert differences(started, ends, preload=preload) == ""


def test_the_corpus_has_programs_for_each_set():
    chosen = Counter(map(chosen_preload, PROGRAMS))
    assert chosen.keys() == PRELOADS.keys() == {"bare", "sympy", "sci"}
    assert min(chosen.values()) >= 8


@pytest.mark.parametrize(("preload", "loaded"), [("bare", []), ("sympy", ["sympy"]), ("sci", ["numpy", "sympy"])])
def test_a_program_finds_the_modules_of_its_set_loaded_and_no_others(started: Jail, preload: str, loaded: list[str]):
    code = "import sys; print(*sorted({'numpy', 'sympy', 'mpmath', 'code_judge_server'} & sys.modules.keys()))"
    names = started.run_python(code, preload=preload).text.split()
    assert names == sorted([*loaded, *["mpmath"] * ("sympy" in loaded)])


@pytest.mark.parametrize(
    ("preload", "generator"),
    [
        ("bare", "import random\ndraw = random.random"),
        ("sympy", "from sympy.core.random import rng\ndraw = rng.random"),
        ("sci", "import numpy\ndraw = numpy.random.rand"),
        ("sci", "from sympy.core.random import rng\ndraw = rng.random"),
    ],
    ids=["bare random", "sympy rng", "sci numpy", "sci rng"],
)
def test_no_two_programs_of_a_set_draw_the_same_numbers(started: Jail, preload: str, generator: str):
    drawn = [started.run_python(f"{generator}\nprint(draw())", preload=preload).text for _ in range(4)]
    assert len({float(number) for number in drawn}) == 4


@pytest.mark.parametrize("preload", ["sympy", "sci"])
def test_changes_to_sympy_end_with_the_program(started: Jail, preload: str):
    spoil = (
        "import sympy\nsympy.Dummy._count += 99\nsympy.Integer.__str__ = lambda self: 'spoiled'\nsympy.spoiled = 1\n"
        "print(sympy.Integer(5))"
    )
    look = "import sympy\nprint(sympy.Dummy._count, sympy.Integer(5), hasattr(sympy, 'spoiled'), sympy.sqrt(8))"
    before = started.run_python(look, preload=preload)
    assert started.run_python(spoil, preload=preload).text == "spoiled"
    after = started.run_python(look, preload=preload)
    assert after.text == before.text
    assert before.text.endswith("5 False 2*sqrt(2)"), before.stderr


def differences(started: Jail, programs: Sequence[Path], *, preload: str | None = None) -> str:
    """Return all differences; empty if there are none."""

    return "\n".join(filter(None, (difference(started, program, preload) for program in programs)))


def difference(started: Jail, program: Path, preload: str | None) -> str:
    warm = run(started, program, preload or chosen_preload(program), interpret=True)
    if PLAIN.get((started, program)) == warm:
        return ""
    plain = PLAIN[started, program] = run(started, program, "bare", interpret=False)
    if plain == warm:
        return ""
    lines = difflib.unified_diff(repr_lines(plain), repr_lines(warm), "plain", "warm", lineterm="", n=0)
    return "\n".join([f"== {program.name}", *[line[:200] for line in lines][:MAX_SHOWN_LINES]])


def repr_lines(seen: Seen) -> list[str]:
    ending = f"exit code {seen.exit_code}, signal {seen.signal}, error {seen.error}"
    return [ending, *seen.stdout.splitlines(), "-- stderr:", *seen.stderr.splitlines()]


def programs_of_smaller_sets(preload: str) -> list[Path]:
    """Return the programs that get a set without some of these modules, except for those that print the loaded modules."""
    modules = set(PRELOADS[preload])
    smaller = {name for name, others in PRELOADS.items() if set(others) < modules}
    return [
        program
        for program in PROGRAMS
        if chosen_preload(program) in smaller and program.stem not in SHOW_WHAT_IS_LOADED
    ]


def chosen_preload(program: Path) -> str:
    name = choose_preload(program.read_bytes(), PRELOADS)
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
    """Drop addresses, reference counts and slot folders of tier C, which differ between runs."""
    text = re.sub(r"/slot-\d+-\w+/", "/slot/", output.decode(errors="backslashreplace"))
    return re.sub(r"0x[0-9a-f]{6,}|(?<=object refcount : )\d+", "...", text)
