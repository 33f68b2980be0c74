"""Trials and output of `--check`."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from agentrl.agent_loop.scoring import isolated_reward
from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.schema.run import RewardSection
from agentrl.errors import ConfigError, ToolError, UnexplainedError
from agentrl.rewards.loader import build_reward
from agentrl.run.preflight.check import CheckLevel, check
from agentrl.run.preflight.plugins import score_answers
from agentrl.run.preflight.report import CheckReport
from agentrl.types import Prompt, Turn


def plain_score(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    return float(turns[-1].text == prompt.answer)


CODE = '''
class Reward:
    def __init__(self, config):
        self._config = config

    async def start(self):
        pass

    async def score(self, prompt, turns, *, deadline):
        if self._config.get("raises"):
            return 1 / len(turns[-1].text)
        return float(self._config.get("open", "") + prompt.answer + self._config.get("close", "") == turns[-1].text)

    async def aclose(self):
        pass


def look_up(word: str, limit: int = 3) -> str:
    """Look a word up."""
    return f"{word} {limit}"


def sleep_long() -> str:
    """Sleep."""
    import time

    time.sleep(3)


def forget(word: str) -> str:
    """Look a word up."""


def find(word: str) -> str | None:
    """Look a word up."""


class Broken:
    def __init__(self, config, schema):
        from agentrl.tools.base import ToolSchema

        self._error = getattr(__builtins__, config["error"], None) or __builtins__[config["error"]]
        properties = {"a": {"type": "integer", "minimum": 7}}
        self.schema = ToolSchema(name="calc", description="", parameters={"type": "object", "properties": properties})

    async def start(self):
        pass

    async def call(self, episode, arguments, *, deadline):
        assert episode.episode_id == "check"
        raise self._error(f"of {arguments}")

    async def end_episode(self, episode):
        pass

    async def aclose(self):
        pass
'''
ERROR_LINE = 1 + next(n for n, line in enumerate(CODE.splitlines()) if "raise self._error" in line)
LOOK_UP = "function: checked_plugins.look_up"


def loaded(
    tmp_path: Path, *, tool: str = LOOK_UP, reward: str = "{}", run_dir: Path | None = None, words: Sequence[str] = ()
) -> LoadedConfig:
    (tmp_path / "checked_plugins.py").write_text(CODE)
    (tmp_path / "tools.yaml").write_text(f"tools: [{{{tool}}}]")
    (tmp_path / "run.yaml").write_text(
        f"""
data: {{train_files: [examples/arithmetic/validation.jsonl], max_prompt_tokens: 256}}
model: {{path: examples/arithmetic/policy}}
tool_config_path: tools.yaml
reward: {{class_name: checked_plugins.Reward, config: {reward}}}
algorithm: {{selection: {{keep: 4}}}}
rollout: {{samples_per_prompt: 8, max_response_tokens: 256}}
run: {{num_steps: 1, dir: {run_dir or tmp_path / "runs" / "new"}}}
"""
    )
    return load_run_config(str(tmp_path / "run.yaml"), words)


@pytest.mark.usefixtures("vllm_is_installed")
async def test_the_tokens_that_an_engine_reserves_are_those_of_the_longest_stage(capsys: pytest.CaptureFixture[str]):
    loaded = load_run_config("configs/rstar2_qwen3_14b.yaml")
    await check(loaded, CheckLevel.STATIC)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "KV-cache" in line]
    assert "(stage 2 of 3)" in line
    config = loaded.config
    assert f"{config.rollout.max_concurrent_trajectories * (config.data.max_prompt_tokens + 12288):,}" in line


async def test_every_tool_and_the_reward_are_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await check(loaded(tmp_path, reward="{open: '#### '}"), CheckLevel.FULL)
    said = capsys.readouterr().out
    assert "tool `look_up`: called with `{'word': '1'}`: `ok` in" in said
    assert "`#### " in said
    assert "scores 1, an empty answer 0" in said
    assert "warning:" not in said


async def test_a_tool_that_raises_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await check(loaded(tmp_path, tool="class_name: checked_plugins.Broken, config: {error: KeyError}"), CheckLevel.FULL)
    said = capsys.readouterr().out
    assert "warning: tool `calc`: called with `{'a': 7}`: tool `calc` raised KeyError at checked_plugins.py:" in said
    assert f"checked_plugins.py:{ERROR_LINE}:" in said


async def test_a_function_that_returns_none_is_refused_unless_its_hint_allows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    refusal = r"tool `forget`: called with `{'word': '1'}`: the tool returned None, which is no result\. Let it return"
    with pytest.raises(ToolError, match=refusal):
        await check(loaded(tmp_path, tool="function: checked_plugins.forget"), CheckLevel.FULL)
    await check(loaded(tmp_path, tool="function: checked_plugins.find"), CheckLevel.FULL)
    assert "tool `find`: called with `{'word': '1'}`: `ok` in" in capsys.readouterr().out


async def test_a_tool_that_never_ends_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = loaded(tmp_path, tool="function: checked_plugins.sleep_long", words=["rollout.tool_timeout_s=0.2"])
    await check(config, CheckLevel.FULL)
    assert "warning: tool `sleep_long`: called with `{}`: `timeout`" in capsys.readouterr().out


async def test_a_tool_whose_server_is_away_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = loaded(tmp_path, tool="class_name: checked_plugins.Broken, config: {error: ConnectionRefusedError}")
    await check(config, CheckLevel.FULL)
    said = capsys.readouterr().out
    assert "warning: tool `calc`: called with `{'a': 7}`: tool `calc`: ConnectionRefusedError" in said


async def test_a_reward_that_no_answer_satisfies_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await check(loaded(tmp_path, reward="{open: '~'}"), CheckLevel.FULL)
    assert "warning: reward `checked_plugins.Reward` on prompt" in capsys.readouterr().out


async def score_of(answer: object, request: str, *, function: str = "") -> str:
    """Return what the trial of a reward prints; the math reward where no `function` is named."""
    prompt = Prompt(prompt_id="p", messages=[{"role": "user", "content": request}], answer=cast(Any, answer))
    section = RewardSection(function=f"{__name__}.{function}") if function else RewardSection()
    console = Console(file=io.StringIO(), width=400)
    report = CheckReport(console)
    reward = isolated_reward(build_reward(section))
    await reward.start()
    async with contextlib.aclosing(reward):
        await score_answers(reward, section, prompt, report)
    return cast(io.StringIO, console.file).getvalue()


@pytest.mark.parametrize(
    ("answer", "request_"),
    [
        ("48 + 24 = 72\n#### 72", r"Put the answer in \boxed{}."),
        (r"so the area is $\boxed{72}$ m", "Write the answer after ####."),
        (0, r"Put the answer in \boxed{}."),
    ],
)
async def test_a_reference_answer_is_tried_as_the_math_reward_reads_it(answer: object, request_: str):
    said = await score_of(answer, request_)
    assert "scores 1, an empty answer 0" in said
    assert "warning" not in said


@pytest.mark.parametrize("answer", [{"target": ["Paris"]}, ["Paris"], None])
async def test_a_right_answer_that_cannot_be_written_is_not_checked(answer: object):
    said = await score_of(answer, "The capital?", function="plain_score")
    why = "the prompt has no reference answer that is text or a number"
    assert f"not checked: what the reward gives for a right answer: {why}" in said
    assert "warning" not in said


async def test_a_reward_that_raises_is_refused(tmp_path: Path):
    with pytest.raises(UnexplainedError, match=r"raised ZeroDivisionError at checked_plugins\.py:\d+"):
        await check(loaded(tmp_path, reward="{raises: true}"), CheckLevel.FULL)


async def test_what_was_not_looked_at_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await check(loaded(tmp_path), CheckLevel.STATIC)
    assert "not checked: model, data, judge, MCP servers, and calls of tools and reward" in capsys.readouterr().out
    await check(loaded(tmp_path), CheckLevel.FULL)
    assert "not checked: numbers inside the weights" in capsys.readouterr().out


async def test_the_folder_of_the_run_is_tried_and_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await check(loaded(tmp_path), CheckLevel.FULL)
    assert f"run.dir: {tmp_path}/runs/new can be written" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run\.dir: .*/file cannot be written"):
        await check(loaded(tmp_path, run_dir=tmp_path / "file" / "run"), CheckLevel.FULL)


@pytest.mark.parametrize(
    ("tool", "is_listed"), [("class_name: agentrl.tools.python_tool.PythonTool", True), (LOOK_UP, False)]
)
async def test_a_judge_is_listed_where_something_asks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str, is_listed: bool
):
    await check(loaded(tmp_path, tool=tool), CheckLevel.STATIC)
    assert ("│ judge" in capsys.readouterr().out) == is_listed


@pytest.mark.slow
def test_a_tool_that_never_returns_does_not_keep_the_command_open(tmp_path: Path):
    (tmp_path / "hang.py").write_text(
        'import time\n\n\ndef hang(text: str) -> str:\n    """Hang."""\n    time.sleep(3600)\n    return text\n'
    )
    (tmp_path / "tools.yaml").write_text("tools:\n  - function: hang.hang\n")
    (tmp_path / "run.yaml").write_text(Path("configs/demo.yaml").read_text())
    words = [f"tool_config_path={tmp_path}/tools.yaml", f"run.dir={tmp_path}/run", "rollout.tool_timeout_s=1"]
    command = [sys.executable, "-m", "agentrl.runners.rstar2", str(tmp_path / "run.yaml"), "--check", *words]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert "tool `hang`: called with" in checked.stdout
    assert "run.yaml: ok (full check)" in checked.stdout
    assert checked.returncode == 0
