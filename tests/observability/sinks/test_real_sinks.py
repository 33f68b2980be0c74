"""The libraries themselves, offline; a process for each, since they keep state and read their environment at import."""

import importlib
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Rows = list[tuple[int, float]]
EXPECTED = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (3, 103.0), (4, 104.0)]
"""All keep both rows of the repeated step: W&B and SwanLab in a file of each process."""


def rows_of_trackio(folder: Path) -> Rows:
    with sqlite3.connect(folder / "trackio" / "tested.db") as database:
        rows = database.execute("select step, metrics, run_id, run_name from metrics order by id").fetchall()
    assert len({row[2] for row in rows}) == 1
    assert rows[0][3] == f"{folder.name}-{(folder / 'run_id').read_text()[:6]}"
    assert json.loads(rows[0][1])["reward/odd name @1"] == 1.0
    assert "a/absent" not in json.loads(rows[0][1])
    return [(row[0], json.loads(row[1])["rollout/value"]) for row in rows]


def rows_of_mlflow(folder: Path) -> Rows:
    client = importlib.import_module("mlflow").MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("tested").experiment_id])
    assert (run.info.run_name, run.info.status) == (folder.name, "FINISHED")
    assert (run.data.tags["group"], run.data.tags["a tag"], run.data.params["run.seed"]) == ("a group", "true", "7")
    assert set(run.data.metrics) == {"rollout/value", "reward/odd name _1"}
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "rollout/value")]


def rows_of_wandb(folder: Path) -> Rows:
    protocol = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows: Rows = []
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        assert file.stem == f"run-{(folder / 'run_id').read_text()}"
        for content in log_records(file):
            record = protocol.Record.FromString(content)
            if record.WhichOneof("record_type") == "history":
                values = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                rows.append((int(values["_step"]), float(values["rollout/value"])))
    return rows


def rows_of_swanlab(folder: Path) -> Rows:
    files = sorted((folder / "swanlab").glob("run-*/*.swanlab"))
    assert {file.stem for file in files} == {f"run-{(folder / 'run_id').read_text()}"}
    protocol = importlib.import_module("swanlab.proto.swanlab.record.v1.record_pb2")
    records = [protocol.Record.FromString(content) for file in files for content in log_records(file)]
    return [(r.scalar.step, r.scalar.value.number) for r in records if r.scalar.key == "rollout/value"]


def log_records(file: Path) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, with a header of seven bytes before the first block."""
    content, position, record = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", content[position : position + 7])
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.parametrize(
    ("sink", "rows_of"),
    [
        ("trackio", rows_of_trackio),
        ("mlflow", rows_of_mlflow),
        ("wandb", rows_of_wandb),
        ("swanlab", rows_of_swanlab),
    ],
)
def test_a_resumed_run_goes_on_in_the_same_run_of_the_tracker(
    sink: str, rows_of: Callable[[Path], Rows], tmp_path: Path
) -> None:
    pytest.importorskip(sink, reason=f'pip install "agentrl[{sink}]"')
    folder = tmp_path / "my_run"
    folder.mkdir()
    environment = os.environ | {"TRACKIO_DIR": str(folder / "trackio"), "TRACKIO_SPACE_ID": "someone/else"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.observability.sinks.tracked_run", sink, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "sink " not in done.stderr, done.stderr
    assert rows_of(folder) == EXPECTED
