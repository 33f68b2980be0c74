"""Every stage of an episode hangs in turn, and the trajectory comes to its end all the same, with the reason."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.agent_loop import retries, scoring
from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.engine import turn_sampling
from agentrl.errors import EngineDeadError
from agentrl.tools import executor
from agentrl.tools.base import Episode, ToolConfig, ToolSchema
from agentrl.types import (
    Completion,
    Deadline,
    FailureClass,
    Prompt,
    Termination,
    ToolResult,
    ToolStatus,
    TrajectorySummary,
    Turn,
)
from tests.chat_templates import make_tokenizer
from tests.fakes import ScriptedEngine

PROMPT = Prompt(prompt_id="p0", messages=[{"role": "user", "content": "How much is 6 * 7?"}], answer="42")
REQUEST = TrajectoryRequest(step=3, prompt=PROMPT, sample_index=1)
TOKENIZER = make_tokenizer("qwen2_5")
ANSWER = TOKENIZER.encode("42<|im_end|>", add_special_tokens=False)
CALL = TOKENIZER.encode('<tool_call>{"name": "hang", "arguments": {}}</tool_call><|im_end|>', add_special_tokens=False)


async def hang_and_ignore_cancellation() -> None:
    """Ends after four seconds, so that the event loop of the test can."""
    until = asyncio.get_running_loop().time() + 4
    while (left_s := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left_s)
        except asyncio.CancelledError:
            continue


class HangingTool:
    """Neither a call nor the end of an episode comes to an end."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None) -> None:
        self.schema = ToolSchema(name="hang", description="", parameters={"type": "object"})

    async def start(self) -> None: ...

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        await hang_and_ignore_cancellation()
        return ToolResult(status=ToolStatus.OK, text="")

    async def end_episode(self, episode: Episode) -> None:
        await asyncio.sleep(600)

    async def aclose(self) -> None: ...


class OneOrHang:
    """Reward 1, or none for ever."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.hangs = config.get("hangs", False)

    async def start(self) -> None: ...

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        if self.hangs:
            await hang_and_ignore_cancellation()
        return 1.0

    async def aclose(self) -> None: ...


class DeafEngine(ScriptedEngine):
    """Keeps no deadline."""

    async def generate(self, *arguments: Any, **options: Any) -> Completion:
        await asyncio.sleep(600)
        raise AssertionError


@pytest.fixture(autouse=True)
def short_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_sampling, "_ENGINE_GRACE_S", 0.3)
    monkeypatch.setattr("agentrl.agent_loop.worker.HANG_GRACE_S", 0.2)
    monkeypatch.setattr(retries, "MAX_RETRIES", 0)
    monkeypatch.setattr(scoring, "_GRACE_S", 0.3)
    monkeypatch.setattr(executor, "_GRACE_S", 0.3)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    TOKENIZER.save_pretrained(folder)
    return str(folder)


async def play(
    model_path: str,
    engine: ScriptedEngine,
    *,
    reward: str = "OneOrHang",
    reward_hangs: bool = False,
    reward_timeout_s: float = 1,
) -> TrajectorySummary:
    rollout = RolloutSection(max_response_tokens=200, turn_timeout_s=1.5, trajectory_timeout_s=4, tool_timeout_s=1)
    config = WorkerConfig(
        model=ModelSection(path=model_path),
        rollout=rollout,
        reward=RewardSection(
            class_name=f"{__name__}.{reward}", config={"hangs": reward_hangs}, timeout_s=reward_timeout_s
        ),
        tools=(ToolConfig(class_name=f"{__name__}.HangingTool"),),
        run_seed=0,
        run_dir=str(Path(model_path)),
    )
    worker = AgentLoopWorker(config, "agent_loop")
    await worker.start()
    try:
        async with asyncio.timeout(60):
            summary, _ = await worker.run(REQUEST, engine)
    finally:
        await worker.aclose()
    return summary


async def test_the_end_of_an_episode_in_a_tool_holds_nobody_up(model_path: str):
    summary = await play(model_path, ScriptedEngine([ANSWER]))
    assert (summary.reward, summary.failures) == (1.0, ())


async def test_a_completion_that_waits_in_the_queue_of_an_engine_is_an_engine_failure(model_path: str):
    summary = await play(model_path, ScriptedEngine([ANSWER], delay_s=60))
    assert [failure.failure_class for failure in summary.failures] == [FailureClass.ENGINE]


async def test_an_engine_that_keeps_no_deadline_has_to_be_looked_after(model_path: str):
    with pytest.raises(EngineDeadError, match="no answer to request"):
        await play(model_path, DeafEngine([]))


async def test_a_tool_that_hangs_is_a_failed_call_and_the_episode_goes_on(model_path: str):
    summary = await play(model_path, ScriptedEngine([CALL, ANSWER]))
    assert (summary.reward, summary.num_failed_tool_calls) == (1.0, 1)


async def test_a_reward_that_hangs_is_a_reward_failure(model_path: str):
    summary = await play(model_path, ScriptedEngine([ANSWER]), reward_hangs=True)
    assert [failure.failure_class for failure in summary.failures] == [FailureClass.REWARD]


class BlockingReward(OneOrHang):
    """Blocks its thread until it is told to go on, and gives 1 if it was."""

    entered, released = threading.Event(), threading.Event()

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        self.entered.set()
        return float(self.released.wait(20))


async def test_a_reward_that_blocks_does_not_hold_up_the_event_loop_of_the_episodes(model_path: str):
    playing = asyncio.create_task(
        play(model_path, ScriptedEngine([ANSWER]), reward="BlockingReward", reward_timeout_s=60)
    )
    await asyncio.to_thread(BlockingReward.entered.wait)
    BlockingReward.released.set()
    assert (await playing).reward == 1.0


@pytest.fixture
def hung_tokenizer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    released = threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        released.wait()

    monkeypatch.setattr(ChatTokens, "prompt", hang)
    yield
    released.set()


@pytest.mark.slow
@pytest.mark.usefixtures("hung_tokenizer")
async def test_a_thread_that_hangs_over_a_text_is_named_as_a_hang(model_path: str):
    summary = await play(model_path, ScriptedEngine([ANSWER]))
    assert summary.termination is Termination.INFRA_ERROR
    (failure,) = summary.failures
    assert failure.failure_class is FailureClass.HANG
    assert failure.message == "episode 3-p0-1: still running 0.2 s after its limit of 4 s"
