import math
from dataclasses import replace

import pytest

from agentrl.observability.reports.failure import count_failures
from agentrl.observability.rollout_metrics import summarise, summarise_validation
from agentrl.types import Failure, FailureClass, Termination
from tests.summaries import SELECTION, short_summary

SUMMARY = short_summary(
    num_tokens=150, num_response_tokens=100, num_turns=2, num_tool_calls=1, wall_time_s=2.0, tool_time_s=0.5
)
WRONG = replace(SUMMARY, reward=0.0)
LOST = replace(
    SUMMARY,
    reward=None,
    termination=Termination.INFRA_ERROR,
    num_response_tokens=0,
    num_tool_calls=9,
    num_failed_tool_calls=9,
    num_retries=2,
    wall_time_s=900.0,
    failures=(
        Failure(failure_class=FailureClass.TOOL, message="the shop is shut"),
        Failure(failure_class=FailureClass.JUDGE, message="no verdict"),
        Failure(failure_class=FailureClass.JUDGE, message="no verdict"),
    ),
)


def test_infrastructure_failures_are_counted_and_left_out_of_every_mean() -> None:
    without = summarise([SUMMARY, WRONG], SELECTION)
    with_lost = summarise([SUMMARY, WRONG, LOST], SELECTION)
    changed = {name for name in without if without[name] != with_lost[name]}
    counts = {"trajectories", "infra_errors", "retries", "failures_judge", "failures_tool"}
    assert changed == {f"rollout/{name}" for name in counts}
    assert with_lost["rollout/infra_errors"] == 1
    assert (with_lost["rollout/failures_judge"], with_lost["rollout/failures_tool"]) == (2, 1)
    assert with_lost["rollout/retries"] == 2


def test_an_infrastructure_failure_does_not_lower_accuracy() -> None:
    metrics = summarise_validation([SUMMARY, WRONG, LOST, LOST], SELECTION)
    assert metrics["validation/accuracy"] == 0.5
    assert metrics["validation/infra_errors"] == 2


def test_a_trajectory_lost_to_its_data_is_counted_as_no_infrastructure_failure() -> None:
    broken = Failure(failure_class=FailureClass.REWARD_DATA, message="no reference answer")
    metrics = summarise([SUMMARY, replace(LOST, termination=Termination.DATA_ERROR, failures=(broken,))], SELECTION)
    assert (metrics["rollout/data_errors"], metrics["rollout/infra_errors"]) == (1, 0)
    assert metrics["rollout/reward_mean"] == 1.0


def test_tool_success_rate_is_over_calls_not_trajectories() -> None:
    many = replace(SUMMARY, num_tool_calls=9, num_failed_tool_calls=5)
    assert summarise([many, SUMMARY], SELECTION)["rollout/tool_success_rate"] == 0.5


def test_tool_call_share_is_over_trajectories_not_calls() -> None:
    many, none = replace(SUMMARY, num_tool_calls=9), replace(SUMMARY, num_tool_calls=0)
    assert summarise([many, none, none, none], SELECTION)["rollout/tool_call_share"] == 0.25


def test_tool_error_share_in_positives_ignores_negatives() -> None:
    positive = replace(SUMMARY, num_tool_calls=4, num_failed_tool_calls=1)
    negative = replace(WRONG, num_tool_calls=4, num_failed_tool_calls=4)
    assert summarise([positive, negative], SELECTION)["rollout/tool_error_share_in_positives"] == 0.25


@pytest.mark.parametrize(
    ("termination", "name"),
    [
        (Termination.ANSWERED, "answered_share"),
        (Termination.MAX_RESPONSE_TOKENS, "truncated_share"),
        (Termination.MAX_TURNS, "max_turns_share"),
        (Termination.TIMEOUT, "timeout_share"),
    ],
)
def test_each_termination_has_its_share(termination: Termination, name: str) -> None:
    metrics = summarise([replace(SUMMARY, termination=termination)], SELECTION)
    shares = [key for key in metrics if key.endswith("_share") and "tool" not in key]
    assert {key for key in shares if metrics[key] == 1.0} == {f"rollout/{name}"}
    assert sum(metrics[key] for key in shares) == 1.0


def test_means_and_percentiles() -> None:
    """Reference: closed forms of the numbers 1 to 21; the 95th percentile lies 19 of 20 intervals up."""
    summaries = [replace(SUMMARY, wall_time_s=float(n), num_response_tokens=n, num_turns=n) for n in range(1, 22)]
    metrics = summarise(summaries, SELECTION)
    assert metrics["rollout/wall_time_s_mean"] == 11.0
    assert metrics["rollout/wall_time_s_p95"] == 20.0
    assert metrics["rollout/response_tokens_mean"] == 11.0
    assert metrics["rollout/response_tokens_max"] == 21.0
    assert metrics["rollout/turns_mean"] == 11.0


def test_a_mean_over_nothing_is_nan_and_counts_are_zero() -> None:
    metrics = summarise([], SELECTION)
    names = ("trajectories", "infra_errors", "data_errors", "retries", "tool_results_cut", *count_failures([]))
    counts = {f"rollout/{name}" for name in names}
    assert {name for name, value in metrics.items() if value == 0} == counts
    assert all(math.isnan(value) for name, value in metrics.items() if name not in counts)


def test_without_calls_there_is_no_success_rate() -> None:
    metrics = summarise([replace(SUMMARY, num_tool_calls=0)], SELECTION)
    assert metrics["rollout/tool_call_share"] == 0.0
    assert math.isnan(metrics["rollout/tool_success_rate"])


def test_standard_error_of_independent_prompts() -> None:
    """Reference: sqrt(p (1 - p) / (n - 1)), from the unbiased variance of n zeros and ones."""
    summaries = [replace(SUMMARY, prompt_id=str(n), reward=float(n < 3)) for n in range(12)]
    assert summarise_validation(summaries, SELECTION)["validation/accuracy_stderr"] == pytest.approx(
        math.sqrt(0.25 * 0.75 / 11)
    )


def test_samples_of_one_prompt_that_agree_do_not_narrow_the_standard_error() -> None:
    once = [replace(SUMMARY, prompt_id=str(n), reward=float(n < 3)) for n in range(12)]
    expected = summarise_validation(once, SELECTION)["validation/accuracy_stderr"]
    assert summarise_validation(once * 4, SELECTION)["validation/accuracy_stderr"] == pytest.approx(expected)


def test_one_prompt_has_no_standard_error() -> None:
    assert math.isnan(summarise_validation([SUMMARY, WRONG], SELECTION)["validation/accuracy_stderr"])


def test_validation_has_every_fact_that_rollouts_have_but_for_the_failures_of_the_solved() -> None:
    rollout = {name.partition("/")[2] for name in summarise([SUMMARY], SELECTION)}
    validation = {name.partition("/")[2] for name in summarise_validation([SUMMARY], SELECTION)}
    assert rollout - validation == {"tool_error_share_in_positives"}
    assert validation - rollout == {"accuracy", "accuracy_stderr"}
