"""The dashboard's API over runs that this file writes."""

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agentrl.dashboard.app import Dashboard
from agentrl.dashboard.runs import open_runs
from agentrl.errors import ConfigError
from agentrl.observability.metrics_file import MetricsFile
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Failure, FailureClass, Termination
from tests.dashboard.run_folder import prompt, trajectory, write_run, write_step, write_trajectories

LOCAL = "http://127.0.0.1"
STEP = "/api/runs/run/trajectories?file=step_000001"


def client_of(*paths: Path, token: str | None = None, base_url: str = LOCAL) -> TestClient:
    return TestClient(Dashboard(open_runs(list(paths))).build(token=token), base_url=base_url, follow_redirects=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def client(run_dir: Path) -> Iterator[TestClient]:
    with client_of(run_dir) as client:
        yield client


def json_of(client: TestClient, path: str) -> Any:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no run"):
        open_runs([tmp_path])


def test_the_status_follows_lock_and_result(tmp_path: Path):
    run = write_run(tmp_path / "run", finished=False)

    def status() -> str:
        with client_of(run) as client:
            json_of(client, "/api/runs/run/steps")  # after the first update
            return json_of(client, "/api/runs")[0]["status"]

    assert status() == "stopped"
    with (run / ".lock").open("w") as lock:
        assert status() == "stopped"
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert status() == "running"
    (run / "result.json").write_text("{}")
    assert status() == "finished"


def test_metrics_are_columns_with_null_where_there_is_no_value(client: TestClient):
    found = json_of(
        client, "/api/runs/run/metrics?name=rollout/reward_mean&name=rollout/tool_success_rate&name=unknown"
    )
    assert found["steps"] == [1, 2]
    assert found["series"] == {"rollout/reward_mean": [0.51, 0.52], "rollout/tool_success_rate": [None, None]}
    assert found["latest"] == {"rollout/reward_mean": [2, 0.52], "time/step_s": [2, 2.0]}


def test_metrics_of_a_run_that_was_taken_back_are_read_anew(run_dir: Path):
    runs = open_runs([run_dir])
    table = runs["run"].metrics
    assert table.update()
    assert not table.update()
    MetricsFile(run_dir / "metrics.jsonl").take_back(after_step=1)
    MetricsFile(run_dir / "metrics.jsonl").append(2, {"new": 1.0})
    assert table.update()
    assert table.series(["new", "time/step_s"]) == {"new": [None, 1.0], "time/step_s": [2.0, None]}


def test_a_torn_line_of_metrics_waits_for_its_end(run_dir: Path):
    table = open_runs([run_dir])["run"].metrics
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rollout')
        file.flush()
        table.update()
        assert table.steps.tolist() == [1, 2]
        file.write('/reward_mean": 0.75}\n')
    table.update()
    assert table.series(["rollout/reward_mean"])["rollout/reward_mean"] == [0.51, 0.52, 0.75]


def test_a_damaged_trajectory_file_is_reported_and_the_rest_is_shown(run_dir: Path):
    (run_dir / "trajectories" / "step_000003.atr").write_bytes(b"no trajectories at all")
    with client_of(run_dir) as client:
        json_of(client, "/api/runs/run/steps")
        [state] = json_of(client, "/api/runs")
    assert "step_000003.atr: not a trajectory file" in state["problem"]
    assert state["last_step"] == 2


@pytest.mark.parametrize(
    ("query", "samples"),
    [
        ("", ["p0-0", "p0-1", "p0-2", "p0-3", "p1-0", "p1-1", "p1-2", "p1-3"]),
        ("&min_reward=0.5", ["p0-1", "p0-3", "p1-1", "p1-3"]),
        ("&max_reward=0.5&text=P1", ["p1-0", "p1-2"]),
        ("&failed_calls=true", ["p0-2", "p1-2"]),
        ("&termination=max_turns", []),
        ("&sort=wall_time_s&descending=true&text=p0", ["p0-3", "p0-2", "p0-1", "p0-0"]),
        ("&text=%25", []),
    ],
)
def test_the_trajectories_of_a_step_are_filtered_and_sorted(client: TestClient, query: str, samples: list[str]):
    page = json_of(client, STEP + query)
    assert [row["trajectory_id"].removeprefix("1-") for row in page["rows"]] == samples
    assert page["count"] == len(samples)
    assert page["next"] is None


def test_pages_of_a_live_run_neither_repeat_nor_miss_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentrl.dashboard.queries.PAGE_ROWS", 3)
    run = write_run(tmp_path / "run", num_steps=1)
    lost = {"reward": None, "termination": Termination.INFRA_ERROR}
    write_trajectories(run, 1, [trajectory(1, 9, sample, **lost) for sample in range(2)])
    with client_of(run) as client:
        seen, cursor = [], ""
        while cursor is not None:
            page = json_of(client, f"{STEP}&sort=reward&descending=true&cursor={cursor}")
            seen += [row["trajectory_id"] for row in page["rows"]]
            cursor = page["next"]
            write_trajectories(run, 1, [trajectory(1, 5, len(seen), reward=0.5)])
            client.portal.call(client.app.state.runs["run"].update)  # type: ignore[union-attr]
    assert len(seen) == len(set(seen)) == 10
    assert seen[-2:] == ["1-p9-1", "1-p9-0"]


def test_a_step_is_summed_up_by_group(client: TestClient):
    found = json_of(client, "/api/runs/run/summary?file=step_000002")
    assert [group["prompt_id"] for group in found["groups"]] == ["p0", "p1"]
    assert [reward for _, reward in found["groups"][0]["rewards"]] == [0.0, 1.0, 0.0, 1.0]
    assert (found["num_trajectories"], found["reward_mean"], found["num_failed_calls"]) == (8, 0.5, 2)
    assert found["terminations"] == {"answered": 8}
    assert sum(found["histograms"]["seconds"]["counts"]) == 8


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/other/steps",
        "/api/runs/run/summary?file=../../etc/passwd",
        f"{STEP}&sort=reward;drop",
        f"{STEP}&cursor=nonsense",
    ],
)
def test_a_wrong_request_is_answered_with_its_reason(client: TestClient, path: str):
    response = client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]


def test_pages_may_load_nothing_from_elsewhere_and_run_no_inline_script(client: TestClient):
    for path in ("/", "/static/app.js", "/api/runs", "/nowhere"):
        policy = client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy
    assert (
        "access-control-allow-origin" not in client.get("/api/runs", headers={"Origin": "http://evil.example"}).headers
    )


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8600", "[::1", ""])
def test_on_loopback_a_name_that_is_not_this_machine_is_refused(client: TestClient, host: str):
    assert client.get("/api/runs", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8600", "127.0.0.1", "[::1]:8600"])
def test_on_loopback_names_of_this_machine_are_answered(client: TestClient, host: str):
    assert client.get("/api/runs", headers={"Host": host}).status_code == 200


def test_elsewhere_every_request_needs_the_token(run_dir: Path):
    with client_of(run_dir, token="secret", base_url="http://gpu-7:8600") as client:
        for path in ("/", "/static/app.js", "/api/runs", "/api/runs?token=secre", "/api/runs?token=%FF"):
            assert client.get(path).status_code == 401
        assert client.get("/api/runs", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert client.get("/api/runs", headers={"Authorization": "Bearer wrong"}).status_code == 401
        first = client.get("/?token=secret")
        assert (first.status_code, first.headers["location"]) == (303, "/")
        assert "HttpOnly" in first.headers["set-cookie"]
        assert client.get("/api/runs").status_code == 200  # by the cookie


def test_runs_of_one_name_have_keys_of_their_own(tmp_path: Path):
    paths = [write_run(tmp_path / folder / "run", num_steps=1) for folder in "ab"]
    assert list(open_runs(paths)) == ["run", "run-2"]


def test_new_steps_are_seen_by_the_next_update(run_dir: Path):
    with client_of(run_dir) as client:
        assert json_of(client, "/api/runs/run/steps")["files"] == ["step_000001", "step_000002"]
        write_step(run_dir, 3)
        lost = Failure(failure_class=FailureClass.ENGINE, message="died")
        samples = [trajectory(3, 7, 0, reward=None, failures=(lost,), termination=Termination.INFRA_ERROR)]
        write_trajectories(run_dir, 3, samples, [prompt(7)])
        client.portal.call(client.app.state.runs["run"].update)  # type: ignore[union-attr]
        assert json_of(client, "/api/runs/run/steps")["files"][-1] == "step_000003"
        assert json_of(client, "/api/runs")[0]["num_trajectories"] == 25
        failed = json_of(client, "/api/runs/run/trajectories?failure_class=engine&failure_cause=died")
        assert [row["trajectory_id"] for row in failed["rows"]] == ["3-p7-0"]


def test_trajectories_have_their_use_in_the_update(run_dir: Path):
    store = TrajectoryStore(run_dir)
    store.record_fates(1, {"trained": ["1-p0-0", "1-p0-1"], "not_drawn": ["1-p0-2"]})
    store.append(1, [trajectory(1, 0, 0)], validation=True)
    with client_of(run_dir) as client:
        rows = json_of(client, f"{STEP}&sort=fate&descending=true&text=p0")["rows"]
        assert [(row["trajectory_id"], row["fate"]) for row in rows] == [
            ("1-p0-1", "trained"),
            ("1-p0-0", "trained"),
            ("1-p0-2", "not_drawn"),
            ("1-p0-3", None),
        ]
        assert [row["fate"] for row in json_of(client, f"{STEP}&fate=not_drawn")["rows"]] == ["not_drawn"]
        assert json_of(client, "/api/runs/run/summary?file=step_000001")["fates"] == {"not_drawn": 1, "trained": 2}
        assert json_of(client, "/api/runs/run/summary?file=validation_000001")["fates"] == {}
        validated = json_of(client, "/api/runs/run/trajectories?file=validation_000001")["rows"]
        assert [row["fate"] for row in validated] == [None]
        assert json_of(client, "/api/runs/run/steps")["files"] == ["step_000001", "step_000002", "validation_000001"]
