"""Tool configs for Ray workers hold plain data only."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema.judge import CodeJudgeTools, ToolsSection
from agentrl.config.schema.run import DataSection, ModelSection, RunConfig
from agentrl.judge.connection import JudgeAddress, ToolContext
from agentrl.tools.base import ToolConfig
from agentrl.tools.loader import load_tool_configs, load_tool_file

SHIPPED = sorted((Path(__file__).parents[2] / "tool_configs").glob("*.yaml"))


def live_objects(value: Any, path: str = "") -> list[str]:
    """Return where anything but plain data hides; exact types, so that no subclass slips through."""
    if type(value) is dict:
        return [
            place
            for key, item in value.items()
            for place in (*live_objects(key, path), *live_objects(item, f"{path}.{key}"))
        ]
    if type(value) is list:
        return [place for index, item in enumerate(value) for place in live_objects(item, f"{path}[{index}]")]
    return [] if type(value) in (str, int, float, bool, type(None)) else [f"{path}: {type(value).__name__}"]


def every_config() -> list[ToolConfig]:
    short_form = RunConfig(
        data=DataSection(train_files=[]), model=ModelSection(path=""), tools=ToolsSection(code_judge=CodeJudgeTools())
    )
    return [tool for file in SHIPPED for tool in load_tool_file(file)] + load_tool_configs(short_form)


def test_there_are_shipped_tool_configs() -> None:
    assert SHIPPED


@pytest.mark.parametrize("config", every_config())
def test_every_tool_config_passes_rays_serialiser_as_plain_data(config: ToolConfig) -> None:
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    received = cloudpickle.loads(cloudpickle.dumps(config))
    assert received == config
    for field in dataclasses.fields(received):
        assert live_objects(getattr(received, field.name), field.name) == []


def test_the_context_passes_rays_serialiser_and_shows_no_token() -> None:
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    context = ToolContext(judge=JudgeAddress(urls=("http://127.0.0.1:8088",), token="s3cret"), workers={"painter": ()})
    assert cloudpickle.loads(cloudpickle.dumps(context)) == context
    assert "s3cret" not in repr(context)


def test_a_live_object_would_be_found() -> None:
    assert live_objects({"a": [{"session": object()}]}) == [".a[0].session: object"]
