"""User code that raises what is no `Exception`, or never returns: one line with its place, and everybody else goes on."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.agent_loop.scoring import isolated_reward, score
from agentrl.config.class_path import import_by_path
from agentrl.config.schema.run import RewardSection
from agentrl.errors import ConfigError, DataError, ToolError, UnexplainedError
from agentrl.rewards.loader import build_reward, prompt_check
from agentrl.rewards.score import read_score
from agentrl.tools import tool_thread
from agentrl.tools.base import Episode, ToolConfig, ToolSchema
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor, _checked_reward
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.types import Deadline, Prompt, ToolCall, ToolResult, ToolStatus, Turn
from agentrl.user_code import contained_coroutine, described

PROMPT = Prompt(prompt_id="p0", messages=[])
EPISODE = Episode(episode_id="e", prompt_id="p0")
HERE = Path(__file__).name


class OddError(BaseException):
    """A class of a user's that is no `Exception`."""


ENDINGS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, OddError]


class _Raising:
    """Raises at the place that its config names."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None = None) -> None:
        self.ending, self.place = config["ending"], config["place"]
        self.schema = schema or ToolSchema(name="tool", description="", parameters={"type": "object"})
        self._at("constructor")

    def _at(self, place: str) -> None:
        if place == self.place:
            raise self.ending("enough")

    async def start(self) -> None:
        self._at("start")
        if self.place == "start that blocks":
            RELEASE.wait(60)
        if self.place == "start that cancels itself":
            cast(Any, asyncio.current_task()).cancel()
        if self.place == "start that waits":
            await asyncio.sleep(60)

    async def aclose(self) -> None:
        self._at("aclose")


class RaisingTool(_Raising):
    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        self._at("call")
        if self.place == "task":
            await asyncio.create_task(self._in_task())
        return ToolResult(status=ToolStatus.OK, text="fine")

    async def _in_task(self) -> None:
        self._at("task")

    async def final_reward(self, episode: Episode) -> float:
        self._at("final_reward")
        return 1.0

    async def end_episode(self, episode: Episode) -> None:
        self._at("end_episode")


class RaisingReward(_Raising):
    @staticmethod
    def check_prompt(prompt: Prompt) -> None:
        raise prompt.extra["ending"]("enough")

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        self._at("score")
        return 1.0


class RaisingVerlTool:
    def __init__(self, config: dict[str, Any], schema: Any) -> None:
        self.ending, self.place = config["ending"], config["place"]

    async def create(self, instance_id: str) -> str:
        return self._at("create", instance_id)

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> str:
        return self._at("execute", "fine")

    async def release(self, instance_id: str) -> None:
        self._at("release", None)

    def _at(self, place: str, value: Any) -> Any:
        if place == self.place:
            raise self.ending("enough")
        return value


def sync_function(kind: int) -> str:
    """Raise the ending of this number."""
    raise ENDINGS[kind]("enough")


async def async_function(kind: int) -> str:
    """Raise the ending of this number."""
    raise ENDINGS[kind]("enough")


def sync_reward(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    raise prompt.extra["ending"]("enough")


async def async_reward(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    raise prompt.extra["ending"]("enough")


STARTED: list[ToolExecutor] = []
RELEASE = threading.Event()


@pytest.fixture(autouse=True)
async def close_executors() -> AsyncIterator[None]:
    RELEASE.clear()
    yield
    RELEASE.set()
    while STARTED:
        await STARTED.pop().aclose()


async def tools_with(class_name: str, config: dict[str, Any]) -> ToolExecutor:
    schema = {"type": "function", "function": {"name": "tool", "parameters": {"type": "object"}}}
    is_verl = class_name.endswith("VerlTool")
    tool = ToolConfig(class_name=class_name, config=config, tool_schema=schema if is_verl else None)
    STARTED.append(ToolExecutor(build_tools([tool]), timeout_s=2))
    await STARTED[-1].start()
    return STARTED[-1]


async def answer(tools: ToolExecutor, name: str = "tool", **arguments: Any) -> ToolResult:
    call = ToolCall(call_id="c", name=name, arguments=arguments)
    async with asyncio.timeout(20):
        (result,) = await tools.execute([call], EPISODE, deadline=Deadline.after(20))
    return result


def raised(ending: type[BaseException]) -> str:
    return rf"{ending.__name__} at {HERE}:\d+: enough"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_module_that_leaves_is_a_config_error_with_its_line(
    ending: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"leaving_{ending.__name__.lower()}"
    (tmp_path / f"{name}.py").write_text(f"import tests_ending\n\nraise tests_ending.{ending.__name__}('enough')\n")
    monkeypatch.setitem(sys.modules, "tests_ending", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], ending.__name__, ending, raising=False)
    with pytest.raises(ConfigError, match=rf"cannot be imported: {ending.__name__} at {name}\.py:3: enough"):
        import_by_path(f"{name}.Tool", key="class_name")


def test_a_module_that_does_not_parse_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_written.py").write_text("x = 1\n\ndef f(:\n")
    with pytest.raises(ConfigError, match=r"SyntaxError at half_written\.py:3: invalid syntax"):
        import_by_path("half_written.f", key="class_name")


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_tool_that_leaves_at_the_start_is_refused_with_its_line(ending: type[BaseException]):
    for place, word in {"constructor": "built", "start": "started"}.items():
        with pytest.raises(ToolError, match=f"cannot be {word}: {raised(ending)}"):
            async with asyncio.timeout(20):
                await tools_with(f"{__name__}.RaisingTool", {"ending": ending, "place": place})


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_reward_that_leaves_at_the_start_is_refused_with_its_line(ending: type[BaseException]):
    for place, word in {"constructor": "built", "start": "started"}.items():
        with pytest.raises(ConfigError, match=f"cannot be {word}: {raised(ending)}"):
            async with asyncio.timeout(20):
                await started_reward("RaisingReward", ending=ending, place=place)


async def started_reward(class_name: str, **config: Any) -> Any:
    section = RewardSection(class_name=f"{__name__}.{class_name}", config=config)
    reward = isolated_reward(build_reward(section))
    await reward.start()
    return reward


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("place", ["call", "task"])
async def test_a_call_that_leaves_is_a_failure_of_its_trajectory_and_the_next_is_answered(
    ending: type[BaseException], place: str
):
    config = {"ending": ending, "place": place}
    tools = await tools_with(f"{__name__}.RaisingTool", config)
    with pytest.raises(UnexplainedError, match=f"tool `tool` raised {raised(ending)}") as caught:
        await answer(tools)
    assert caught.value.cause.startswith(f"{ending.__name__} at {HERE}:")
    [tool] = tools.tools
    assert isinstance(tool, RaisingTool)
    tool.place = "nowhere"
    assert (await answer(tools)).text == "fine"


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_episode_end_that_leaves_is_logged_and_a_final_reward_fails(
    ending: type[BaseException], caplog: pytest.LogCaptureFixture
):
    tools = await tools_with(f"{__name__}.RaisingTool", {"ending": ending, "place": "final_reward"})
    with pytest.raises(UnexplainedError, match=raised(ending)):
        await tools.final_rewards(EPISODE)
    tools = await tools_with(f"{__name__}.RaisingTool", {"ending": ending, "place": "end_episode"})
    await tools.end_episode(EPISODE)
    assert f"`end_episode` failed: {ending.__name__} at {HERE}:" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("ending", ENDINGS)
async def test_functions_and_tools_of_verl_that_leave_are_failed_calls_which_the_policy_reads(
    ending: type[BaseException],
):
    for name in ("sync_function", "async_function"):
        tools = await tools_with(FUNCTION_TOOL, {"function": f"{__name__}.{name}"})
        result = await answer(tools, name, kind=ENDINGS.index(ending))
        assert (result.status, result.text) == (ToolStatus.ERROR, f"failure: {ending.__name__}: enough")
        assert result.cause.startswith(f"{ending.__name__} at {HERE}:")
    for place in ("create", "execute"):
        tools = await tools_with(f"{__name__}.RaisingVerlTool", {"ending": ending, "place": place})
        result = await answer(tools)
        assert (result.status, result.text) == (ToolStatus.ERROR, f"failure: {ending.__name__}: enough")


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_reward_that_leaves_is_a_failure_of_its_trajectory(ending: type[BaseException]):
    prompt = Prompt(prompt_id="p0", messages=[], extra={"ending": ending})
    for section in (
        RewardSection(function=f"{__name__}.sync_reward"),
        RewardSection(function=f"{__name__}.async_reward"),
        RewardSection(class_name=f"{__name__}.RaisingReward", config={"ending": ending, "place": "score"}),
    ):
        reward = isolated_reward(build_reward(section))
        await reward.start()
        async with asyncio.timeout(20):
            with pytest.raises(UnexplainedError, match=f"of prompt `p0` raised {raised(ending)}"):
                await score(reward, section, prompt, ())
        await reward.aclose()


@pytest.mark.parametrize("ending", [*ENDINGS, ValueError])
def test_a_check_of_prompts_that_raises_names_its_line(ending: type[BaseException]):
    check = prompt_check(RewardSection(class_name=f"{__name__}.RaisingReward"))
    assert check is not None
    with pytest.raises(DataError, match=raised(ending)):
        check(Prompt(prompt_id="p", messages=[], extra={"ending": ending}))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["start that blocks", "start that waits"])
async def test_a_start_that_hangs_is_refused_after_its_time(place: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tool_thread, "START_TIMEOUT_S", 0.2)
    config = {"ending": OddError, "place": place}
    with pytest.raises(ToolError, match=r"tool `tool`: `start` did not return in 0\.2 s; load what takes longer"):
        await tools_with(f"{__name__}.RaisingTool", config)
    with pytest.raises(ConfigError, match=r"RaisingReward`: `start` did not return in 0\.2 s"):
        await started_reward("RaisingReward", **config)


async def test_a_start_that_cancels_itself_is_refused():
    config = {"ending": OddError, "place": "start that cancels itself"}
    with pytest.raises(ToolError, match=r"tool `tool`: cannot be started: `start` cancelled itself"):
        await tools_with(f"{__name__}.RaisingTool", config)
    with pytest.raises(ConfigError, match=r"RaisingReward`: cannot be started: `start` cancelled itself"):
        await started_reward("RaisingReward", **config)


class OddNumber:
    def __init__(self, raised: BaseException) -> None:
        self.raised = raised

    def __float__(self) -> float:
        raise self.raised


@pytest.mark.parametrize("raised", [RuntimeError("several elements"), KeyboardInterrupt()])
def test_a_result_whose_conversion_raises_is_no_number(raised: BaseException):
    with pytest.raises(UnexplainedError, match="must be a finite number"):
        read_score(OddNumber(raised), where="reward")
    with pytest.raises(UnexplainedError, match="must be a finite number"):
        _checked_reward(OddNumber(raised), "tool")


def test_an_error_whose_text_leaves_is_described():
    class LeavingError(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert described(LeavingError()) == "LeavingError: its text cannot be shown: SystemExit"


async def test_a_task_that_is_cancelled_or_thrown_away_ends_as_it_should():
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(contained_coroutine(wait()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_error_whose_text_cannot_be_shown_is_described():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert described(Mute()) == "Mute: its text cannot be shown: ValueError"
    assert described(ValueError("half \ud800")) == "ValueError: half ?"
