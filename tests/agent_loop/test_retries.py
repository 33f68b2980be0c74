import pytest

from agentrl.agent_loop.retries import FailedTryError, failing_as, longest_s, pause_s, seed_suffix, should_retry
from agentrl.config.schema.run import RolloutSection
from agentrl.errors import (
    ConfigError,
    DataError,
    EngineError,
    JudgeUnavailableError,
    RolloutError,
    ToolError,
    UnexplainedError,
    WorkerDiedError,
)
from agentrl.types import Failure, FailureClass

JUDGE = Failure(failure_class=FailureClass.JUDGE, message="no verdict")
REFUSED = Failure(failure_class=FailureClass.TOOL_DATA, message="prompt `p` has no database")


def raised(cause: str, message: str = "") -> Failure:
    return Failure(failure_class=FailureClass.REWARD_DATA, message=message, cause=cause)


def failure_of(error: Exception) -> Failure:
    with pytest.raises(FailedTryError) as caught, failing_as(FailureClass.REWARD, FailureClass.REWARD_DATA):
        raise error
    return caught.value.failure


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (EngineError("gone"), FailureClass.ENGINE),
        (WorkerDiedError("engine 0: its process died"), FailureClass.ENGINE),
        (JudgeUnavailableError("no verdict"), FailureClass.JUDGE),
        (RolloutError("the checker is down"), FailureClass.REWARD),
        (DataError("no reference answer"), FailureClass.REWARD_DATA),
        (UnexplainedError("raised", cause="KeyError at r.py:3"), FailureClass.REWARD_DATA),
    ],
)
def test_a_failure_has_the_class_of_what_failed_and_else_of_the_stage(error: Exception, failure_class: FailureClass):
    failure = failure_of(error)
    assert (failure.failure_class, failure.message) == (failure_class, str(error))


@pytest.mark.parametrize("error", [ConfigError("gave -1"), ToolError("no result"), ZeroDivisionError("ours")])
def test_what_is_our_fault_is_no_failed_try(error: Exception):
    with pytest.raises(type(error)), failing_as(FailureClass.TOOL, FailureClass.TOOL_DATA):
        raise error


def test_a_message_that_quotes_the_policy_can_be_stored():
    message = failure_of(RolloutError("\ud800" + "x" * 10_000)).message
    message.encode()
    assert len(message) == 1000


def test_the_world_gets_every_retry_and_refused_data_none():
    assert should_retry([JUDGE])
    assert should_retry([JUDGE, JUDGE])
    assert not should_retry([JUDGE, JUDGE, JUDGE])
    assert not should_retry([REFUSED])


def test_an_unexpected_exception_is_tried_again_until_the_same_comes_back():
    """The messages may differ, because they may quote the policy's text."""
    first, repeated, other = (
        raised("ValueError at r.py:3", "abc"),
        raised("ValueError at r.py:3", "x"),
        raised("KeyError"),
    )
    assert should_retry([first])
    assert should_retry([first, other])
    assert not should_retry([first, repeated])


def test_an_episode_that_the_judge_failed_is_retried_with_its_seed_so_that_tool_users_are_not_filtered_out():
    engine = Failure(failure_class=FailureClass.ENGINE, message="gone")
    assert seed_suffix([]) == seed_suffix([JUDGE, JUDGE]) == ""
    assert seed_suffix([engine]) == seed_suffix([JUDGE, engine, JUDGE]) == "-retry1"
    assert len({seed_suffix([engine] * n) for n in range(4)}) == 4


def test_pauses_grow_and_differ_and_end_at_half_a_minute():
    for num_failures, longest in ((1, 1.0), (2, 4.0), (3, 16.0), (4, 30.0), (9, 30.0)):
        pauses = [pause_s(num_failures) for _ in range(50)]
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(set(pauses)) > 40


def test_a_trajectory_takes_at_most_its_tries_and_the_pauses_between_them():
    rollout = RolloutSection(trajectory_timeout_s=100, tool_timeout_s=10)
    assert longest_s(rollout, reward_timeout_s=5) == 3 * (100 + 15 + 10 + 5) + 1 + 4
