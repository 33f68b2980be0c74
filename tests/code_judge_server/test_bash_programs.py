"""Programs in bash, by the native endpoint, with the best isolation and with none."""

import shutil
from collections.abc import Iterator

import pytest
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge

from code_judge_server.jail.probe.canaries import find_tier

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")

DOUBLE = "read -r number\necho $((number * 2))\n"


@pytest.fixture(scope="module", params=["best", "D"])
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, judge: JudgeProcess
) -> Iterator[JudgeProcess]:
    best = find_tier().tier
    if request.param == "D":
        yield judge
    elif best == "D":
        pytest.skip("this machine isolates nothing")
    else:
        slots = ["--num-slots", "1", "--spare-slots", "0", "--max-sessions", "0", *WITHOUT_MODULES]
        with running_judge(tmp_path_factory.mktemp("judge"), *slots, isolation=best) as isolated:
            yield isolated


def test_bash_is_among_the_languages(server: JudgeProcess) -> None:
    assert "bash" in server.http.get("/v1/health").json()["languages"]


def test_a_script_with_the_expected_output_is_accepted(server: JudgeProcess) -> None:
    verdict = server.judge(language="bash", code=DOUBLE, stdin="21\n", expected_output="42")
    assert (verdict["status"], verdict["exit_code"], verdict["stdout"]) == ("accepted", 0, "42\n")
    assert verdict["compile_time_s"] == 0


def test_a_script_that_prints_something_else_is_a_wrong_answer(server: JudgeProcess) -> None:
    verdict = server.judge(language="bash", code=DOUBLE, stdin="20\n", expected_output="42")
    assert (verdict["status"], verdict["exit_code"], verdict["stdout"]) == ("wrong_answer", 0, "40\n")


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("echo out; echo why >&2; exit 3", 3, "why\n"),
        ("set -e\nfalse\necho out", 1, ""),
        ("no_such_command_at_all", 127, "main.sh: line 1: no_such_command_at_all: command not found\n"),
        ("if then", 2, "main.sh: line 1: syntax error near unexpected token `then'\nmain.sh: line 1: `if then'\n"),
    ],
    ids=["exit", "set -e", "unknown command", "syntax error"],
)
def test_another_exit_code_is_a_runtime_error_that_reports_it(
    server: JudgeProcess, code: str, exit_code: int, said: str
) -> None:
    verdict = server.judge(language="bash", code=code, expected_output="out")
    assert (verdict["status"], verdict["exit_code"], verdict["signal"]) == ("runtime_error", exit_code, None)
    assert verdict["stderr"] == said


def test_a_script_that_kills_itself_is_reported_with_its_signal(server: JudgeProcess) -> None:
    verdict = server.judge(language="bash", code="kill -SEGV $$")
    assert (verdict["status"], verdict["exit_code"], verdict["signal"]) == ("runtime_error", None, 11)


def test_a_script_that_loops_is_ended_by_its_cpu_time(server: JudgeProcess) -> None:
    verdict = server.judge(language="bash", code="while :; do :; done", limits={"cpu_time_s": 0.3})
    assert verdict["status"] == "time_limit_exceeded"
    assert 0.3 <= verdict["cpu_time_s"] < 1
