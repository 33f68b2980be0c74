import asyncio
import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest, ToolAgentLoop
from agentrl.config.schema.run import RolloutSection
from agentrl.engine import turn_sampling
from agentrl.engine.turn_sampling import turn_seed
from agentrl.errors import EngineDeadError, EngineError, RolloutError, WorkerDiedError
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.executor import ToolExecutor
from agentrl.types import (
    Completion,
    Deadline,
    FinishReason,
    Prompt,
    Termination,
    ToolResult,
    ToolStatus,
    Trajectory,
)
from tests.chat_templates import make_tokenizer
from tests.fakes import ScriptedEngine

PROMPT = Prompt(prompt_id="p0", messages=[{"role": "user", "content": "How much is 6 * 7?"}], answer="42")


class EchoTool:
    """Answers with its own argument, after a delay if it asks for one."""

    schema = ToolSchema(
        name="echo",
        description="Say it again.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )

    async def start(self) -> None: ...

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        text = arguments["text"]
        if text == "slow":
            await asyncio.sleep(0.05)
        if text == "broken":
            raise RolloutError("the echo service is down")
        return ToolResult(status=ToolStatus.OK, text=text)

    async def end_episode(self, episode: Episode) -> None: ...

    async def aclose(self) -> None: ...


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer("qwen2_5")


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@dataclasses.dataclass
class Stage:
    """A loop with a scripted policy."""

    tokenizer: PreTrainedTokenizerFast
    threads: ThreadPoolExecutor
    num_episodes: int = 0

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)

    def call(self, *texts: str) -> list[int]:
        return self.ids(
            "".join(f'<tool_call>{{"name": "echo", "arguments": {{"text": "{t}"}}}}</tool_call>' for t in texts)
        )

    async def play(self, engine: ScriptedEngine, **rollout: Any) -> Trajectory:
        section = RolloutSection(max_turns=4, max_response_tokens=2000).model_copy(update=rollout)
        tool = EchoTool()
        tokens = ChatTokens(self.tokenizer, [tool.schema.as_template_dict()])
        executor = ToolExecutor({"echo": tool}, timeout_s=60)
        loop = ToolAgentLoop(section, tokens, executor, tokenizer_threads=self.threads)
        self.num_episodes += 1
        request = EpisodeRequest(
            trajectory_id=f"1-p0-{self.num_episodes}", prompt=PROMPT, sample_index=0, seed="0/1-p0-0"
        )
        try:
            return await loop.run(request, engine)
        finally:
            await executor.aclose()


@pytest.fixture
def stage(tokenizer: PreTrainedTokenizerFast, threads: ThreadPoolExecutor) -> Stage:
    return Stage(tokenizer, threads)


async def test_a_stop_string_ends_a_turn_and_the_turn_end_that_was_not_sampled_follows_untrained(stage: Stage):
    called = stage.call("a")[:-1]  # without the turn's end
    engine = ScriptedEngine([[*called, *stage.ids(" surplus")[:-1]], stage.ids("It is 42.")])
    trajectory = await stage.play(engine, stop=["</tool_call>"])
    assert engine.calls[0].params.stop == ("</tool_call>",)
    assert trajectory.turns[0].text.endswith("</tool_call>")
    assert [result.text for result in trajectory.turns[0].results] == ["a"]
    start = trajectory.num_prompt_tokens
    sampled = len(called) + len(stage.ids(" surplus")) - 1
    assert trajectory.response_mask[start : start + sampled + 1] == [1] * sampled + [0]
    assert trajectory.token_ids[start + sampled] == stage.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert trajectory.token_ids[start + sampled + 1] != trajectory.token_ids[start + sampled]
    assert trajectory.termination is Termination.ANSWERED


async def test_a_stop_string_without_a_call_ends_the_episode(stage: Stage):
    trajectory = await stage.play(ScriptedEngine([stage.ids("so <answer>42</answer>.")[:-1]]), stop=["</answer>"])
    assert trajectory.turns[0].text == "so <answer>42</answer>"
    assert trajectory.termination is Termination.ANSWERED


async def test_an_episode_goes_on_until_the_policy_stops_calling_tools(stage: Stage):
    engine = ScriptedEngine([stage.call("a"), stage.call("b"), stage.ids("It is 42.")])
    trajectory = await stage.play(engine)
    assert trajectory.termination is Termination.ANSWERED
    assert [turn.text for turn in trajectory.turns][-1] == "It is 42."
    assert [result.text for result in trajectory.tool_results] == ["a", "b"]


async def test_every_turn_is_asked_with_the_ids_so_far_never_with_encoded_text(stage: Stage):
    # Ids that no tokenizer would give for their own text: bytes one by one, where "\\n\\n" is a merged token.
    newline = stage.tokenizer.encode("\n", add_special_tokens=False)
    odd = [*newline, *newline, *stage.call("a")]
    engine = ScriptedEngine([odd, stage.ids("done")])
    trajectory = await stage.play(engine)
    prompt = engine.calls[0].token_ids
    assert engine.calls[1].token_ids[: len(prompt) + len(odd)] == prompt + odd
    assert trajectory.token_ids[: len(engine.calls[1].token_ids)] == engine.calls[1].token_ids


async def test_only_sampled_tokens_are_in_the_mask(stage: Stage):
    replies = [stage.call("a"), stage.ids("done")]
    trajectory = await stage.play(ScriptedEngine(replies))
    sampled = [t for t, kept in zip(trajectory.token_ids, trajectory.response_mask, strict=True) if kept]
    assert sampled == replies[0] + replies[1]


async def test_a_malformed_call_is_answered_with_the_error_and_the_policy_may_continue(stage: Stage):
    engine = ScriptedEngine([stage.ids("<tool_call>{oops}</tool_call>"), stage.call("a"), stage.ids("done")])
    trajectory = await stage.play(engine)
    first, second = trajectory.tool_results
    assert (first.status, second.status) == (ToolStatus.UNPARSABLE, ToolStatus.OK)
    assert "not valid JSON" in stage.tokenizer.decode(trajectory.token_ids)
    assert trajectory.termination is Termination.ANSWERED


async def test_parallel_calls_are_answered_in_the_order_of_the_calls(stage: Stage):
    trajectory = await stage.play(ScriptedEngine([stage.call("slow", "quick"), stage.ids("done")]))
    assert [result.text for result in trajectory.tool_results] == ["slow", "quick"]
    text = stage.tokenizer.decode(trajectory.token_ids)
    assert text.index("\nslow\n") < text.index("\nquick\n")


async def test_a_call_in_a_thought_that_the_template_has_opened_is_not_made(threads: ThreadPoolExecutor):
    tokenizer = make_tokenizer("chatml_hermes")
    tokenizer.chat_template = str(tokenizer.chat_template) + "{{ '<think>\\n' if add_generation_prompt }}"
    stage = Stage(tokenizer, threads)
    thought = '<tool_call>{"name": "echo", "arguments": {"text": "a"}}</tool_call>, or not?</think>'
    trajectory = await stage.play(ScriptedEngine([stage.ids(thought + "No need.")]))
    assert trajectory.termination is Termination.ANSWERED
    assert trajectory.turns[0].calls == ()


async def test_the_turn_limit_ends_with_its_own_termination(stage: Stage):
    trajectory = await stage.play(ScriptedEngine([stage.call("a")] * 4), max_turns=2)
    assert trajectory.termination is Termination.MAX_TURNS
    assert len(trajectory.turns) == 2
    assert not trajectory.turns[-1].results


async def test_the_sampling_budget_shrinks_by_all_that_came_after_the_prompt(stage: Stage):
    engine = ScriptedEngine([stage.call("a"), stage.ids("done")])
    await stage.play(engine, max_response_tokens=500)
    used = len(engine.calls[1].token_ids) - len(engine.calls[0].token_ids)
    assert [call.params.max_tokens for call in engine.calls] == [500, 500 - used]


async def test_a_completion_that_fills_the_budget_ends_as_truncated(stage: Stage):
    trajectory = await stage.play(ScriptedEngine([stage.ids("word " * 100)]), max_response_tokens=50)
    assert trajectory.termination is Termination.MAX_RESPONSE_TOKENS
    assert trajectory.num_response_tokens == 50


async def test_a_long_tool_result_is_cut_and_leaves_room_for_the_answer(stage: Stage):
    engine = ScriptedEngine([stage.call("x" * 600), stage.ids("done")])
    trajectory = await stage.play(engine, max_response_tokens=1000, max_tool_response_tokens=100)
    assert trajectory.termination is Termination.ANSWERED
    assert trajectory.tool_results[0].truncated
    text = str(stage.tokenizer.decode(trajectory.token_ids))
    assert "x" * 100 + "\n[cut: 500 more tokens]" in text
    assert "x" * 101 not in text.rpartition("<tool_response>")[2]


@pytest.mark.parametrize("budget", range(80, 200, 7))
async def test_no_budget_leaves_an_unanswered_call_or_an_overlong_trajectory(stage: Stage, budget: int):
    engine = ScriptedEngine([stage.call("y" * 20), stage.ids("done"), stage.ids("done")])
    trajectory = await stage.play(engine, max_response_tokens=budget)
    assert len(trajectory.token_ids) - trajectory.num_prompt_tokens <= budget
    if len(engine.calls) > 1:
        assert engine.calls[1].params.max_tokens >= 32
    else:
        assert trajectory.termination is Termination.MAX_RESPONSE_TOKENS


async def test_an_infrastructure_failure_of_a_tool_is_raised_not_scored(stage: Stage):
    with pytest.raises(RolloutError, match="echo service"):
        await stage.play(ScriptedEngine([stage.call("broken")]))


async def test_an_engine_failure_is_raised_not_scored(stage: Stage):
    with pytest.raises(EngineError, match="gone"):
        await stage.play(ScriptedEngine([EngineError("gone")]))


async def test_a_reply_that_an_engine_aborted_early_is_no_truncated_answer(stage: Stage):
    half = Completion(
        token_ids=stage.ids("I think"), logprobs=[-0.1] * 8, finish_reason=FinishReason.ABORT, version_spans=((0, 0),)
    )
    with pytest.raises(EngineError, match="aborted request"):
        await stage.play(ScriptedEngine([half]))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever an engine ends have been ended by a deadline."""
    monkeypatch.setattr(turn_sampling, "_EARLY_S", math.inf)


@pytest.mark.usefixtures("late")
async def test_a_deadline_ends_the_episode_with_what_is_there(stage: Stage):
    half = Completion(
        token_ids=stage.ids("I think"), logprobs=[-0.1] * 8, finish_reason=FinishReason.ABORT, version_spans=((0, 0),)
    )
    trajectory = await stage.play(ScriptedEngine([half]))
    assert trajectory.termination is Termination.TIMEOUT
    assert trajectory.num_response_tokens == 8


class StallingEngine(ScriptedEngine):
    """Gives one turn, and no token after it."""

    async def generate(self, *arguments: Any, **options: Any) -> Completion:
        completion = await super().generate(*arguments, **options)
        await self.sleep()
        return completion


async def test_an_episode_whose_time_is_over_may_end_without_a_token_of_its_last_turn(stage: Stage):
    trajectory = await stage.play(StallingEngine([stage.call("a")]), trajectory_timeout_s=3)
    assert trajectory.termination is Termination.TIMEOUT


async def test_an_engine_too_busy_for_a_later_turn_is_no_wrong_answer_either(stage: Stage):
    with pytest.raises(EngineError, match="no token"):
        await stage.play(StallingEngine([stage.call("a")]), turn_timeout_s=0.5)


async def test_an_engine_too_busy_for_a_first_token_is_no_wrong_answer(stage: Stage):
    engine = ScriptedEngine([stage.call("a")], delay_s=30)
    with pytest.raises(EngineError, match="no token"):
        await stage.play(engine, trajectory_timeout_s=0.1)


async def test_an_engine_whose_process_died_is_a_dead_engine_and_no_dead_worker(stage: Stage):
    class GoneEngine(ScriptedEngine):
        async def generate(self, *arguments: Any, **options: Any) -> Completion:
            raise WorkerDiedError("engine 0: its process died")

    with pytest.raises(EngineDeadError, match="engine 0: its process died"):
        await stage.play(GoneEngine([]))


async def test_an_engine_that_ignores_its_deadline_is_a_dead_engine(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    class HungEngine(ScriptedEngine):
        async def generate(self, *arguments: Any, **options: Any) -> Completion:
            await asyncio.sleep(600)
            raise AssertionError

    monkeypatch.setattr(turn_sampling, "_ENGINE_GRACE_S", 0.1)
    with pytest.raises(EngineDeadError, match="no answer to request 1-p0-1-0"):
        await stage.play(HungEngine([]), turn_timeout_s=0.1)


async def test_an_engine_that_gives_no_token_is_an_error_not_an_endless_loop(stage: Stage):
    empty = Completion(token_ids=[], logprobs=[], finish_reason=FinishReason.STOP, version_spans=())
    with pytest.raises(EngineError, match="no token"):
        await stage.play(ScriptedEngine([empty]))


async def test_sampling_seeds_depend_on_run_step_prompt_sample_and_turn_only(stage: Stage):
    first = ScriptedEngine([stage.call("a"), stage.ids("done")])
    second = ScriptedEngine([stage.call("a"), stage.ids("done")])
    await stage.play(first)
    await stage.play(second)
    seeds = [call.params.seed for call in first.calls]
    assert seeds == [call.params.seed for call in second.calls]
    assert len(set(seeds)) == 2
    assert turn_seed("0/1-p0-0", 0) != turn_seed("0/1-p0-1", 0)


async def test_many_episodes_run_at_once_on_one_loop(stage: Stage):
    everybody = asyncio.Barrier(50)

    class MeetingEngine(ScriptedEngine):
        async def generate(self, *arguments: Any, **options: Any) -> Completion:
            await everybody.wait()
            return await super().generate(*arguments, **options)

    engine = MeetingEngine(lambda ids, _: stage.ids("done") if len(ids) > 250 else stage.call("slow"))
    trajectories: Sequence[Trajectory] = await asyncio.gather(*(stage.play(engine) for _ in range(50)))
    assert all(t.termination is Termination.ANSWERED for t in trajectories)


async def test_a_turn_that_ends_with_another_token_of_the_model_is_read_and_kept_as_sampled(stage: Stage):
    other = stage.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    call, answer = [*stage.call("a")[:-1], other], [*stage.ids("\\boxed{42}")[:-1], other]
    engine = ScriptedEngine([call, answer])
    trajectory = await stage.play(engine)
    assert trajectory.termination is Termination.ANSWERED
    assert trajectory.turns[-1].text == "\\boxed{42}"
    assert [result.text for result in trajectory.tool_results] == ["a"]
    prompt, longer = engine.calls[0].token_ids, engine.calls[1].token_ids
    assert longer[: len(prompt) + len(call)] == prompt + call
    behind = str(stage.tokenizer.decode(longer[len(prompt) + len(call) :]))
    assert behind.startswith("\n<|im_start|>user\n<tool_response>\n")
