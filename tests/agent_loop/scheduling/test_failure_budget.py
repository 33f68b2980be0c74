import pytest

from agentrl.agent_loop.scheduling.failure_budget import FailureBudget
from agentrl.config.schema.run import RolloutSection
from agentrl.errors import DataError, RolloutError
from agentrl.types import Failure, FailureClass, Termination, TrajectorySummary
from tests.summaries import short_summary


def finished(prompt: int, failure_class: FailureClass | None = None) -> TrajectorySummary:
    termination = Termination.ANSWERED
    failures: tuple[Failure, ...] = ()
    if failure_class is not None:
        termination = Termination.DATA_ERROR if failure_class.is_data else Termination.INFRA_ERROR
        failures = (Failure(failure_class=failure_class, message=f"the {failure_class} of p{prompt} is broken"),)
    return short_summary(
        f"p{prompt}",
        reward=1.0 if failure_class is None else None,
        termination=termination,
        failures=failures,
    )


def make_budget(*, prompts_per_step: int = 10, max_infra_error_share: float = 0.5) -> FailureBudget:
    rollout = RolloutSection(
        prompts_per_step=prompts_per_step, samples_per_prompt=10, max_infra_error_share=max_infra_error_share
    )
    return FailureBudget(rollout)


def lose(budget: FailureBudget, prompts: range, failure_class: FailureClass) -> None:
    for prompt in prompts:
        budget.add(finished(prompt, failure_class))


def test_a_world_that_fails_as_often_as_allowed_is_borne_and_one_that_fails_more_ends_the_run():
    budget = make_budget()
    for prompt in range(200):
        budget.add(finished(prompt, FailureClass.JUDGE if prompt % 2 else None))
    with pytest.raises(RolloutError, match=r"of the last 99 trajectories .*`rollout.max_infra_error_share` is 0\.5"):
        lose(budget, range(200, 210), FailureClass.JUDGE)


def test_the_end_names_each_class_with_its_count_and_an_example_and_the_way_out():
    budget = make_budget()
    lose(budget, range(3), FailureClass.JUDGE)
    lose(budget, range(3, 5), FailureClass.ENGINE)
    with pytest.raises(RolloutError) as caught:
        lose(budget, range(5, 20), FailureClass.JUDGE)
    message = str(caught.value)
    assert "`engine`: 2 tries failed, 2 trajectories lost, such as 1-p3-0: the engine of p3 is broken" in message
    assert "`judge`: 6 tries failed, 6 trajectories lost, such as 1-p1-0: the judge of p1 is broken" in message
    assert "it continues from the last checkpoint" in message


def test_the_share_is_a_key_and_1_never_ends_the_run():
    strict, patient = make_budget(max_infra_error_share=0.1), make_budget(max_infra_error_share=1)
    for prompt in range(90):
        strict.add(finished(prompt))
    with pytest.raises(RolloutError, match="10 of the last 99"):
        lose(strict, range(90, 110), FailureClass.TOOL)
    lose(patient, range(300), FailureClass.TOOL)


def test_one_prompt_that_breaks_the_world_by_itself_ends_no_run():
    budget = make_budget()
    for prompt in range(20):
        budget.add(finished(prompt))
    for _ in range(100):
        budget.add(finished(99, FailureClass.ENGINE))


def test_an_outage_that_is_over_is_forgotten():
    budget = make_budget()
    for prompt in range(50):
        budget.add(finished(prompt))
    lose(budget, range(50, 90), FailureClass.JUDGE)
    for prompt in range(90, 190):
        budget.add(finished(prompt))
    lose(budget, range(190, 240), FailureClass.JUDGE)


def test_a_bad_row_does_not_spend_what_is_for_the_infrastructure():
    budget = make_budget()
    for prompt in range(99):
        budget.add(finished(prompt % 20, None if prompt % 5 == 0 else FailureClass.REWARD_DATA))


@pytest.mark.parametrize("failure_class", [FailureClass.TOOL_DATA, FailureClass.REWARD_DATA, FailureClass.REWARD])
def test_a_first_batch_of_which_nothing_can_be_scored_ends_the_run_also_where_others_are_cut_short(
    failure_class: FailureClass,
):
    budget = make_budget()
    for prompt in range(10):
        budget.add(short_summary(f"p{prompt}", reward=0.0, termination=Termination.MAX_RESPONSE_TOKENS))
    lose(budget, range(3), failure_class)
    match = rf"none of the first 3 trajectories, of 3 prompts, could be scored. `{failure_class}`: 3 .*of p0 is broken"
    with pytest.raises(DataError, match=match):
        budget.end_batch()


def test_a_reward_that_has_scored_once_is_not_broken_and_a_single_row_may_be():
    budget = make_budget()
    budget.add(finished(0))
    lose(budget, range(1, 64), FailureClass.REWARD_DATA)
    budget.end_batch()
    budget = make_budget()
    budget.add(finished(1, FailureClass.REWARD_DATA))
    budget.end_batch()
