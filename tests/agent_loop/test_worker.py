import asyncio
import itertools
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loop import retries
from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection, ValidationSection
from agentrl.errors import (
    ConfigError,
    DamagedCheckpointError,
    DataError,
    EngineDeadError,
    EngineError,
    RolloutError,
    ToolChangedError,
    ToolError,
)
from agentrl.judge.stats import note_judge_wait
from agentrl.tools.base import Episode, ToolConfig, ToolSchema
from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.types import Deadline, Failure, FailureClass, Prompt, Termination, ToolResult, ToolStatus, Turn
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
        if "raises" in self.config:
            raise ValueError(self.config["raises"])
        if self.config.get("slow"):
            await asyncio.sleep(60)
        await asyncio.sleep(self.config.get("pause_s", 0))
        for wait_s in self.config.get("judge_waits_s", ()):
            note_judge_wait(wait_s)
        return self.config.get("value", str(prompt.answer) in turns[-1].text)

    async def aclose(self) -> None: ...


class FailingTool:
    """Fails in the way that its config names."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None) -> None:
        self.schema = ToolSchema(name="look_up", description="", parameters={"type": "object"})
        self.fails_with = config.get("fails_with")

    async def start(self) -> None: ...

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        if self.fails_with == "world":
            raise ConnectionRefusedError("port 5432")
        if self.fails_with == "refusal":
            raise DataError(f"prompt `{episode.prompt_id}` names no database")
        return ToolResult(status=ToolStatus.OK, text=episode.extra["database"])

    async def end_episode(self, episode: Episode) -> None: ...

    async def aclose(self) -> None: ...


class AwayTool(FailingTool):
    """Cannot be started."""

    async def start(self) -> None:
        raise ToolError("the judge does not answer")


class ChangedTool(FailingTool):
    """Has changed since the run was started."""

    async def start(self) -> None:
        raise ToolChangedError("its tool `add` is gone")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.001)


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
    reward_timeout_s = 0.2 if reward and reward.get("slow") else 60.0
    config = WorkerConfig(
        model=ModelSection(path=model_path),
        rollout=RolloutSection(max_response_tokens=options.pop("max_response_tokens", 200)),
        reward=RewardSection(
            class_name=f"{__name__}.ContainsAnswer",
            config=reward or {},
            timeout_s=reward_timeout_s,
            score_unfinished=options.pop("score_unfinished", "zero"),
        ),
        validation=options.pop("validation", ValidationSection()),
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


async def test_a_dead_engine_is_no_matter_for_another_try_at_it(model_path: str, tmp_path: Path):
    worker = make_worker(model_path, tmp_path)
    engine = ScriptedEngine([EngineDeadError("its core died")])
    with pytest.raises(EngineDeadError, match="its core died"):
        await worker.run(REQUEST, engine)
    assert len(engine.calls) == 1
    await worker.aclose()


async def test_a_trajectory_that_is_begun_again_elsewhere_is_an_episode_of_its_own(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path)
    reply = answer(tokenizer, "42")
    engine = ScriptedEngine([reply, EngineError("gone"), reply, reply])
    died = Failure(failure_class=FailureClass.WORKER, message="its process died")
    await worker.run(REQUEST, engine)
    summary, trajectory = await worker.run(replace(REQUEST, failures=(died,)), engine)
    await worker.run(replace(REQUEST, failures=(died, died)), engine)
    assert len({call.request_id for call in engine.calls}) == 4
    assert len({call.params.seed for call in engine.calls}) == 4
    assert trajectory.trajectory_id == summary.trajectory_id == "3-p0-1"
    assert summary.num_retries == 2, "an episode elsewhere and one here"
    assert [failure.failure_class for failure in trajectory.failures] == [FailureClass.WORKER, FailureClass.ENGINE]
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


@pytest.mark.parametrize(
    ("reward", "message"), [({"broken": True}, "the checker is down"), ({"slow": True}, "no answer in 0.2 s")]
)
async def test_an_infrastructure_failure_has_no_reward_and_is_never_a_wrong_answer(
    model_path: str,
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    reward: dict[str, Any],
    message: str,
):
    monkeypatch.setattr(retries, "MAX_RETRIES", 1)
    worker = make_worker(model_path, tmp_path, reward=reward)
    summary, trajectory = await worker.run(REQUEST, ScriptedEngine([answer(tokenizer, "42")] * 2))
    assert summary.termination is Termination.INFRA_ERROR
    assert (summary.reward, trajectory.reward) == (None, None)
    assert trajectory.token_ids == []
    assert [failure.failure_class for failure in summary.failures] == [FailureClass.REWARD] * 2
    assert message in summary.failures[-1].message
    await worker.aclose()


async def test_a_row_that_breaks_the_reward_twice_in_the_same_way_is_the_datas_fault_and_tried_no_more(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path, reward={"raises": "no such row"})
    engine = ScriptedEngine([answer(tokenizer, "42")] * 6)
    summary, trajectory = await worker.run(REQUEST, engine)
    assert (summary.termination, summary.reward) == (Termination.DATA_ERROR, None)
    assert len(engine.calls) == 2
    assert summary.failures == trajectory.failures
    assert {failure.failure_class for failure in summary.failures} == {FailureClass.REWARD_DATA}
    assert summary.failures[0].message.startswith(
        f"reward `{__name__}.ContainsAnswer` of prompt `p0` raised ValueError at test_worker.py:"
    )
    await worker.aclose()


async def test_after_the_world_failed_a_tool_the_policy_samples_with_the_same_seed_in_an_episode_of_its_own(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retries, "MAX_RETRIES", 1)
    tools = (ToolConfig(class_name=f"{__name__}.FailingTool", config={"fails_with": "world"}),)
    worker = make_worker(model_path, tmp_path, tools=tools)
    call = answer(tokenizer, '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>')
    engine = ScriptedEngine([call] * 2)
    await worker.run(REQUEST, engine)
    first, second = engine.calls
    assert first.params.seed == second.params.seed
    assert first.request_id != second.request_id
    await worker.aclose()


async def test_times_of_attempts_turns_and_scoring_follow_one_another_within_the_trajectory(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    tools = (ToolConfig(class_name=f"{__name__}.FailingTool", config={}),)
    worker, before = make_worker(model_path, tmp_path, tools=tools), time.time()
    call = answer(tokenizer, '<tool_call>\n{"name": "no_such_tool", "arguments": {}}\n</tool_call>')
    engine = ScriptedEngine([EngineError("gone"), call, answer(tokenizer, "<answer>42</answer>")], delay_s=0.01)
    _, trajectory = await worker.run(REQUEST, engine)
    [failure], [first, last] = trajectory.failures, trajectory.turns
    assert last.answered is None
    spans = [failure.attempt, first.sampled, first.answered, last.sampled, trajectory.scored]
    assert trajectory.span is not None
    times = [before, trajectory.span.started_at]
    for span in spans:
        assert span is not None
        times += [span.started_at, span.ended_at]
    times += [trajectory.span.ended_at, time.time()]
    assert all(later >= earlier - 0.002 for earlier, later in itertools.pairwise(times)), times
    assert first.sampled is not None
    assert first.sampled.duration_s >= 0.01
    await worker.aclose()


async def test_what_failed_before_a_trajectory_was_made_is_recorded_on_it(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path)
    summary, trajectory = await worker.run(REQUEST, ScriptedEngine([EngineError("gone"), answer(tokenizer, "42")]))
    gone = Failure(failure_class=FailureClass.ENGINE, message="gone")
    assert summary.failures == trajectory.failures == (gone,)
    assert summary.reward == 1.0
    await worker.aclose()


@pytest.mark.parametrize(
    ("fails_with", "failure_class", "num_tries"),
    [("world", FailureClass.TOOL, 3), ("refusal", FailureClass.TOOL_DATA, 1), ("bug", FailureClass.TOOL_DATA, 2)],
)
async def test_a_tool_that_fails_is_tried_as_often_as_that_may_help(
    model_path: str,
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerFast,
    fails_with: str,
    failure_class: FailureClass,
    num_tries: int,
):
    tools = (ToolConfig(class_name=f"{__name__}.FailingTool", config={"fails_with": fails_with}),)
    worker = make_worker(model_path, tmp_path, tools=tools)
    call = answer(tokenizer, '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>')
    summary, _ = await worker.run(REQUEST, ScriptedEngine([call] * 3))
    assert [failure.failure_class for failure in summary.failures] == [failure_class] * num_tries
    assert (summary.termination is Termination.DATA_ERROR) == failure_class.is_data
    await worker.aclose()


async def test_calls_of_a_turn_beyond_the_limit_are_refused_and_count_as_failed(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    tools = (ToolConfig(class_name=f"{__name__}.FailingTool", config={}),)
    worker = make_worker(model_path, tmp_path, tools=tools, max_response_tokens=2000)
    call = '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
    engine = ScriptedEngine([answer(tokenizer, call * 17), answer(tokenizer, "42")])
    request = replace(REQUEST, prompt=replace(REQUEST.prompt, extra={"database": "rows"}))
    summary, trajectory = await worker.run(request, engine)
    assert [result.status for result in trajectory.tool_results] == [ToolStatus.OK] * 16 + [ToolStatus.TOO_MANY_CALLS]
    assert (summary.num_tool_calls, summary.num_failed_tool_calls) == (17, 1)
    await worker.aclose()


async def test_a_worker_started_again_whose_tool_cannot_start_now_gives_the_trajectory_up_and_not_the_run(
    model_path: str, tmp_path: Path
):
    worker = make_worker(model_path, tmp_path, tools=(ToolConfig(class_name=f"{__name__}.AwayTool"),))
    summary, _ = await worker.run(REQUEST, ScriptedEngine([]))
    assert {failure.failure_class for failure in summary.failures} == {FailureClass.WORKER}
    assert "the judge does not answer" in summary.failures[0].message


async def test_tools_that_changed_before_a_worker_was_restarted_stop_the_run(model_path: str, tmp_path: Path):
    worker = make_worker(model_path, tmp_path, tools=(ToolConfig(class_name=f"{__name__}.ChangedTool"),))
    with pytest.raises(ToolChangedError, match="is gone"):
        await worker.run(REQUEST, ScriptedEngine([]))


@pytest.mark.parametrize(
    ("choice", "expected"), [("zero", (0.0, False)), ("score", (1.0, False)), ("mask", (0.0, True))]
)
async def test_what_a_trajectory_that_is_cut_short_gets_is_the_users_choice(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast, choice: str, expected: tuple[float, bool]
):
    worker = make_worker(model_path, tmp_path, score_unfinished=choice)
    rambling = answer(tokenizer, "42" + " and so on" * 50)
    summary, trajectory = await worker.run(REQUEST, ScriptedEngine([rambling]))
    assert summary.termination is Termination.MAX_RESPONSE_TOKENS
    assert (summary.reward, summary.is_masked) == (trajectory.reward, trajectory.is_masked) == expected
    await worker.aclose()


async def test_held_out_prompts_are_sampled_as_validation_says(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    engine = ScriptedEngine([answer(tokenizer, "42"), answer(tokenizer, "42")])
    worker = make_worker(model_path, tmp_path, validation=ValidationSection(temperature=0.0, top_p=0.9))
    await worker.run(REQUEST, engine)
    await worker.run(replace(REQUEST, held_out=True), engine)
    assert [(call.params.temperature, call.params.top_p, call.params.top_k) for call in engine.calls] == [
        (1.0, 1.0, 0),
        (0.0, 0.9, 0),
    ]
    await worker.aclose()


async def test_the_breakdown_of_a_reward_is_on_the_record_and_in_the_summary(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path, reward={"value": {"score": 0.5, "accuracy": True}})
    summary, trajectory = await worker.run(REQUEST, ScriptedEngine([answer(tokenizer, "42")]))
    assert summary.reward_metrics == {"accuracy": 1.0}
    await worker.record(3, [PROMPT], False, False, trajectory)
    [read] = read_trajectories(tmp_path / "trajectories" / "step_000003.atr")
    assert (read.reward, read.reward_metrics) == (0.5, {"accuracy": 1.0})
    await worker.aclose()


async def test_a_negative_reward_stops_the_run(model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast):
    worker = make_worker(model_path, tmp_path, reward={"value": -1})
    with pytest.raises(ConfigError, match=r"prompt `p0`: -1 is below the 0 of unfinished"):
        await worker.run(REQUEST, ScriptedEngine([answer(tokenizer, "42")]))
    await worker.aclose()


async def test_a_prompt_that_the_chat_template_cannot_render_is_named_before_anything_is_rolled_out(
    model_path: str, tmp_path: Path
):
    worker = make_worker(model_path, tmp_path)
    odd = Prompt(prompt_id="odd", messages=[{"role": "user", "content": None}])
    with pytest.raises(ConfigError, match="prompt `odd`: the chat template cannot render its messages"):
        await worker.prompt_lengths([PROMPT, odd])
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
    await worker.record(3, [PROMPT], False, False, trajectory)
    file = tmp_path / "trajectories" / "step_000003.atr"
    assert next(read_trajectories(file)).token_ids == trajectory.token_ids
    assert read_prompts(file) == {"p0": PROMPT}
    await worker.aclose()


async def test_a_group_of_a_checkpoint_is_read_back_and_one_that_lost_a_part_is_named(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker, file = make_worker(model_path, tmp_path), tmp_path / "000000007.atr"
    answers = [answer(tokenizer, "<answer>42</answer>"), answer(tokenizer, "<answer>41</answer>")]
    trajectories = [(await worker.run(REQUEST, ScriptedEngine([completion])))[1] for completion in answers]
    digest = await worker.save_group(file, *trajectories)
    source, content = "runs/a/step_000020/rollouts", file.read_bytes()
    summaries, *read = await worker.load_group(file, 2, digest, source)
    assert [summary.reward for summary in summaries] == [1.0, 0.0]
    assert [item.token_ids for item in read] == [item.token_ids for item in trajectories]
    for damaged in (content[: len(content) // 2], content[:-20], content.replace(b"num_tokens", b"\xff\xff\xff"), b""):
        file.write_bytes(damaged)
        with pytest.raises(DamagedCheckpointError, match=rf"{source} is damaged: `{file.name}` cannot be read"):
            await worker.load_group(file, 2, digest, source)
    file.write_bytes(changed := content.replace(b'"reward":1.0', b'"reward":0.0'))
    assert changed != content
    with pytest.raises(
        DamagedCheckpointError, match=rf"`{file.name}` cannot be read \(ValueError: its SHA-256 differs"
    ):
        await worker.load_group(file, 2, digest, source)
    file.unlink()
    with pytest.raises(DamagedCheckpointError, match=rf"{source} is damaged: `{file.name}` is missing"):
        await worker.load_group(file, 2, digest, source)
    await worker.aclose()


async def test_closing_breaks_off_what_still_runs_before_the_tools_are_closed(model_path: str, tmp_path: Path):
    worker = make_worker(model_path, tmp_path)
    await worker.start()
    episode = asyncio.create_task(worker.run(REQUEST, ScriptedEngine([[1]], delay_s=600)))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(60):
        await worker.aclose()
    assert episode.cancelled()


async def test_closing_ends_the_pause_before_a_fresh_episode(
    model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 600)
    worker = make_worker(model_path, tmp_path)
    await worker.start()
    asked = asyncio.Event()

    def fail(*_: Any) -> EngineError:
        asked.set()
        return EngineError("gone")

    episode = asyncio.create_task(worker.run(REQUEST, ScriptedEngine(fail)))
    await asked.wait()
    await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        await worker.aclose()
    assert episode.cancelled()


async def test_a_blocked_event_loop_is_reported(model_path: str, tmp_path: Path):
    worker = make_worker(model_path, tmp_path)
    await worker.start()
    await asyncio.sleep(0.1)
    time.sleep(1)  # noqa: ASYNC251 - the test's subject
    await asyncio.sleep(0.1)
    report = await worker.report()
    assert report is not None
    assert report.lag.max_s > 0.9
    await worker.aclose()


async def test_the_time_of_failed_episodes_and_of_the_reward_is_counted_apart_from_that_of_the_trajectory(
    model_path: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    worker = make_worker(model_path, tmp_path, reward={"pause_s": 0.1, "judge_waits_s": [0.04, 0.06]})
    await worker.start()
    started = asyncio.get_running_loop().time()
    engine = ScriptedEngine([EngineError("gone"), answer(tokenizer, "42")], delay_s=0.2)
    summary, trajectory = await worker.run(REQUEST, engine)
    wall_time_s = asyncio.get_running_loop().time() - started
    times = summary.times
    assert times == trajectory.times
    assert times.retry_s + times.generate_s + times.reward_s <= times.held_s <= wall_time_s
    assert times.retry_s >= 0.2
    assert times.generate_s >= 0.2
    assert times.reward_queue_s == 0.06
    assert times.reward_s >= 0.1 - 0.06
    assert trajectory.wall_time_s == pytest.approx(times.generate_s + times.tokenise_s + times.tool_s)
    await worker.aclose()


async def test_a_worker_that_was_started_again_has_nothing_to_report_and_builds_nothing_for_it(
    model_path: str, tmp_path: Path
):
    worker = make_worker(model_path, tmp_path)
    assert await worker.report() is None
    assert worker._parts is None
