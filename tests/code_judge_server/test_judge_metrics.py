"""The metrics and the log."""

import json
import uuid
from pathlib import Path

import httpx
from judge_process import JudgeProcess, running_judge, wait_until
from prometheus_client.parser import text_string_to_metric_families


def samples(judge: JudgeProcess) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by its name and label values."""
    page = judge.http.get("/metrics")
    assert page.status_code == 200
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


def test_metrics_count_verdicts_and_requests(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "2") as judge:
        judge.judge(code="print(1)")
        judge.judge(code="raise SystemExit(1)")
        twice = {"id": uuid.uuid4().hex, "code": "print(2)"}
        for _ in range(2):
            judge.http.post("/v1/submissions", json=twice)
        judge.http.post("/v1/submissions", json={})
        judge.http.get(f"/nowhere/{uuid.uuid4()}")
        values = samples(judge)
    assert values["code_judge_verdicts_total", "accepted"] == 3
    assert values["code_judge_verdicts_total", "runtime_error"] == 1
    assert values["code_judge_verdicts_total", "queue_timeout"] == 0
    assert values["code_judge_shared_verdicts_total",] == 1
    assert values["code_judge_queue_time_seconds_count",] == 3
    assert 0 < values["code_judge_program_wall_time_seconds_sum",] < 10
    assert values["code_judge_http_requests_total", "/v1/submissions", "200", "POST"] == 2
    assert values["code_judge_http_requests_total", "/v1/submissions", "400", "POST"] == 1
    assert values["code_judge_http_requests_total", "404", "any", "other"] == 1
    assert (values["code_judge_slots",], values["code_judge_running",], values["code_judge_queue_length",]) == (2, 0, 0)
    assert values["code_judge_rebuilt_slots_total",] == 0
    assert values["code_judge_draining",] == 0
    assert any(name[0] == "code_judge_server_info" and "D" in name for name in values)
    assert values["process_resident_memory_bytes",] > 0


def test_metrics_need_the_token_and_probes_do_not(tmp_path: Path) -> None:
    with running_judge(
        tmp_path, environment={"CODE_JUDGE_TOKEN": "secret"}, headers={"Authorization": "Bearer secret"}
    ) as judge:
        for path, status in (
            ("/metrics", 401),
            ("/v1/health", 401),
            ("/openapi.json", 401),
            ("/v1/ready", 200),
            ("/ping", 200),
        ):
            assert httpx.get(judge.url + path, timeout=100).status_code == status, path
            assert judge.http.get(path).status_code == 200


def test_log_lines_are_json_and_hold_nothing_of_the_programs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    secret = uuid.uuid4().hex
    (tmp_path / "work").mkdir()
    with running_judge(tmp_path / "work", "--log-format", "json", stderr_to=log) as judge:
        codes = [f"print('{secret}')", f"raise ValueError('{secret}')"]
        judge.judge_batch([{"id": f"{secret[:8]}-{n}", "code": code} for n, code in enumerate(codes)])
        judge.http.post("/v1/submissions", json={"id": "s", "code": secret, "wrong": secret})
        wait_until(lambda: "/v1/submissions/batch" in log.read_text())  # written when the reply is
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    request = next(line for line in lines if line["message"].startswith("/v1/submissions/batch"))
    assert request["statuses"] == {"accepted": 1, "runtime_error": 1}
    assert request["client"] == "127.0.0.1"
    assert secret not in log.read_text()
