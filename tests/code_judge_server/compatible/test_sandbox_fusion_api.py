"""Parts of SandboxFusion's format that its own client does not use: verl's requests, and invalid requests."""

import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from judge_process import JudgeProcess, running_judge
from scripted_executor import ScriptedExecutor, queue_on
from starlette.testclient import TestClient

from code_judge_server.api.http_errors import install_error_handlers
from code_judge_server.compatible.sandbox_fusion_api import _has_killed_itself, sandbox_fusion_router
from code_judge_server.languages import offered_languages
from code_judge_server.sandbox.executor import JobLimits
from code_judge_server.schemas import IsolationTier, Verdict, VerdictStatus
from code_judge_server.settings import Settings


def test_ping_answers_pong(judge: JudgeProcess) -> None:
    assert judge.http.get("/v1/ping").json() == "pong"


def verl_payload(**change: Any) -> dict[str, Any]:
    """Return the body that `verl.utils.reward_score.sandbox_fusion` sends."""
    return {
        "compile_timeout": 10, "run_timeout": 60, "code": "print(int(input()) + 1)", "stdin": "41", "language": "python",
        "memory_limit_MB": 1024, "files": {}, "fetch_files": [],
    } | change  # fmt: skip


def test_verls_request_is_answered_as_it_reads_it(judge: JudgeProcess) -> None:
    reply = judge.http.post("/run_code", json=verl_payload())
    answer = reply.json()
    assert (reply.status_code, answer["status"], answer["compile_result"]) == (200, "Success", None)
    assert (answer["run_result"]["status"], answer["run_result"]["stdout"]) == ("Finished", "42\n")


def test_the_memory_limit_is_megabytes_of_the_program(judge: JudgeProcess) -> None:
    code = "x = b'x' * 100_000_000\nimport time; time.sleep(1); print(len(x))"
    assert judge.http.post("/run_code", json=verl_payload(code=code)).json()["status"] == "Success"
    result = judge.http.post("/run_code", json=verl_payload(code=code, memory_limit_MB=64)).json()
    assert (result["status"], result["run_result"]["return_code"], result["run_result"]["status"]) == (
        "Failed", -9, "Finished"
    )  # fmt: skip


def test_a_time_limit_has_no_return_code(judge: JudgeProcess) -> None:
    code = "import time; print('up', flush=True); time.sleep(60)"
    result = judge.http.post("/run_code", json=verl_payload(code=code, run_timeout=2)).json()["run_result"]
    assert (result["status"], result["return_code"], result["stdout"]) == ("TimeLimitExceeded", None, "up\n")


def test_compiler_output_is_in_its_own_result(judge: JudgeProcess) -> None:
    answer = judge.http.post("/run_code", json=verl_payload(code="int main( {", language="cpp")).json()
    assert (answer["status"], answer["run_result"]) == ("Failed", None)
    assert (answer["compile_result"]["status"], answer["compile_result"]["return_code"]) == ("Finished", 1)
    assert "main.cpp" in answer["compile_result"]["stderr"]


def test_a_compiled_program_has_both_results(judge: JudgeProcess) -> None:
    answer = judge.http.post("/run_code", json=verl_payload(code="int main() { return 3; }", language="cpp")).json()
    assert (answer["status"], answer["compile_result"]["return_code"], answer["run_result"]["return_code"]) == (
        "Failed", 0, 3
    )  # fmt: skip
    assert answer["compile_result"]["execution_time"] > 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"code": None}, "code"),
        ({"code": "\0"}, "code"),
        ({"run_timeout": 0}, "run_timeout"),
        ({"compile_timeout": -1}, "compile_timeout"),
        ({"files": {"../a": ""}}, "files.../a.[key]"),
        ({"files": {"a": "YQ"}}, "files.a"),
        ({"files": {"./a": "", "a/b": ""}}, "body"),
        ({"files": {"main.py": ""}}, "files.main.py"),
        ({"fetch_files": ["/etc/passwd"]}, "fetch_files.0"),
        ({"memory_limit_MB": 10**30}, "memory_limit_MB"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(judge: JudgeProcess, change: dict[str, Any], field: str) -> None:
    reply = judge.http.post("/run_code", json=verl_payload(**change))
    assert (reply.status_code, [error["field"] for error in reply.json()["errors"]]) == (400, [field])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kernel": "ir"}, "kernel"),
        ({"cell_timeout": -1}, "cell_timeout"),
        ({"total_timeout": 0}, "total_timeout"),
        ({"cells": [""] * 257}, "cells"),
        ({"files": {".cells": ""}}, "files"),
        ({"files": {"./.cells/1.py": ""}}, "files"),
    ],
)
def test_a_wrong_field_of_a_notebook_is_named(judge: JudgeProcess, change: dict[str, Any], field: str) -> None:
    reply = judge.http.post("/run_jupyter", json={"cells": ["1"], **change})
    assert (reply.status_code, [error["field"] for error in reply.json()["errors"]]) == (400, [field])


def test_overload_is_a_504_which_verl_retries(tmp_path: Path) -> None:
    slots = ["--num-slots", "1", "--spare-slots", "0", "--max-queue-time-s", "0.5", "--max-cpu-time-s", "1.5"]
    with running_judge(tmp_path, *slots) as judge:
        busy = threading.Thread(
            target=judge.http.post, args=("/run_code",), kwargs={"json": verl_payload(code="while True: pass")}
        )
        busy.start()
        judge.wait_until_running()
        reply = judge.http.post("/run_code", json=verl_payload())
        busy.join()
    assert reply.status_code == 504
    assert "max_queue_time_s" in reply.json()["detail"]


def test_a_notebook_is_late_at_its_wall_clock_although_it_used_as_much_cpu_time() -> None:
    verdict = Verdict(
        id="a",
        status=VerdictStatus.RUNTIME_ERROR,
        signal=9,
        cpu_time_s=1.0,
        wall_time_s=1.0,
        isolation=IsolationTier.D,
        memory_enforcement="sampled",
    )
    limits = JobLimits(cpu_time_s=10.0, wall_time_s=1.0, memory_bytes=1, output_bytes=1, max_tasks=1, disk_bytes=1)
    assert _has_killed_itself(verdict, limits)


def test_paths_in_mnt_are_refused_where_the_server_shows_a_folder_of_its_own_in_it() -> None:
    settings = Settings().model_copy(update={"read_only_paths": [Path("/mnt/data")]})
    languages = offered_languages({})
    app = FastAPI()
    app.include_router(sandbox_fusion_router(settings, queue_on(ScriptedExecutor()), languages, IsolationTier.A))
    install_error_handlers(app)
    client = TestClient(app)
    for path, status in {"/mnt/out": 400, "/sandbox/out": 200, "out": 200}.items():
        reply = client.post("/run_code", json=verl_payload(fetch_files=[path]))
        assert reply.status_code == status, reply.text
        assert ("shows `/mnt/data` to programs. Use relative paths" in reply.text) == (status == 400)
