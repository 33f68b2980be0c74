import math
from dataclasses import replace

import pytest

from agentrl.agent_loop.trajectory_builder import TrajectoryBuilder
from agentrl.errors import EngineError
from agentrl.timing import TimeSplit
from agentrl.types import Completion, FinishReason, Prompt, Termination


def completion(
    ids: list[int], logprobs: list[float] | None = None, spans: tuple[tuple[int, int], ...] = ((0, 7),)
) -> Completion:
    return Completion(
        token_ids=ids,
        logprobs=[-0.5] * len(ids) if logprobs is None else logprobs,
        finish_reason=FinishReason.STOP,
        version_spans=spans,
    )


def built(builder: TrajectoryBuilder):
    return builder.build(
        trajectory_id="t",
        prompt=Prompt(prompt_id="p", messages=[]),
        sample_index=0,
        termination=Termination.ANSWERED,
        times=TimeSplit(generate_s=1.0),
    )


def test_tool_tokens_are_not_trained():
    builder = TrajectoryBuilder([1, 2], max_response_tokens=100)
    builder.add_completion(completion([3, 4]))
    builder.add_observation([5, 6, 7])
    builder.add_completion(completion([8]))
    trajectory = built(builder)
    assert trajectory.token_ids == [1, 2, 3, 4, 5, 6, 7, 8]
    assert trajectory.response_mask == [0, 0, 1, 1, 0, 0, 0, 1]
    assert trajectory.num_prompt_tokens == 2
    assert trajectory.num_response_tokens == 3


def test_logprobs_are_nan_exactly_where_nothing_was_sampled():
    builder = TrajectoryBuilder([1], max_response_tokens=100)
    builder.add_completion(completion([2], [-0.25]))
    builder.add_observation([3])
    trajectory = built(builder)
    assert [math.isnan(value) for value in trajectory.rollout_logprobs] == [True, False, True]
    assert trajectory.rollout_logprobs[1] == -0.25


@pytest.mark.parametrize("logprobs", [[], [-0.1], [-0.1, math.nan], [-0.1, -math.inf]])
def test_missing_logprobs_are_an_engine_error_never_zero(logprobs: list[float]):
    builder = TrajectoryBuilder([1], max_response_tokens=100)
    with pytest.raises(EngineError, match="log-probabilities"):
        builder.add_completion(completion([2, 3], logprobs))


def test_version_spans_point_into_the_whole_trajectory():
    builder = TrajectoryBuilder([1, 2], max_response_tokens=100)
    builder.add_completion(completion([3, 4, 5], spans=((0, 4), (2, 5))))
    builder.add_observation([6])
    builder.add_completion(completion([7], spans=((0, 5),)))
    assert built(builder).version_spans == ((2, 4), (4, 5), (6, 5))


@pytest.mark.parametrize("spans", [(), ((1, 4),)])
def test_tokens_without_a_policy_version_are_an_engine_error(spans: tuple[tuple[int, int], ...]):
    with pytest.raises(EngineError, match="version spans"):
        TrajectoryBuilder([1], max_response_tokens=10).add_completion(completion([2], spans=spans))


def test_observations_use_up_the_response_budget_and_the_prompt_does_not():
    builder = TrajectoryBuilder([1, 2, 3], max_response_tokens=10)
    builder.add_completion(completion([4, 5]))
    builder.add_observation([6, 7, 8])
    assert builder.remaining_tokens == 5


def test_experts_of_a_token_are_those_with_which_it_was_first_computed():
    """Each reply has those of the whole context but its last token; two bytes a token here."""
    builder = TrajectoryBuilder([1, 2], max_response_tokens=100)
    builder.add_completion(replace(completion([3, 4]), experts=b"aabbcc"))
    builder.add_observation([5])
    builder.add_completion(replace(completion([6]), experts=b"AABBCCddee"))
    assert built(builder).experts == b"aabbccddee"


def test_tokens_without_an_answer_have_any_experts():
    builder = TrajectoryBuilder([1, 2], max_response_tokens=100)
    builder.add_completion(replace(completion([3]), experts=b"aabb"))
    builder.add_observation([4, 5])
    builder.add_completion(replace(completion([]), experts=b""))
    assert built(builder).experts == b"aabb" + b"\0" * 4


@pytest.mark.parametrize("experts", [b"abcde", b"abcdef"])
def test_experts_that_are_not_as_many_for_each_token_are_an_engine_error(experts: bytes):
    builder = TrajectoryBuilder([1, 2], max_response_tokens=100)
    builder.add_completion(replace(completion([3]), experts=b"ab"))
    with pytest.raises(EngineError, match=r"bytes of experts for 3 tokens\. Each token"):
        builder.add_completion(replace(completion([4]), experts=experts))
