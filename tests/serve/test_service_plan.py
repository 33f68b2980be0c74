"""A service that cannot start says why before anything has."""

import socket
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.schema.run import ServiceSection
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.serve.plan import bind, check_service, prepare_service


def load(*words: str) -> Any:
    return load_run_config("configs/demo.yaml", words, purpose=Purpose.SERVICE)


def test_a_port_in_use_is_refused_and_nothing_is_written(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            prepare_service(load(f"service.port={port}", f"run.dir={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()


def test_connections_are_refused_before_the_service_is_ready():
    with bind(ServiceSection(port=0)) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname())


def test_other_machines_need_a_token(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"`service\.token_env` is not set"):
        load("service.host=0.0.0.0")
    loaded = load("service.host=0.0.0.0", "service.token_env=TOKEN_OF_THIS_TEST")
    with pytest.raises(ConfigError, match="`TOKEN_OF_THIS_TEST` is not set"):
        check_service(loaded)
    monkeypatch.setenv("TOKEN_OF_THIS_TEST", "a-token")
    assert check_service(loaded).token == "a-token"


def test_prompt_files_are_not_needed_and_the_folder_is_its_own():
    loaded = load("data.train_files=[/nowhere.jsonl]", "data.validation_files=[/nowhere.jsonl]")
    assert str(loaded.config.run.dir).endswith("runs/demo_service")


def test_a_service_ends_for_no_number_of_lost_trajectories(tmp_path: Path):
    plan = prepare_service(load("service.port=0", f"run.dir={tmp_path / 'run'}"))
    with plan.socket:
        assert plan.run.config.rollout.max_infra_error_share == 1
