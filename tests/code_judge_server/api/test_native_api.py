import pytest
from judge_process import JudgeProcess

from code_judge_server.schemas import Health, VerdictBatch

CPP_ECHO = "#include <iostream>\nint main() { int x; std::cin >> x; std::cout << x + 1; }"


def test_a_program_with_the_expected_output_is_accepted(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="print(int(input()) + 1)", stdin="4", expected_output="5")
    assert (verdict["status"], verdict["exit_code"], verdict["signal"]) == ("accepted", 0, None)
    assert verdict["stdout"] == "5\n"
    assert 0 < verdict["cpu_time_s"] < 1
    assert verdict["wall_time_s"] > 0
    assert 4_000_000 < verdict["peak_memory_bytes"] < 100_000_000


def test_every_verdict_carries_the_isolation_tier(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="")
    assert (verdict["isolation"], verdict["memory_enforcement"]) == ("D", "sampled")


def test_output_is_compared_after_strip(judge: JudgeProcess) -> None:
    assert judge.judge(code="print(' 5 ')", expected_output="\n5\n\n")["status"] == "accepted"
    assert judge.judge(code="print(5, 5)", expected_output="5  5")["status"] == "wrong_answer"


def test_other_exit_codes_and_signals_are_runtime_errors(judge: JudgeProcess) -> None:
    exit_3 = judge.judge(code="raise SystemExit(3)")
    assert (exit_3["status"], exit_3["exit_code"], exit_3["signal"]) == ("runtime_error", 3, None)
    abort = judge.judge(code="import os; os.abort()")
    assert (abort["status"], abort["exit_code"], abort["signal"]) == ("runtime_error", None, 6)


def test_an_expected_output_does_not_excuse_a_failing_exit_code(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="print(5); raise SystemExit(1)", expected_output="5")
    assert verdict["status"] == "runtime_error"


def test_cpp_is_compiled_and_run(judge: JudgeProcess) -> None:
    verdict = judge.judge(language="cpp", code=CPP_ECHO, stdin="4", expected_output="5")
    assert verdict["status"] == "accepted"
    assert verdict["cpu_time_s"] < 0.2  # without compiling


def test_cpp_that_does_not_compile_is_a_compile_error(judge: JudgeProcess) -> None:
    verdict = judge.judge(language="cpp", code="int main() { return x; }")
    assert verdict["status"] == "compile_error"
    assert "main.cpp:1:21: error:" in verdict["stderr"]


def test_a_tracebacks_path_is_the_same_in_every_run(judge: JudgeProcess) -> None:
    verdicts = [judge.judge(code="print(__file__)\n1/0") for _ in range(3)]
    assert {verdict["stdout"] for verdict in verdicts} == {"/sandbox/main.py\n"}
    assert len({verdict["stderr"] for verdict in verdicts}) == 1
    assert 'File "/sandbox/main.py", line 2, in <module>' in verdicts[0]["stderr"]


def test_the_order_of_a_set_of_strings_is_the_same_in_every_run(judge: JudgeProcess) -> None:
    code = "print({str(i) for i in range(50)})"
    assert judge.judge(code=code)["stdout"] == judge.judge(code=code)["stdout"]


def test_verdicts_keep_the_order_of_the_submissions(judge: JudgeProcess) -> None:
    submissions = [
        {"id": f"s{i}", "language": "python", "code": f"import time; time.sleep({0.1 * (i % 2)}); print({i})"}
        for i in range(12)
    ]
    verdicts = judge.judge_batch(submissions)
    assert [(verdict["id"], verdict["stdout"]) for verdict in verdicts] == [(f"s{i}", f"{i}\n") for i in range(12)]


def test_the_reply_is_a_verdict_batch(judge: JudgeProcess) -> None:
    reply = judge.http.post(
        "/v1/submissions/batch", json={"submissions": [{"id": "a", "language": "python", "code": ""}]}
    )
    assert VerdictBatch.model_validate_json(reply.content).verdicts[0].id == "a"


def test_queue_time_is_reported(judge: JudgeProcess) -> None:
    sleeper = {"language": "python", "code": "import time; time.sleep(0.3)"}
    verdicts = judge.judge_batch([{"id": str(i), **sleeper} for i in range(3)])
    first, second, third = (verdict["queue_time_s"] for verdict in verdicts)
    assert third > min(first, second) + 0.29


def test_at_the_deadline_running_submissions_are_cancelled_and_waiting_ones_time_out(judge: JudgeProcess) -> None:
    sleeper = {"language": "python", "code": "import time; time.sleep(50)"}
    verdicts = judge.judge_batch([{"id": str(i), **sleeper} for i in range(3)], deadline_s=2)
    assert [verdict["status"] for verdict in verdicts] == ["cancelled", "cancelled", "queue_timeout"]
    assert judge.judge(code="print(1)")["queue_time_s"] < 40


def test_limits_of_a_submission_are_kept(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="while True: pass", limits={"cpu_time_s": 0.2})
    assert verdict["status"] == "time_limit_exceeded"
    assert verdict["cpu_time_s"] < 1
    assert judge.judge(code="print('x' * 11)", limits={"output_bytes": 11})["status"] == "output_limit_exceeded"
    assert judge.judge(code="print('x' * 10)", limits={"output_bytes": 11})["status"] == "accepted"


def test_health_describes_the_server(judge: JudgeProcess) -> None:
    health = Health.model_validate_json(judge.http.get("/v1/health").content)
    assert (health.isolation, health.num_slots, health.queue_length) == ("D", 2, 0)
    assert health.max_limits.wall_time_s == 60.0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "red"}, "submissions.0.colour"),
        ({"language": "cobol"}, "submissions.0.language"),
        ({"code": None}, "submissions.0.code"),
        ({"code": "print(1)\0"}, "submissions.0.code"),
        ({"id": "a\0"}, "submissions.0.id"),
        ({"limits": {"cpu_time_s": -1}}, "submissions.0.limits.cpu_time_s"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(judge: JudgeProcess, change: dict[str, object], field: str) -> None:
    submission = {"id": "a", "language": "python", "code": "", **change}
    reply = judge.http.post("/v1/submissions/batch", json={"submissions": [submission]})
    assert reply.status_code == 400
    assert [error["field"] for error in reply.json()["errors"]] == [field]
    assert field in reply.json()["detail"]


def test_the_same_id_twice_in_a_batch_is_a_400(judge: JudgeProcess) -> None:
    submission = {"id": "a", "language": "python", "code": ""}
    reply = judge.http.post("/v1/submissions/batch", json={"submissions": [submission, submission]})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, "submissions.1.id")


def test_an_empty_batch_is_a_400(judge: JudgeProcess) -> None:
    assert judge.http.post("/v1/submissions/batch", json={"submissions": []}).status_code == 400


def test_more_items_than_a_batch_may_hold_is_a_413(judge: JudgeProcess) -> None:
    submissions = [{"id": str(i), "language": "python", "code": ""} for i in range(4097)]
    reply = judge.http.post("/v1/submissions/batch", json={"submissions": submissions})
    assert reply.status_code == 413
    assert "4096" in reply.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"submissions": [{"id": "a", "language": "python", "code": "\\ud800"}]}',
        b'{"submissions": ' + b"[" * 4_000 + b"]" * 4_000 + b"}",
        b'{"submissions": [{"id": "a", "language": "python", "code": "\xff"}]}',
        b"nonsense",
        b"",
    ],
    ids=["lone surrogate", "deep nesting", "not UTF-8", "not JSON", "empty"],
)
def test_hostile_bodies_are_a_400(judge: JudgeProcess, body: bytes) -> None:
    for path in ("/v1/submissions/batch", "/run", "/run/batch"):
        reply = judge.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400, path
        assert reply.json()["detail"]
    assert judge.judge(code="print(1)")["status"] == "accepted"


def test_files_without_room_are_flagged(judge: JudgeProcess) -> None:
    code = "open('large', 'wb').write(bytes(17 * 2**20)); open('small', 'w').write('x')"
    verdict = judge.judge(code=code, collect=["large", "none", "small"])
    assert (verdict["files"], verdict["files_truncated"]) == ({"small": "eA=="}, True)
    verdict = judge.judge(code="", collect=["none"])
    assert (verdict["files"], verdict["files_truncated"]) == ({}, False)
