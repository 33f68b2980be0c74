import pytest

from agentrl.observability.rollout_metrics import validation_metrics
from tests.summaries import SELECTION, short_summary

SUMMARIES = [
    short_summary("a", 0, reward=1.0),
    short_summary("a", 1, reward=0.0),
    short_summary("b", 0, reward=1.0),
    short_summary("b", 1, reward=1.0),
]


def test_each_data_set_has_its_accuracy_beside_that_of_all_and_pass_at_k_is_measured():
    metrics = validation_metrics(SUMMARIES, SELECTION, samples_per_prompt=2, data_sets={"a": "gsm8k", "b": "math"})
    assert metrics["validation/accuracy"] == 0.75
    assert (metrics["validation/accuracy/gsm8k"], metrics["validation/accuracy/math"]) == (0.5, 1.0)
    assert "validation/accuracy_stderr/gsm8k" in metrics
    assert metrics["validation/pass_at_2"] == pytest.approx(1.0)


def test_a_single_data_set_has_one_number():
    metrics = validation_metrics(SUMMARIES, SELECTION, samples_per_prompt=2, data_sets={"a": "math", "b": "math"})
    assert not [name for name in metrics if name.startswith("validation/accuracy/")]


def test_each_category_has_its_accuracy_beside_those_of_the_data_sets():
    names = {"data_sets": {"a": "math", "b": "math"}, "categories": {"a": "level=1"}}
    metrics = validation_metrics(SUMMARIES, SELECTION, samples_per_prompt=2, **names)
    found = {name: value for name, value in metrics.items() if name.startswith("validation/accuracy/")}
    assert found == {"validation/accuracy/level=1": 0.5}
