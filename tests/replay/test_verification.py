"""Each contradiction that is planted in a record is named."""

import math
from dataclasses import replace
from typing import Any

import pytest

from agentrl.replay.recorded_run import RecordedStep
from agentrl.replay.verification import problems_of_step, problems_of_trajectory
from agentrl.timing import Span
from agentrl.types import Prompt, Termination, Trajectory, Turn

GOOD = Trajectory(
    trajectory_id="1-p-0",
    prompt_id="p",
    sample_index=0,
    token_ids=[5, 6, 7, 8],
    num_prompt_tokens=2,
    response_mask=[0, 0, 1, 1],
    rollout_logprobs=[math.nan, math.nan, -0.5, -0.25],
    version_spans=((2, 0),),
    turns=(Turn(text="x"),),
    termination=Termination.ANSWERED,
    reward=1.0,
    span=Span(started_at=1.0, ended_at=2.0),
)
PROMPTS = {"p": Prompt(prompt_id="p", messages=[])}


def test_a_good_trajectory_has_no_contradiction():
    assert list(problems_of_trajectory(GOOD, None)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"response_mask": [0, 0, 1]}, "4 tokens, 3 entries in its mask"),
        ({"num_prompt_tokens": 3}, "a token of the prompt counts as sampled"),
        ({"rollout_logprobs": [math.nan, math.nan, math.nan, -0.25]}, "a sampled token has no log-probability"),
        ({"version_spans": ((3, 0),)}, "its version spans do not cover what was sampled"),
        ({"version_spans": ()}, "its version spans do not cover what was sampled"),
        ({"reward": None}, "reward None and an end by `answered`"),
        ({"termination": Termination.INFRA_ERROR}, "reward 1.0 and an end by `infra_error`"),
        ({"span": Span(started_at=2.0, ended_at=1.0)}, "it ended before it started"),
    ],
)
def test_each_contradiction_is_named(change: dict[str, Any], problem: str):
    [found] = problems_of_trajectory(replace(GOOD, **change), None)
    assert found.startswith(problem)


def test_what_the_step_lacks_or_has_twice_is_named():
    fates = {"1-p-0": "trained", "1-q-0": "trained"}
    step = RecordedStep(
        step=1,
        prompts=PROMPTS,
        trajectories=[GOOD, GOOD, replace(GOOD, trajectory_id="1-r-0", prompt_id="r")],
        fates=fates,
    )
    assert list(problems_of_step(step, None)) == [
        "1-p-0: recorded 2 times",
        "1-r-0: no recorded use in the update",
        "1-q-0: used in the update, and not recorded",
        "1-r-0: its prompt is not recorded",
    ]
