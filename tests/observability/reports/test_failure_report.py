import logging
from dataclasses import replace

import pytest

from agentrl.observability.reports.failure import count_failures, describe_failures, warn_of_failures
from agentrl.types import Failure, FailureClass, Termination
from tests.observability.test_rollout_metrics import LOST, SUMMARY

NO_VERDICT = Failure(failure_class=FailureClass.JUDGE, message="judge http://10.0.0.1:8088: no verdict in 30 s")


def broken(prompt: int) -> Failure:
    return Failure(failure_class=FailureClass.REWARD_DATA, message=f"prompt `p{prompt}` has no reference answer")


MADE_AGAIN = replace(SUMMARY, trajectory_id="4-p0-0", failures=(NO_VERDICT,))
GIVEN_UP = replace(LOST, trajectory_id="4-p1-0", failures=(NO_VERDICT, NO_VERDICT))
UNUSABLE = [
    replace(
        LOST,
        trajectory_id=f"4-p{n}-0",
        prompt_id=f"p{n}",
        termination=Termination.DATA_ERROR,
        failures=(broken(n),),
    )
    for n in range(8)
]


def test_every_failed_try_counts_also_where_the_trajectory_was_made_after_all():
    counts = count_failures([SUMMARY, MADE_AGAIN, GIVEN_UP, UNUSABLE[0]])
    assert counts.pop("failures_judge") == 3
    assert counts.pop("failures_reward_data") == 1
    assert set(counts.values()) == {0}


def test_each_class_is_one_warning_with_its_count_and_one_example(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        warn_of_failures("step 4 rollout", [SUMMARY, MADE_AGAIN, GIVEN_UP, *UNUSABLE])
    assert [record.getMessage() for record in caplog.records] == [
        "step 4 rollout: `judge`: 3 tries failed, 1 trajectory lost, such as 4-p0-0: "
        "judge http://10.0.0.1:8088: no verdict in 30 s",
        "step 4 rollout: `reward_data`: 8 tries failed (of `p0`, `p1`, `p2`, `p3`, `p4` and 3 more), 8 trajectories "
        "lost, such as 4-p0-0: prompt `p0` has no reference answer",
    ]


def test_the_console_names_no_trajectory(caplog: pytest.LogCaptureFixture):
    warn_of_failures("step 4 rollout", [MADE_AGAIN, GIVEN_UP])
    assert [record.__dict__["on_console"] for record in caplog.records] == [
        "step 4 rollout: `judge`: 3 tries failed, 1 trajectory lost: judge http://10.0.0.1:8088: no verdict in 30 s"
    ]


def test_where_nothing_failed_there_is_nothing_to_say():
    assert describe_failures([SUMMARY]) == []
