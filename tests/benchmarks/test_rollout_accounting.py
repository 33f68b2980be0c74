"""The checks of a run's directory find what must not be there."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.trajectory_builder import TrajectoryBuilder
from agentrl.config.schema.algorithm import AlgorithmSection, SelectionSection
from agentrl.config.schema.run import ModelSection, RolloutSection, RunConfig
from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from agentrl.timing import TimeSplit
from agentrl.types import (
    Completion,
    Failure,
    FailureClass,
    FinishReason,
    Prompt,
    Termination,
    ToolResult,
    ToolStatus,
    Trajectory,
    Turn,
)
from benchmarks.rollout.accounting import accounting_faults, logprob_faults, report_faults, token_faults, update_faults
from tests.chat_templates import TOOL_SCHEMA, make_tokenizer

PROMPTS = [Prompt(prompt_id=f"p{n}", messages=[{"role": "user", "content": f"How much is {n} * 7?"}]) for n in range(3)]


@pytest.fixture(scope="module")
def tokens() -> ChatTokens:
    return ChatTokens(make_tokenizer("qwen2_5"), [TOOL_SCHEMA])


def make_trajectory(
    tokens: ChatTokens, texts: Sequence[str], answers: Sequence[str], *, prompt: Prompt = PROMPTS[0], sample: int = 0
) -> Trajectory:
    """Return an episode as the loop records it; each text but the last calls a tool, which gives the answer."""
    builder = TrajectoryBuilder(tokens.prompt(prompt.messages), 4000)
    for number, text in enumerate(texts):
        calls = read_calls(FORMATS["hermes"], text, {}, id_prefix=str(number)).calls
        ids = [*tokens._encode(text), tokens.turn_ends.call.token_id]
        builder.add_completion(
            Completion(
                token_ids=ids, logprobs=[-0.1] * len(ids), finish_reason=FinishReason.STOP, version_spans=((0, 4),)
            )
        )
        results = [ToolResult(status=ToolStatus.OK, text=answers[number])] if calls else []
        builder.turns.append(Turn(text=text, calls=calls, results=tuple(results)))
        if results:
            builder.add_observation(tokens.observation([{"role": "tool", "content": results[0].text}]))
    trajectory = builder.build(
        trajectory_id=f"5-{prompt.prompt_id}-{sample}",
        prompt=prompt,
        sample_index=sample,
        termination=Termination.ANSWERED,
        times=TimeSplit(generate_s=0.1),
    )
    return replace(trajectory, reward=1.0)


def calling(code: str) -> str:
    return (
        f'<tool_call>{{"name": "python_code_with_standard_io", "arguments": {{"code": "print({code})"}}}}</tool_call>'
    )


def spliced(first: Trajectory, second: Trajectory, *, cut: int) -> Trajectory:
    """Return `first` with its tokens from `cut` on replaced by those of `second` from there on."""
    return replace(
        first,
        token_ids=first.token_ids[:cut] + second.token_ids[cut:],
        response_mask=first.response_mask[:cut] + second.response_mask[cut:],
        rollout_logprobs=first.rollout_logprobs[:cut] + second.rollout_logprobs[cut:],
    )


def test_a_whole_trajectory_has_no_faults(tokens: ChatTokens):
    trajectory = make_trajectory(tokens, [calling("6*7"), calling("1"), "It is 42."], ["42\n", "1\n"])
    assert token_faults(trajectory, PROMPTS[0], tokens, version=4) == []


def test_tokens_of_another_episode_are_found_wherever_they_begin(tokens: ChatTokens):
    trajectory = make_trajectory(tokens, [calling("6*7"), calling("1"), "It is 42."], ["42\n", "1\n"])
    other = make_trajectory(tokens, [calling("8*9"), calling("2"), "It is 72."], ["72\n", "2\n"])
    assert len(trajectory.token_ids) == len(other.token_ids)
    differing = max(
        n
        for n, (first, second) in enumerate(zip(trajectory.token_ids, other.token_ids, strict=True))
        if first != second
    )
    for cut in range(trajectory.num_prompt_tokens, differing + 1):
        assert token_faults(spliced(trajectory, other, cut=cut), PROMPTS[0], tokens, version=4), cut


def test_an_observation_that_no_tool_gave_is_found(tokens: ChatTokens):
    trajectory = make_trajectory(tokens, [calling("6*7"), "It is 42."], ["42\n"])
    other = make_trajectory(tokens, [calling("6*7"), "It is 42."], ["41\n"])
    faults = token_faults(replace(other, turns=trajectory.turns), PROMPTS[0], tokens, version=4)
    assert faults == ["what was observed is not what the tools answered"]


def test_the_prompt_of_another_trajectory_is_found(tokens: ChatTokens):
    trajectory = make_trajectory(tokens, ["It is 7."], [], prompt=PROMPTS[1])
    assert token_faults(trajectory, PROMPTS[2], tokens, version=4) == ["it does not begin with its prompt"]


def test_tokens_that_other_weights_sampled_are_found(tokens: ChatTokens):
    trajectory = make_trajectory(tokens, [calling("6*7"), "It is 42."], ["42\n"])
    assert "versions" in token_faults(trajectory, PROMPTS[0], tokens, version=5)[0]
    first, second = trajectory.version_spans
    mixed = replace(trajectory, version_spans=(first, (second[0], 3)))
    assert "versions" in token_faults(mixed, PROMPTS[0], tokens, version=4)[0]


def test_lost_doubled_and_foreign_trajectories_are_found(tokens: ChatTokens):
    every = [make_trajectory(tokens, ["7"], [], prompt=prompt, sample=n) for prompt in PROMPTS for n in range(2)]
    assert accounting_faults(every, PROMPTS, samples_per_prompt=2) == []
    assert accounting_faults(every[1:], PROMPTS, samples_per_prompt=2) == ["p0, sample 0: 1 too few"]
    assert accounting_faults([*every, every[3]], PROMPTS, samples_per_prompt=2) == ["p1, sample 1: 1 too many"]
    assert len(accounting_faults(every, PROMPTS[:2], samples_per_prompt=2)) == 2


def test_a_lost_trajectory_must_say_why_and_have_no_reward(tokens: ChatTokens):
    trajectory = make_trajectory(tokens, ["7"], [])
    why = Failure(failure_class=FailureClass.ENGINE, message="the engine died")
    lost = replace(trajectory, termination=Termination.INFRA_ERROR, token_ids=[], reward=None, failures=(why,))
    assert accounting_faults([lost], PROMPTS[:1], samples_per_prompt=1) == []
    assert accounting_faults([replace(lost, failures=())], PROMPTS[:1], samples_per_prompt=1)
    assert accounting_faults([replace(lost, reward=0.0)], PROMPTS[:1], samples_per_prompt=1)


def test_log_probabilities_that_do_not_follow_from_the_tokens_are_found():
    good: dict[str, float | None] = {"actor/rollout_logprob_diff_mean": 2e-7, "actor/rollout_ratio_max": 1.0001}
    assert logprob_faults(good) == []
    assert logprob_faults(good | {"actor/rollout_logprob_diff_mean": 0.01})
    assert logprob_faults(good | {"actor/rollout_ratio_max": None})


def test_tokens_that_were_trained_twice_or_of_an_unrewarded_trajectory_are_found(tokens: ChatTokens):
    config = RunConfig(
        model=ModelSection(path="policy"),
        rollout=RolloutSection(samples_per_prompt=2),
        algorithm=AlgorithmSection(selection=SelectionSection(keep=2)),
    )
    first, second = (
        replace(make_trajectory(tokens, ["7"], [], sample=sample), reward=float(sample)) for sample in range(2)
    )
    num_tokens = first.num_response_tokens + second.num_response_tokens
    assert update_faults({"actor/response_tokens": num_tokens}, [first, second], config) == []
    assert update_faults({"actor/response_tokens": num_tokens + 1}, [first, second], config)
    lost = replace(second, reward=None, termination=Termination.INFRA_ERROR)
    assert update_faults({"actor/response_tokens": num_tokens}, [first, lost], config)


def test_a_report_of_agents_that_does_not_add_up_is_found(tokens: ChatTokens):
    trajectory = make_trajectory(tokens, ["7"], [])
    trained = float(trajectory.num_response_tokens)
    row: dict[str, float | None] = {"agent/tokens_sampled": trained + 5, "agent/tokens_trained": trained}
    assert report_faults(row | {"agent/tokens_failed": 5.0}, [trajectory]) == []
    assert report_faults(row, [trajectory])
    assert report_faults(row | {"agent/tokens_failed": 5.0}, [])
