"""The wire format is that of the code-judge server, as judge clients of rStar2-Agent speak it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from judge_process import JudgeProcess, running_judge

BATCH_PATHS = ["batch", "long-batch"]
ECHO = {"type": "python", "solution": "import sys\nprint(input())\nprint('e', file=sys.stderr)", "input": "a"}


def post(judge: JudgeProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = judge.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_ping_answers_pong(judge: JudgeProcess) -> None:
    assert judge.http.get("/ping").json() == "pong"


def test_status_reports_queue_and_workers(judge: JudgeProcess) -> None:
    assert judge.http.get("/status").json() == {"queue": 0, "num_workers": 2}


def test_run_answers_the_output(judge: JudgeProcess) -> None:
    result = post(judge, "/run", {"sub_id": "s", **ECHO})
    cost = result.pop("cost")
    assert cost > 0
    assert result == {
        "sub_id": "s", "success": True, "run_success": True, "stdout": "a\n", "stderr": "e\n", "reason": ""
    }  # fmt: skip


def test_judge_leaves_the_output_out(judge: JudgeProcess) -> None:
    result = post(judge, "/judge", {"sub_id": "s", **ECHO, "expected_output": "a"})
    assert set(result) == {"sub_id", "success", "run_success", "cost", "reason"}
    assert result["success"]


@pytest.mark.parametrize("path", ["/run", "/judge"])
def test_a_wrong_answer_ran_but_did_not_succeed(judge: JudgeProcess, path: str) -> None:
    result = post(judge, path, {**ECHO, "expected_output": "b"})
    assert (result["run_success"], result["success"], result["reason"]) == (True, False, "")


@pytest.mark.parametrize("path", ["/run", "/judge"])
def test_a_crash_did_not_run_well(judge: JudgeProcess, path: str) -> None:
    result = post(judge, path, {"type": "python", "solution": "print(input())", "input": "", "expected_output": "a"})
    assert (result["run_success"], result["success"], result["reason"]) == (False, False, "")


def test_a_compile_error_did_not_run_well(judge: JudgeProcess) -> None:
    result = post(judge, "/run", {"type": "cpp", "solution": 'int main(){printf("a")xx;}'})
    assert (result["run_success"], result["reason"]) == (False, "")
    assert "error" in result["stderr"]


def test_cpp_runs(judge: JudgeProcess) -> None:
    solution = '#include <cstdio>\nint main(){printf("a");return 0;}'
    assert post(judge, "/judge", {"type": "cpp", "solution": solution, "expected_output": "a"})["success"]


def test_a_sleeper_is_a_worker_timeout(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "1", "--max-wall-time-s", "1") as judge:
        result = post(judge, "/run", {"type": "python", "solution": "import time; time.sleep(600)"})
    assert (result["run_success"], result["reason"]) == (False, "worker_timeout")
    assert result["stdout"].endswith("Suicide from timeout.\n")
    assert result["cost"] >= 1


def test_math_is_honestly_not_judged(judge: JudgeProcess) -> None:
    result = post(judge, "/judge", {"type": "math", "solution": "1", "expected_output": "1"})
    assert (result["run_success"], result["success"], result["reason"]) == (False, False, "invalid_input")


@pytest.mark.parametrize("kind", BATCH_PATHS)
def test_run_batch_keeps_the_order_and_the_ids(judge: JudgeProcess, kind: str) -> None:
    submissions = [
        {"sub_id": f"s{i}", "type": "python", "solution": "print(input())", "input": str(i), "expected_output": "3"}
        for i in range(6)
    ]
    submissions.insert(2, {"sub_id": "m", "type": "math", "solution": "1"})
    reply = post(judge, f"/run/{kind}", {"sub_id": "b", "type": "batch", "submissions": submissions})
    assert reply["sub_id"] == "b"
    assert [result["sub_id"] for result in reply["results"]] == ["s0", "s1", "m", "s2", "s3", "s4", "s5"]
    assert [result["stdout"] for result in reply["results"]] == ["0\n", "1\n", None, "2\n", "3\n", "4\n", "5\n"]
    assert [result["success"] for result in reply["results"]] == [i == 4 for i in range(7)]


@pytest.mark.parametrize("kind", BATCH_PATHS)
def test_judge_batch_leaves_the_output_out(judge: JudgeProcess, kind: str) -> None:
    reply = post(judge, f"/judge/{kind}", {"type": "batch", "submissions": [ECHO, ECHO]})
    assert reply["sub_id"]
    assert [set(result) for result in reply["results"]] == [{"sub_id", "success", "run_success", "cost", "reason"}] * 2


def test_ids_are_made_up_where_they_are_missing(judge: JudgeProcess) -> None:
    reply = post(judge, "/run/batch", {"type": "batch", "submissions": [ECHO, ECHO]})
    first, second = (result["sub_id"] for result in reply["results"])
    assert first
    assert second
    assert first != second


def test_the_same_id_twice_is_answered_twice(judge: JudgeProcess) -> None:
    twice = [{**ECHO, "sub_id": "s", "input": text} for text in ("a", "b")]
    reply = post(judge, "/run/batch", {"type": "batch", "submissions": twice})
    assert [(result["sub_id"], result["stdout"]) for result in reply["results"]] == [("s", "a\n"), ("s", "b\n")]


def test_unknown_fields_are_ignored(judge: JudgeProcess) -> None:
    assert post(judge, "/run", {**ECHO, "priority": 3, "options": {"a": "b"}})["success"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "python"}, "solution"),
        ({"type": "perl", "solution": ""}, "type"),
        ({"type": "python", "solution": "\0"}, "solution"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(judge: JudgeProcess, body: dict[str, Any], field: str) -> None:
    reply = judge.http.post("/run", json=body)
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field)


@pytest.mark.parametrize("path", ["/run/batch", "/judge/long-batch"])
def test_more_items_than_a_batch_may_hold_is_a_413(judge: JudgeProcess, path: str) -> None:
    assert judge.http.post(path, json={"submissions": [ECHO] * 4097}).status_code == 413


async def test_a_long_batch_that_the_queue_has_no_room_for_waits_and_nothing_is_lost(tmp_path: Path) -> None:
    small = ["--num-slots", "1", "--queue-capacity", "4", "--max-batch-items", "4", "--max-queue-time-s", "0.2"]
    slow = {"type": "python", "solution": "import time; time.sleep(0.1); print(input())"}
    with running_judge(tmp_path, *small) as judge:
        async with httpx.AsyncClient(base_url=judge.url, timeout=100) as http:
            batches = [{"submissions": [slow | {"input": f"{batch}{i}"} for i in range(4)]} for batch in range(4)]
            replies = await asyncio.gather(*(http.post("/run/long-batch", json=batch) for batch in batches))
    outputs = [[result["stdout"] for result in reply.json()["results"]] for reply in replies]
    assert outputs == [[f"{batch}{i}\n" for i in range(4)] for batch in range(4)]
