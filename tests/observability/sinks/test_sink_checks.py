import socket
import sys
from pathlib import Path

import pytest
import yaml

from agentrl.config.load import load_run_config
from agentrl.config.schema.observability import ObservabilitySection
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.observability.sinks.opening import check_sinks
from agentrl.run.resume_rules import changes_of_keys


def test_a_sink_whose_package_is_missing_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r'`wandb` is not installed\. Run `pip install "agentrl\[wandb\]"`'):
        check_sinks(ObservabilitySection(sinks=["tensorboard", "wandb"], mode="offline"))


def test_a_sink_that_does_not_know_its_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("agentrl.observability.sinks.opening.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=r"`trackio` needs TRACKIO_SPACE_ID or TRACKIO_SERVER_URL .*mode: offline"):
        check_sinks(ObservabilitySection(sinks=["trackio"]))
    check_sinks(ObservabilitySection(sinks=["trackio"], mode="offline"))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:1/?write_token=x")
    check_sinks(ObservabilitySection(sinks=["trackio"]))


def test_an_unknown_sink_is_refused_and_the_known_ones_are_named(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {path: m}\ndata: {train_files: [a.jsonl]}\nobservability: {sinks: [tensorbord]}\n")
    with pytest.raises(ConfigError, match=r"observability\.sinks.*tensorboard.*wandb.*mlflow.*trackio.*swanlab"):
        load_run_config(str(file))


def test_a_port_for_prometheus_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"observability\.prometheus_port: .* 127\.0\.0\.1:{port}: Address already"
        ):
            check_sinks(ObservabilitySection(prometheus_port=port))
    check_sinks(ObservabilitySection(prometheus_port=port))


def test_a_run_may_resume_with_other_sinks() -> None:
    saved = RunConfig.model_validate({"model": {"path": "m"}})
    now = RunConfig.model_validate(
        {"model": {"path": "m"}, "observability": {"sinks": [], "tags": ["a"], "mode": "offline", "entity": "me"}}
    )
    assert changes_of_keys(yaml.safe_dump(saved.model_dump()).encode(), now) == {}
