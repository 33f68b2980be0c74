"""Figures of evaluations on disk, against numbers counted by hand."""

from pathlib import Path

import pytest

from agentrl.evaluation.figures import Figures, figures_of
from agentrl.evaluation.record import read_evaluation
from agentrl.types import Termination, Trajectory
from tests.evaluation.recorded import REWARD, evaluation_folder, prompt, trajectory
from tests.summaries import SELECTION


def figures(folder: Path, trajectories: list[Trajectory], *words: str, samples: int = 2) -> list[Figures]:
    prompts = [prompt("a", level=1), prompt("b", data_set="shops", level=2), prompt("c", data_set="shops")]
    config = evaluation_folder(folder, prompts, trajectories, *words)
    record = read_evaluation(folder, config.reward)
    return figures_of(record, SELECTION, samples_per_prompt=samples, category_column=config.validation.category_column)


def test_each_data_set_and_category_has_figures_of_its_own(tmp_path: Path):
    recorded = [trajectory(name, n, reward) for name in "abc" for n, reward in enumerate((1.0, float(name == "a")))]
    found = figures(tmp_path, recorded, "validation.category_column=level")
    assert [item.name for item in found] == [
        "all prompts",
        "data set shops",
        "data set sums",
        "level (none)",
        "level 1",
        "level 2",
    ]
    assert [item.accuracy.mean for item in found] == pytest.approx([4 / 6, 0.5, 1.0, 0.5, 1.0, 0.5])
    assert [item.num_samples for item in found] == [6, 4, 2, 2, 2, 2]
    assert found[0].pass_at[2].mean == 1.0
    assert found[0].majority_at[2].mean == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_what_the_infrastructure_lost_is_in_no_figure_and_the_last_try_of_a_sample_counts(tmp_path: Path):
    recorded = [
        trajectory("a", 0, None),
        trajectory("b", 0, None),
        trajectory("b", 1, 0.0),
        trajectory("a", 1, 1.0),
        trajectory("a", 0, 1.0),
    ]
    [of_all, *_] = figures(tmp_path, recorded)
    assert (of_all.num_samples, of_all.num_prompts) == (3, 2)
    assert of_all.accuracy.mean == pytest.approx(2 / 3)
    assert of_all.pass_at[2].num_prompts == 1, "prompt b has a single scored sample"


def test_answers_vote_by_their_spelling_and_one_that_was_cut_short_has_none(tmp_path: Path):
    recorded = [
        trajectory("a", 0, 1.0, r"\boxed{5}"),
        trajectory("a", 1, 1.0, r"\boxed{5.0}"),
        trajectory("a", 2, 0.0, r"\boxed{\frac{1}{2}}"),
        trajectory("a", 3, 0.0, r"\boxed{0.50}"),
        trajectory("a", 4, 0.0, r"\boxed{0.5}", termination=Termination.MAX_TURNS),
        trajectory("a", 5, 0.0, "no answer"),
    ]
    record = read_evaluation(tmp_path, evaluation_folder(tmp_path, [prompt("a")], recorded).reward)
    assert [sample.answer for sample in record.samples] == ["5", "5", "1/2", "1/2", None, None]
    [of_all] = figures_of(record, SELECTION, samples_per_prompt=6, category_column=None)
    assert of_all.majority_at[6].mean == 0.5


def test_a_reward_without_a_notion_of_an_answer_has_no_majority(tmp_path: Path):
    [of_all, *_] = figures(tmp_path, [trajectory("a", 0, 1.0), trajectory("a", 1, 0.0)], REWARD)
    assert of_all.majority_at == {}
    assert of_all.pass_at[2].mean == 1.0
