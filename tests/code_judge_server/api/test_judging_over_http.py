"""Test cases, checkers, files and limits in their JSON form, in both directions."""

import base64
from typing import Any

import pytest
from judge_process import JudgeProcess

CONTENT = bytes(range(256)) * 8
TEXT = base64.b64encode(CONTENT).decode()
TWICE = "open('b', 'wb').write(open('a/a', 'rb').read() * 2)"


def test_files_travel_in_base64_without_line_breaks(judge: JudgeProcess) -> None:
    for _ in range(2):  # the second is answered from the verdict cache
        verdict = judge.judge(id="files", code=TWICE, files={"a/a": TEXT}, collect=["b", "c"])
        assert verdict["files"] == {"b": base64.b64encode(CONTENT * 2).decode()}


def test_equal_ids_with_other_files_are_other_submissions(judge: JudgeProcess) -> None:
    code = "print(open('a').read())"
    replies = [judge.judge(id="same", code=code, files={"a": content})["stdout"] for content in ("YQ==", "Yg==")]
    assert replies == ["a\n", "b\n"]


def test_each_test_case_has_its_result(judge: JudgeProcess) -> None:
    tests = [{"stdin": "1", "expected_output": "1.0000001"}, {"stdin": "2", "expected_output": "3"}, {"stdin": "3"}]
    verdict = judge.judge(code="print(input())", tests=tests, checker={"kind": "floats"}, stop_at_first_failure=False)
    assert (verdict["status"], verdict["stdout"]) == ("wrong_answer", "2\n")
    assert [run["status"] for run in verdict["tests"]] == ["accepted", "wrong_answer", "accepted"]
    assert all(run["wall_time_s"] > 0 for run in verdict["tests"])


@pytest.mark.parametrize(
    ("kind", "output", "expected", "status"),
    [
        ("exact", "a\n", "a", "wrong_answer"),
        ("lines", "a \r\nb\n", "a\nb", "accepted"),
        ("stripped", "a\n", "a", "accepted"),
        ("stripped", "a \nb", "a\nb", "wrong_answer"),
        ("tokens", "a\tb\n", "a b", "accepted"),
        ("floats", "0.5000000001", ".5", "accepted"),
    ],
)
def test_the_checker_is_chosen_by_its_kind(
    judge: JudgeProcess, kind: str, output: str, expected: str, status: str
) -> None:
    code = f"print({output!r}, end='')"
    assert judge.judge(code=code, expected_output=expected, checker={"kind": kind})["status"] == status


def test_limits_that_hold_are_echoed(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="", limits={"cpu_time_s": 100, "max_tasks": 3})
    health = judge.http.get("/v1/health").json()
    assert verdict["limits"]["cpu_time_s"] == health["max_limits"]["cpu_time_s"] == 2
    assert verdict["limits"]["max_tasks"] == 3
    assert verdict["limits"]["disk_bytes"] == health["default_limits"]["disk_bytes"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"checker": {"kind": "program", "code": "", "language": "cobol"}}, "checker.language"),
        ({"checker": {"kind": "program"}}, "checker"),
        ({"checker": {"kind": "floats", "absolute_tolerance": -1}}, "checker.absolute_tolerance"),
        ({"files": {"main.py": ""}}, "files.main.py"),
        ({"files": {"a": "?"}}, "files.a"),
        ({"collect": ["/etc/passwd"]}, "collect.0"),
        ({"tests": [{}] * 1025}, "tests"),
        ({"tests": [{"output": ""}]}, "tests.0.output"),
    ],
)
def test_a_wrong_field_is_named(judge: JudgeProcess, change: dict[str, Any], field: str) -> None:
    reply = judge.http.post("/v1/submissions", json={"id": "a", "code": "", **change})
    assert reply.status_code == 400
    assert reply.json()["errors"][0]["field"] == field
