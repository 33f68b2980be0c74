import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentrl.config.schema.observability import ObservabilitySection
from agentrl.observability.metrics import MetricsLogger
from agentrl.observability.sinks.prometheus import MetricsEndpoint


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_the_latest_value_of_each_metric_is_served() -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    try:
        assert "process_cpu_seconds_total" in scraped(endpoint.port)
        endpoint.log(1, {"validation/accuracy": 0.5, "reward/my part@2": 1.0})
        endpoint.log(2, {"rollout/reward_mean": 0.25, "reward/my part@2": 2.0})
        values = scraped(endpoint.port)
    finally:
        endpoint.close()
    assert {name: value for name, value in values.items() if name.startswith("agentrl_")} == {
        "agentrl_step": 2.0,
        "agentrl_validation_accuracy": 0.5,
        "agentrl_rollout_reward_mean": 0.25,
        "agentrl_reward_my_part_2": 2.0,
    }


def test_a_run_goes_on_when_its_port_was_taken_since_the_check(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    try:
        settings = ObservabilitySection(sinks=[], prometheus_port=endpoint.port)
        with MetricsLogger(tmp_path, settings, config={}) as metrics:
            metrics.log(1, {"a/value": 1.0})
    finally:
        endpoint.close()
    assert ["cannot be used" in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        True
    ]
