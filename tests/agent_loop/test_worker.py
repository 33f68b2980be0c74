import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loop.worker import AgentLoopWorker, TrajectoryRequest, WorkerConfig
from agentrl.config.schema import RewardSection, RolloutSection
from agentrl.errors import ConfigError, EngineError, RolloutError, ToolError
from agentrl.tools.base import ToolConfig
from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.types import Deadline, Prompt, Termination, Turn
from tests.chat_templates import make_tokenizer
from tests.fakes import ScriptedEngine

PROMPT = Prompt(prompt_id="p0", messages=[{"role": "user", "content": "How much is 6 * 7?"}], answer="42")
REQUEST = TrajectoryRequest(step=3, prompt=PROMPT, sample_index=1)


class ContainsAnswer:
    """Reward 1 where the answer is in the last turn; `broken` in the config makes it fail."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    async def start(self) -> None: ...

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        if self.config.get("broken"):
            raise RolloutError("the checker is down")
        if self.config.get("slow"):
            await asyncio.sleep(60)
        return float(self.config.get("value", prompt.answer in turns[-1].text))

    async def aclose(self) -> None: ...


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    make_tokenizer("qwen2_5").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer("qwen2_5")


def make_worker(
    model_path: str, tmp_path: Path, *, reward: dict[str, Any] | None = None, **options: Any
) -> AgentLoopWorker:
    config = WorkerConfig(
        model_path=model_path,
        rollout=RolloutSection(max_response_tokens=200, max_retries=options.pop("max_retries", 2)),
        reward=RewardSection(class_name=f"{__name__}.ContainsAnswer", config=reward or {}, timeout_s=0.2),
        tools=options.pop("tools", ()),
        run_seed=0,
        run_dir=str(tmp_path),
    )
    return AgentLoopWorker(config, "agent_loop")


def answer(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)


async def test_a_finished_episode_is_scored_and_summarised(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path)
    summary, trajectory = await worker.run(REQUEST, ScriptedEngine([answer(tokenizer, "<answer>42</answer>")]))
    assert (trajectory.reward, summary.reward) == (1.0, 1.0)
    assert summary.trajectory_id == trajectory.trajectory_id == "3-p0-1"
    assert summary.num_answer_tags == 1
    assert summary.num_tokens == len(trajectory.token_ids)
    assert summary.termination is Termination.ANSWERED
    await worker.aclose()


async def test_a_failed_episode_is_tried_again_in_a_fresh_one(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path)
    engine = ScriptedEngine([EngineError("gone"), answer(tokenizer, "42")])
    summary, trajectory = await worker.run(REQUEST, engine)
    assert summary.num_retries == 1
    assert trajectory.reward == 1.0
    assert engine.calls[0].request_id != engine.calls[1].request_id
    assert engine.calls[0].params.seed != engine.calls[1].params.seed
    assert sum(trajectory.response_mask) == len(answer(tokenizer, "42"))
    await worker.aclose()


async def test_a_truncated_trajectory_is_kept_as_a_negative_even_with_an_answer_in_it(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path)
    rambling = answer(tokenizer, "<answer>42</answer>" + " and so on" * 50)
    summary, trajectory = await worker.run(REQUEST, ScriptedEngine([rambling]))
    assert summary.termination is Termination.MAX_RESPONSE_TOKENS
    assert (summary.reward, trajectory.reward) == (0.0, 0.0)
    await worker.aclose()


@pytest.mark.parametrize("reward", [{"broken": True}, {"slow": True}])
async def test_an_infrastructure_failure_has_no_reward_and_is_never_a_wrong_answer(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast, reward: dict[str, Any]
):
    worker = make_worker(model_path, tmp_path, reward=reward, max_retries=1)
    summary, trajectory = await worker.run(REQUEST, ScriptedEngine([answer(tokenizer, "42")] * 2))
    assert summary.termination is Termination.INFRA_ERROR
    assert (summary.reward, trajectory.reward) == (None, None)
    assert trajectory.token_ids == []
    assert summary.error
    await worker.aclose()


async def test_a_reward_that_is_not_finite_stops_the_run(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path, reward={"value": float("nan")})
    with pytest.raises(ConfigError, match="gave nan"):
        await worker.run(REQUEST, ScriptedEngine([answer(tokenizer, "42")]))
    await worker.aclose()


async def test_a_tool_that_cannot_be_built_fails_the_start_and_not_the_first_rollout(model_path: str, tmp_path: Path):
    worker = make_worker(model_path, tmp_path, tools=(ToolConfig(class_name="nowhere.Tool"),))
    with pytest.raises((ToolError, ConfigError), match="nowhere"):
        await worker.start()


async def test_tools_are_built_once_however_many_episodes_start_at_once(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path)
    assert worker._parts is None
    engine = ScriptedEngine([answer(tokenizer, "42")] * 20)
    requests = [TrajectoryRequest(step=1, prompt=PROMPT, sample_index=index) for index in range(20)]
    await asyncio.gather(*(worker.run(request, engine) for request in requests))
    parts = worker._parts
    await worker.start()
    assert worker._parts is parts
    await worker.aclose()


def test_what_crosses_to_a_worker_is_plain_data(model_path: str, tmp_path: Path):
    worker = make_worker(model_path, tmp_path, tools=(ToolConfig(class_name="a.B", config={"host_port": 1}),))
    assert pickle.loads(pickle.dumps(worker._config)) == worker._config


async def test_records_of_any_worker_can_be_read_back(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path)
    _, trajectory = await worker.run(REQUEST, ScriptedEngine([answer(tokenizer, "42")]))
    await worker.record(3, [PROMPT], False, trajectory)
    file = tmp_path / "trajectories" / "step_000003.jsonl"
    assert next(read_trajectories(file)).token_ids == trajectory.token_ids
    assert read_prompts(file) == {"p0": PROMPT}
    await worker.aclose()


async def test_closing_breaks_off_what_still_runs_before_the_tools_are_closed(model_path: str, tmp_path: Path):
    worker = make_worker(model_path, tmp_path)
    await worker.start()
    episode = asyncio.create_task(worker.run(REQUEST, ScriptedEngine([[1]], delay_s=60)))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(5):
        await worker.aclose()
    assert episode.cancelled()


async def test_a_blocked_event_loop_is_measured(model_path: str, tmp_path: Path):
    import time

    worker = make_worker(model_path, tmp_path)
    await worker.start()
    await asyncio.sleep(0.1)
    time.sleep(0.3)  # noqa: ASYNC251 - what the test is about
    await asyncio.sleep(0.1)
    report = await worker.report()
    assert report.loop_lag_s_max > 0.2
    await worker.aclose()
