"""Cancelled submissions still report their use of resources."""

from collections.abc import Iterator

import pytest
from jail_tiers import NAMESPACE_TIERS
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge
from session_client import Session

from code_judge_server.schemas import IsolationTier

DEADLINE_S = 4.0
LEAST_CPU_S = 0.1
"""CPU time that a computing program gets in that time on any machine."""


@pytest.fixture(
    scope="module",
    params=[NAMESPACE_TIERS[0], *(pytest.param(tier, marks=pytest.mark.slow) for tier in NAMESPACE_TIERS[1:])],
)
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    tier: IsolationTier = request.param
    settings = ["--num-slots", "2", "--max-sessions", "1", *WITHOUT_MODULES]
    with running_judge(tmp_path_factory.mktemp("judge"), *settings, isolation=tier) as server:
        yield server


@pytest.mark.slow
def test_a_cancelled_program_reports_its_usage(judge: JudgeProcess) -> None:
    computing = {"id": "computing", "code": "while True: pass"}
    sleeping = {"id": "sleeping", "code": "import time; time.sleep(60)"}
    first, second = judge.judge_batch([computing, sleeping], deadline_s=DEADLINE_S)
    assert (first["status"], second["status"]) == ("cancelled", "cancelled")
    assert first["cpu_time_s"] > LEAST_CPU_S > second["cpu_time_s"]
    assert first["wall_time_s"] > LEAST_CPU_S < second["wall_time_s"]


def test_earlier_test_cases_count_in_the_usage(judge: JudgeProcess) -> None:
    code = "import time\nif input(): time.sleep(60)\nwhile time.process_time() < 0.2: pass"
    tests = [{"stdin": "\n"}, {"stdin": "sleep\n"}]
    (verdict,) = judge.judge_batch([{"id": "two", "code": code, "tests": tests}], deadline_s=DEADLINE_S)
    assert verdict["status"] == "cancelled"
    assert verdict["cpu_time_s"] > LEAST_CPU_S


def test_a_cancelled_cell_reports_its_usage(judge: JudgeProcess) -> None:
    session = Session(judge)
    result = session.cell("while True: pass", deadline_s=DEADLINE_S)
    assert result["status"] == "cancelled"
    assert result["cpu_time_s"] > LEAST_CPU_S
    assert result["wall_time_s"] > LEAST_CPU_S
    session.close()
