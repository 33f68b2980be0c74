import json
import logging
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.config.schema.observability import ObservabilitySection
from agentrl.observability.metrics import MetricsLogger
from agentrl.observability.metrics_file import read_metrics, series


def metrics_of(run_dir: Path) -> MetricsLogger:
    return MetricsLogger(run_dir, ObservabilitySection(), config={})


def steps_in(run_dir: Path) -> list[float | None]:
    return [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")]


def tensorboard_points(run_dir: Path, name: str) -> list[tuple[int, float]]:
    """Read the event files as TensorBoard itself does."""
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    # TensorBoard turns simple values into tensors as it loads them.
    tensors = events.Tensors(name) if name in events.Tags()["tensors"] else []
    points = [(event.step, event.tensor_proto.float_val[0]) for event in tensors]
    return points or [(event.step, event.value) for event in events.Scalars(name)]


def test_each_step_is_one_line_that_is_there_at_once(tmp_path: Path) -> None:
    with metrics_of(tmp_path) as metrics:
        metrics.log(0, {"validation/accuracy": 0.5})
        metrics.log(1, {"rollout/reward_mean": 0.25})
        assert (tmp_path / "metrics.jsonl").read_text().splitlines() == [
            '{"step":0,"validation/accuracy":0.5}',
            '{"step":1,"rollout/reward_mean":0.25}',
        ]


def test_numbers_that_do_not_exist_are_null_in_strict_json(tmp_path: Path) -> None:
    with metrics_of(tmp_path) as metrics:
        metrics.log(1, {"a/nan": float("nan"), "a/inf": float("-inf"), "a/one": 1.0})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "a/nan": None, "a/inf": None, "a/one": 1.0}
    assert tensorboard_points(tmp_path, "a/one") == [(1, 1.0)]


def test_take_back_removes_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    with metrics_of(tmp_path) as metrics:
        for step in range(6):
            metrics.log(step, {"a/value": step})
    with metrics_of(tmp_path) as resumed:
        resumed.take_back(after_step=3)
        assert steps_in(tmp_path) == [0, 1, 2, 3]
        resumed.log(4, {"a/value": 40})
    assert steps_in(tmp_path) == [0, 1, 2, 3, 4]


def test_take_back_of_everything_starts_over(tmp_path: Path) -> None:
    with metrics_of(tmp_path) as metrics:
        metrics.log(0, {"validation/accuracy": 0.5})
        metrics.take_back(after_step=-1)
        metrics.log(0, {"validation/accuracy": 0.75})
    assert series(read_metrics(tmp_path / "metrics.jsonl"), "validation/accuracy") == ([0], [0.75])


def test_tensorboard_forgets_what_was_taken_back(tmp_path: Path) -> None:
    with metrics_of(tmp_path) as metrics:
        for step in range(6):
            metrics.log(step, {"a/value": step})
    with metrics_of(tmp_path) as resumed:
        resumed.take_back(after_step=3)
        resumed.log(4, {"a/value": 40})
    assert tensorboard_points(tmp_path, "a/value") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


def test_a_line_torn_by_a_kill_does_not_stop_the_resumed_run(tmp_path: Path) -> None:
    with metrics_of(tmp_path) as metrics:
        metrics.log(1, {"a/value": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "a/va')
    with metrics_of(tmp_path) as resumed:
        resumed.take_back(after_step=1)
        resumed.log(2, {"a/value": 2})
    assert steps_in(tmp_path) == [1, 2]


def test_each_step_is_one_aligned_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="agentrl")
    with metrics_of(tmp_path) as metrics:
        metrics.log(0, {"validation/accuracy": 0.4512})
        metrics.log(
            12,
            {
                "validation/accuracy": 0.9,
                "rollout/reward_mean": 0.6,
                "rollout/tool_call_share": 1.0,
                "rollout/tool_success_rate": float("nan"),
                "rollout/response_tokens_mean": 131.4,
                "actor/grad_norm": 0.71,
                "time/step_s": 3.46,
            },
        )
    assert [record.getMessage() for record in caplog.records] == [
        "step    0  accuracy 0.451  reward     -  tool use    -  ok    -  tokens     -  grad      -  in     - s",
        "step   12  accuracy 0.900  reward 0.600  tool use 1.00  ok    -  tokens   131  grad  0.710  in   3.5 s",
    ]


def test_a_series_skips_steps_without_the_number(tmp_path: Path) -> None:
    with metrics_of(tmp_path) as metrics:
        metrics.log(0, {"validation/accuracy": 0.5})
        metrics.log(1, {"rollout/reward_mean": 0.1})
        metrics.log(2, {"validation/accuracy": float("nan")})
        metrics.log(3, {"validation/accuracy": 0.75})
    assert series(read_metrics(tmp_path / "metrics.jsonl"), "validation/accuracy") == ([0, 3], [0.5, 0.75])
