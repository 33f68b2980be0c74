import math
from decimal import Decimal
from typing import Any

import numpy
import pytest
import torch

from agentrl.errors import UnexplainedError
from agentrl.rewards.score import Score, read_score


@pytest.mark.parametrize(
    "returned",
    [-0.5, numpy.float32(-0.5), numpy.array(-0.5), torch.tensor(-0.5), torch.tensor([-0.5]), Decimal("-0.5")],
)
def test_every_kind_of_number_is_a_score(returned: Any):
    assert read_score(returned, where="reward") == Score(value=-0.5)


@pytest.mark.parametrize("returned", [True, numpy.bool_(True), numpy.int64(1), {"score": True}])
def test_a_boolean_is_0_or_1(returned: Any):
    assert read_score(returned, where="reward") == Score(value=1.0)


def test_the_other_numbers_of_a_mapping_are_metrics_and_text_is_none():
    returned = {"score": 0.9, "acc": True, "length": numpy.int64(7), "pred": "42", "why": None, "ratio": math.nan}
    assert read_score(returned, where="reward") == Score(value=0.9, metrics={"acc": 1.0, "length": 7.0})


@pytest.mark.parametrize(
    "returned", [math.nan, -math.inf, None, "1.0", b"1", [1.0], torch.zeros(2), {"score": None}, {"score": math.inf}]
)
def test_what_is_no_finite_number_is_refused(returned: Any):
    with pytest.raises(UnexplainedError, match=r"reward of `p` is .*, and must be a finite number"):
        read_score(returned, where="reward of `p`")


def test_a_mapping_without_a_score_is_refused_with_what_it_has():
    with pytest.raises(UnexplainedError, match="is a mapping with `accuracy`; it must have `score`"):
        read_score({"accuracy": 1.0}, where="reward")
