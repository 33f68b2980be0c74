"""Whole episodes with an environment, through the worker: ids, endings, rewards, failures, and state that is freed."""

import asyncio
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loop import retries
from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.schema.run import AgentLoopSection, ModelSection, RewardSection, RolloutSection
from agentrl.engine.base import Engine
from agentrl.environments import environment_thread
from agentrl.errors import ConfigError, EngineDeadError
from agentrl.tools.base import ToolConfig
from agentrl.trajectories.codec import decode_trajectory, encode_trajectory
from agentrl.types import Completion, FailureClass, FinishReason, Message, Prompt, Termination, Trajectory
from tests.chat_templates import make_tokenizer
from tests.environments.games import LOG
from tests.fakes import ScriptedEngine

GAMES = "tests.environments.games"
QUESTION: Message = {"role": "user", "content": "Guess my number."}
REQUEST = TrajectoryRequest(step=3, prompt=Prompt(prompt_id="p0", messages=[QUESTION], answer="7"), sample_index=1)
REWARD = "agentrl.rewards.environment_reward.environment_reward"


def double(number: int) -> int:
    """Double a number.

    Args:
        number: any number.
    """
    return 2 * number


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(environment_thread, "_GRACE_S", 0.0)
    LOG.clear()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer("qwen2_5")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> str:
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    return str(folder)


class Table:
    """A worker with one environment, and a policy that says what the test writes down."""

    def __init__(self, path: str, tokenizer: PreTrainedTokenizerFast) -> None:
        self.path, self.tokenizer = path, tokenizer

    def worker(self, name: str = "Guess", *, tools: tuple[ToolConfig, ...] = (), **options: Any) -> AgentLoopWorker:
        limits = {"max_response_tokens": 400, "max_turns": 6, "tool_timeout_s": 20.0}
        config = WorkerConfig(
            model=ModelSection(path=self.path),
            rollout=RolloutSection(**(limits | options.pop("rollout", {}))),
            reward=RewardSection(function=REWARD, score_unfinished="score"),
            tools=tools,
            agent_loop=AgentLoopSection(environment=f"{GAMES}.{name}", environment_config=options),
            run_seed=0,
            run_dir="unused",
        )
        return AgentLoopWorker(config, "agent_loop")

    def said(self, *texts: str) -> list[list[int]]:
        return [self.tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False) for text in texts]

    async def play(self, worker: AgentLoopWorker, script: Any, request: TrajectoryRequest = REQUEST) -> Trajectory:
        engine: Engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
        try:
            _, trajectory = await worker.run(request, engine)
            return trajectory
        finally:
            await worker.aclose()

    def rendered(self, *messages: Message) -> list[int]:
        text = str(self.tokenizer.apply_chat_template([*messages], tokenize=False)).removesuffix("\n")
        return self.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def table(model_path: str, tokenizer: PreTrainedTokenizerFast) -> Table:
    return Table(model_path, tokenizer)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


async def test_a_game_goes_on_until_the_environment_ends_it_and_its_ids_are_the_templates(table: Table):
    trajectory = await table.play(table.worker(), table.said("5", "9", "7"))
    dialogue = [QUESTION, assistant("5"), user("higher"), assistant("9"), user("lower"), assistant("7")]
    assert trajectory.token_ids == table.rendered(*dialogue)
    sampled = [t for t, kept in zip(trajectory.token_ids, trajectory.response_mask, strict=True) if kept]
    assert sampled == list(chain(*table.said("5", "9", "7")))
    assert trajectory.termination is Termination.ANSWERED
    assert [(turn.observation, turn.environment_reward) for turn in trajectory.turns] == [
        ("higher", -0.25),
        ("lower", -0.25),
        ("right", 1.0),
    ]
    assert trajectory.reward == 0.5
    assert trajectory.reward_metrics == {"environment_reward": 0.5}
    assert LOG == ["begin 3-p0-1", "end 3-p0-1"]


async def test_a_trajectory_file_keeps_observations_and_their_rewards(table: Table):
    trajectory = await table.play(table.worker(), table.said("5", "7"))
    assert decode_trajectory(encode_trajectory(trajectory)).turns == trajectory.turns


async def test_the_last_allowed_turn_is_answered_and_then_the_limit_ends_the_episode(table: Table):
    trajectory = await table.play(table.worker(rollout={"max_turns": 2}), table.said("5", "9"))
    assert (trajectory.termination, trajectory.reward) == (Termination.MAX_TURNS, -0.5)
    assert [turn.observation for turn in trajectory.turns] == ["higher", "lower"]
    won = await table.play(table.worker(rollout={"max_turns": 2}), table.said("5", "7"))
    assert (won.termination, won.reward) == (Termination.ANSWERED, 0.75)


async def test_tools_and_the_environment_take_turns(table: Table):
    function = ToolConfig(
        class_name="agentrl.tools.function_tool.FunctionTool", config={"function": f"{__name__}.double"}
    )
    call = '<tool_call>\n{"name": "double", "arguments": {"number": 3}}\n</tool_call>'
    trajectory = await table.play(table.worker(tools=(function,)), table.said("5", call, "6", "7"))
    assert [(turn.observation, [result.text for result in turn.results]) for turn in trajectory.turns] == [
        ("higher", []),
        (None, ["6"]),
        ("higher", []),
        ("right", []),
    ]
    assert trajectory.reward == 0.5


async def test_a_text_that_opens_the_episode_is_read_and_is_not_part_of_the_shared_prompt(table: Table):
    trajectory = await table.play(table.worker(opening="The board is empty."), table.said("7"))
    opened = user("Guess my number.\n\nThe board is empty.")
    assert trajectory.token_ids == table.rendered(opened, assistant("7"))
    text = table.tokenizer.decode(trajectory.token_ids[trajectory.num_prompt_tokens :])
    assert "The board is empty." in text
    system = replace(REQUEST.prompt, messages=[{"role": "system", "content": "Play."}])
    trajectory = await table.play(table.worker(opening="Begin."), table.said("7"), replace(REQUEST, prompt=system))
    assert trajectory.token_ids == table.rendered(system.messages[0], user("Begin."), assistant("7"))
    assert not sum(trajectory.response_mask[: -len(table.said("7")[0])])


async def test_an_opening_without_room_for_an_answer_is_a_failure_of_the_data(table: Table):
    trajectory = await table.play(table.worker(opening="word " * 300, rollout={"max_response_tokens": 200}), [])
    assert trajectory.termination is Termination.DATA_ERROR
    assert "leave no room for an answer" in trajectory.failures[-1].message
    assert LOG == ["begin 3-p0-1", "end 3-p0-1"]


async def test_a_turn_that_a_stop_text_ended_gets_the_templates_turn_end(table: Table):
    script = [table.tokenizer.encode(text, add_special_tokens=False) for text in ("5.", "7.")]
    worker = table.worker("Guess", rollout={"stop": ["."]})
    trajectory = await table.play(worker, script)
    assert trajectory.failures[-1].failure_class is FailureClass.ENVIRONMENT_DATA, "`5.` is no number"
    worker = table.worker("Odd", answers="forge", rollout={"stop": ["."], "max_turns": 2})
    trajectory = await table.play(worker, script)
    [end] = table.tokenizer.encode("<|im_end|>", add_special_tokens=False)
    response = trajectory.token_ids[trajectory.num_prompt_tokens :]
    assert response[: len(script[0]) + 1] == [*script[0], end]
    assert response.count(end) == 2, "of the turn and of the user's message; a forged one is broken up"


async def test_a_long_observation_is_cut_and_the_policy_has_room_to_go_on(table: Table):
    worker = table.worker("Odd", answers="long", rollout={"max_tool_response_tokens": 50, "max_turns": 3})
    trajectory = await table.play(worker, table.said("5", "6", "7"))
    assert trajectory.termination is Termination.MAX_TURNS
    assert len(trajectory.token_ids) < 350, "two cut answers and the prompt"
    worker = table.worker("Odd", answers="long", rollout={"max_response_tokens": 90, "max_turns": 9})
    assert (await table.play(worker, table.said("5", "6"))).termination is Termination.MAX_RESPONSE_TOKENS


@pytest.mark.parametrize(
    ("answers", "failure", "words"),
    [
        ("stop", FailureClass.ENVIRONMENT_DATA, "raised SystemExit at games.py:"),
        ("refuse", FailureClass.ENVIRONMENT_DATA, "the row has no board"),
        ("text", FailureClass.ENVIRONMENT_DATA, "must return an `agentrl.environments.base.Observation`"),
        ("number", FailureClass.ENVIRONMENT_DATA, "gave a `int` as text"),
        ("no number", FailureClass.ENVIRONMENT_DATA, "must be a finite number"),
        ("done is text", FailureClass.ENVIRONMENT_DATA, "must return an `agentrl.environments.base.Observation`"),
        ("no connection", FailureClass.ENVIRONMENT, "ConnectionRefusedError: port 5432"),
        ("hang", FailureClass.ENVIRONMENT, "`observe` gave no answer in 0.2 s"),
        ("block", FailureClass.ENVIRONMENT, "`observe` gave no answer in 0.2 s"),
    ],
)
async def test_a_failure_of_the_environment_is_never_a_reward_and_frees_every_episode(
    table: Table, answers: str, failure: FailureClass, words: str
):
    worker = table.worker("Odd", answers=answers, block_s=0.3, rollout={"tool_timeout_s": 0.2})
    trajectory = await table.play(worker, lambda ids, params: table.said("5")[0])
    assert trajectory.reward is None
    assert trajectory.termination is (Termination.DATA_ERROR if failure.is_data else Termination.INFRA_ERROR)
    assert trajectory.failures[-1].failure_class is failure
    assert words in trajectory.failures[-1].message
    if answers != "block":  # later calls wait for it
        begun = [line.removeprefix("begin ") for line in LOG if line.startswith("begin")]
        assert len(begun) == len(trajectory.failures)
        assert [f"end {episode}" for episode in begun] == [line for line in LOG if line.startswith("end")]


async def test_an_unexplained_exception_names_file_and_line_and_is_retried_once(table: Table):
    trajectory = await table.play(table.worker(), lambda ids, params: table.said("seven")[0])
    assert [failure.failure_class for failure in trajectory.failures] == [FailureClass.ENVIRONMENT_DATA] * 2
    assert trajectory.failures[0].cause.startswith("ValueError at games.py:")


async def test_a_deadline_that_passes_while_the_environment_answers_is_a_time_out_of_the_episode(table: Table):
    worker = table.worker("Odd", answers="hang", rollout={"trajectory_timeout_s": 0.3})
    trajectory = await table.play(worker, table.said("5"))
    assert trajectory.termination is Termination.TIMEOUT
    assert (trajectory.reward, trajectory.failures) == (0.0, ())


async def test_a_service_that_is_missing_until_the_deadline_is_no_fault_of_the_policy(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment_thread, "_GRACE_S", 1.0)
    worker = table.worker("Odd", answers="waits for its server", rollout={"trajectory_timeout_s": 0.3})
    trajectory = await table.play(worker, lambda ids, params: table.said("5")[0])
    assert (trajectory.termination, trajectory.reward) == (Termination.INFRA_ERROR, None)
    assert "the game server is away" in trajectory.failures[-1].message


async def test_a_turn_that_was_cut_short_is_not_answered(table: Table):
    cut = Completion(token_ids=[5], logprobs=[-0.5], finish_reason=FinishReason.LENGTH, version_spans=((0, 0),))
    trajectory = await table.play(table.worker(), [cut])
    assert trajectory.termination is Termination.MAX_RESPONSE_TOKENS
    assert trajectory.turns[-1].observation is None


async def test_the_state_of_an_episode_is_freed_when_its_engine_dies_or_it_is_cancelled(table: Table):
    worker = table.worker()
    with pytest.raises(EngineDeadError):
        await worker.run(REQUEST, ScriptedEngine([*table.said("5"), EngineDeadError("its core died")]))
    assert LOG == ["begin 3-p0-1", "end 3-p0-1"]
    LOG.clear()
    slow = ScriptedEngine(lambda ids, params: table.said("5")[0], delay_s=30)
    task = asyncio.create_task(worker.run(REQUEST, slow))
    while not slow.calls:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert LOG == ["begin 3-p0-1", "end 3-p0-1"]
    await worker.aclose()


async def test_a_lone_surrogate_reaches_neither_tokens_nor_files(table: Table):
    trajectory = await table.play(table.worker("Odd", answers="surrogate", rollout={"max_turns": 1}), table.said("5"))
    assert trajectory.turns[0].observation == "a?b"


async def test_an_environment_that_cannot_start_stops_the_run(table: Table):
    worker = table.worker("Odd", answers="away")
    with pytest.raises(ConfigError, match="the game server is away"):
        await worker.start()
    await worker.aclose()


async def test_a_template_that_refuses_a_second_user_message_stops_the_run(table: Table, tmp_path: Path):
    tokenizer = make_tokenizer("qwen2_5")
    source = str(tokenizer.chat_template)
    tokenizer.chat_template = (
        "{% if messages | length > 2 %}{{ raise_exception('one question only') }}{% endif %}" + source
    )
    tokenizer.save_pretrained(tmp_path)
    worker = Table(str(tmp_path), tokenizer).worker("Odd")
    with pytest.raises(ConfigError, match="one question only"):
        await worker.start()
    assert LOG == ["close"]  # what had started
