"""A service that cannot start says why before anything has."""

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config.load import load_run_config
from agentrl.config.schema.run import ServiceSection
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.run.directory import RunDirectory
from agentrl.serve.__main__ import check
from agentrl.serve.plan import bind, check_service, prepare_service
from agentrl.types import Prompt, Turn


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


def test_a_service_starts_in_the_folder_of_an_earlier_one_with_another_config(tmp_path: Path):
    for words in ((), ("rollout.max_turns=2",)):
        plan = prepare_service(load("service.port=0", f"run.dir={tmp_path / 'run'}", *words))
        plan.socket.close()
        plan.run.directory.close()
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["rollout"]["max_turns"] == 2


def test_a_service_does_not_overwrite_the_config_of_a_run(tmp_path: Path):
    loaded = load("service.port=0", f"run.dir={tmp_path / 'run'}")
    run = RunDirectory(loaded.config)
    run.open({}, trains=True)
    run.note_checkpoint(1)
    run.close()
    with pytest.raises(ConfigError, match="holds a run"):
        prepare_service(load("service.port=0", f"run.dir={tmp_path / 'run'}", "rollout.max_turns=2"))


async def test_the_check_warns_where_a_reward_wants_a_column_that_comes_with_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ("service.port=0", f"run.dir={tmp_path / 'run'}", "tool_config_path=null")  # no judge
    await check(load(*words, f"reward.function={__name__}.passes_tests"))
    output = capsys.readouterr().out
    assert "raised KeyError" in output
    assert "further columns" in output
    assert "ok (check of the service)" in output


def passes_tests(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    return float(len(prompt.extra["tests"]))


def test_a_service_ends_for_no_number_of_lost_trajectories(tmp_path: Path):
    plan = prepare_service(load("service.port=0", f"run.dir={tmp_path / 'run'}"))
    with plan.socket:
        assert plan.run.config.rollout.max_infra_error_share == 1
