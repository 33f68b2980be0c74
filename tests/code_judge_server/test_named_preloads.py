"""`--preloads`, from the command line to a program that has the modules already loaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from jail_tiers import EVERY_TIER
from judge_process import JudgeProcess, running_judge

from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.schemas import IsolationTier

NAMED = '{"extra": ["wave"]}'
SHOW_AND_IMPORT = """
import sys
print("wave" in sys.modules)
import {module}
print({module}.__name__)
"""


@pytest.fixture(
    scope="module", params=[EVERY_TIER[0], *(pytest.param(tier, marks=pytest.mark.slow) for tier in EVERY_TIER[1:])]
)
def warm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[JudgeProcess]:
    """A judge whose interpreters also have a module set of this test."""
    tier: IsolationTier = request.param
    if find_tier(tier).tier is not tier:
        pytest.skip(f"this machine does not give tier {tier}")
    slots = ["--num-slots", "1", "--spare-slots", "0", "--max-sessions", "0"]
    with running_judge(tmp_path_factory.mktemp("judge"), *slots, "--preloads", NAMED, isolation=tier) as server:
        yield server


@pytest.mark.slow
def test_a_named_set_is_listed_after_the_built_in_ones(warm: JudgeProcess) -> None:
    assert warm.http.get("/v1/health").json()["preloads"] == ["bare", "sympy", "sci", "extra"]


def test_a_program_that_imports_a_module_of_it_is_a_fork_of_it(warm: JudgeProcess) -> None:
    code = SHOW_AND_IMPORT.format(module="wave")
    verdict = warm.judge(code=code, expected_output="True\nwave")
    assert (verdict["status"], verdict["stdout"], verdict["stderr"]) == ("accepted", "True\nwave\n", "")
    assert warm.judge(code=code, expected_output="False\nwave")["status"] == "wrong_answer"


@pytest.mark.parametrize("module", ["json", "sympy"])
def test_a_program_without_its_modules_is_no_fork_of_it(warm: JudgeProcess, module: str) -> None:
    verdict = warm.judge(code=SHOW_AND_IMPORT.format(module=module), expected_output=f"False\n{module}")
    assert verdict["status"] == "accepted", verdict


def test_an_error_in_a_fork_of_it_is_reported_as_usual(warm: JudgeProcess) -> None:
    verdict = warm.judge(code="import wave\nwave.open('none')")
    assert (verdict["status"], verdict["exit_code"]) == ("runtime_error", 1)
    assert verdict["stderr"].endswith("FileNotFoundError: [Errno 2] No such file or directory: 'none'\n")


def test_where_nothing_is_forked_no_set_is_listed_and_the_verdict_is_the_same(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "1", "--preloads", NAMED) as cold:
        assert cold.http.get("/v1/health").json()["preloads"] == []
        code = SHOW_AND_IMPORT.format(module="wave")
        assert cold.judge(code=code, expected_output="False\nwave")["status"] == "accepted"
