import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from agentrl.config.schema.algorithm import RewardModelSection, SelectionSection
from agentrl.config.schema.run import ActorSection, ModelSection, RewardSection, RunConfig
from agentrl.errors import ConfigError, RolloutError
from agentrl.training.model.sharded_model import open_classifier
from agentrl.training.parallel import Parallel, full_tensors
from agentrl.training.reward_model import RewardModel
from agentrl.training.update.update_plan import score_metrics, with_scores
from tests.training.training_cases import alone, make_group

GROUP = make_group(random.Random(0), "p", 6)
TRAJECTORIES = [trajectory.ref for trajectory in GROUP.trajectories]


@pytest.fixture(scope="module")
def classifier(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(3)
    AutoModelForSequenceClassification.from_pretrained(policy.path, num_labels=1).save_pretrained(folder)
    return folder


@pytest.fixture
def context() -> Iterator[Parallel]:
    parallel = Parallel(alone())
    yield parallel
    parallel.close()


def start(policy: ModelSection, context: Parallel, section: RewardModelSection, max_tokens: int = 1000) -> RewardModel:
    config = RunConfig(
        model=policy, reward=RewardSection(model=section), actor=ActorSection(max_tokens_per_micro_batch=max_tokens)
    )
    model = RewardModel(config, "reward")
    model.setup(context)
    return model


@pytest.mark.parametrize("max_tokens", [1, 64, 10_000])
def test_scores_match_transformers(policy: ModelSection, context: Parallel, classifier: Path, max_tokens: int):
    section = RewardModelSection(path=str(classifier))
    plain = AutoModelForSequenceClassification.from_pretrained(classifier, attn_implementation="eager").eval()
    plain.config.pad_token_id = None
    with torch.no_grad():
        expected = [plain(torch.tensor([trajectory.token_ids])).logits.item() for trajectory in TRAJECTORIES]
    model = start(policy, context, section, max_tokens)
    assert model.score(TRAJECTORIES) == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.01


def test_of_several_rows_the_last_is_scored(policy: ModelSection, context: Parallel, classifier: Path):
    first, second = TRAJECTORIES[:2]
    both = replace(first, token_ids=[*first.token_ids, *second.token_ids], row_starts=(len(first.token_ids),))
    model = start(policy, context, RewardModelSection(path=str(classifier)))
    assert model.score([both]) == pytest.approx(model.score([second]), abs=1e-6)


def test_sigmoid_scores_are_probabilities(policy: ModelSection, context: Parallel, classifier: Path):
    plain, squashed = (
        start(policy, context, RewardModelSection(path=str(classifier), activation=activation)).score(TRAJECTORIES)
        for activation in ("none", "sigmoid")
    )
    assert squashed == pytest.approx([1 / (1 + math.exp(-score)) for score in plain], abs=1e-6)


def test_a_rank_without_trajectories_scores_none(policy: ModelSection, context: Parallel, classifier: Path):
    assert start(policy, context, RewardModelSection(path=str(classifier))).score([]) == []


def test_a_classifier_of_two_labels_is_refused(policy: ModelSection, context: Parallel, tmp_path: Path):
    AutoModelForSequenceClassification.from_pretrained(policy.path, num_labels=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"`reward\.model\.path`: Qwen3ForSequenceClassification with 2 labels"):
        start(policy, context, RewardModelSection(path=str(tmp_path)))


def test_a_policy_is_refused_as_reward_model(policy: ModelSection, context: Parallel):
    with pytest.raises(ConfigError, match=r"has no weights `score\.weight`"):
        start(policy, context, RewardModelSection(path=policy.path))


def test_a_reward_model_is_read_in_parts_into_the_type_of_the_computation(
    policy: ModelSection, context: Parallel, classifier: Path
):
    opened = open_classifier(str(classifier))
    assert opened.files is not None
    assert {weight.device.type for weight in opened.model.parameters()} == {"meta"}
    half = start(policy.model_copy(update={"dtype": "bfloat16"}), context, RewardModelSection(path=str(classifier)))
    saved = AutoModelForSequenceClassification.from_pretrained(classifier).state_dict()
    held = {
        name.replace("backbone.", "model.").replace("head.", "score."): weight
        for name, weight in full_tensors(half._model, torch.bfloat16)
    }
    assert held.keys() == saved.keys()
    for name, weight in saved.items():
        assert torch.equal(held[name], weight.bfloat16()), name


def test_scores_and_rewards_are_weighted(policy: ModelSection):
    scores = {trajectory.summary.trajectory_id: 0.1 * index for index, trajectory in enumerate(GROUP.trajectories)}
    [weighed] = with_scores([GROUP], scores, reward_weight=0.5, score_weight=2.0)
    assert weighed.rewards == pytest.approx([0.5 * reward + 0.2 * i for i, reward in enumerate(GROUP.rewards)])
    assert [trajectory.ref for trajectory in weighed.trajectories] == TRAJECTORIES


def test_a_score_that_is_not_finite_is_refused():
    scores = {trajectory.summary.trajectory_id: float("nan") for trajectory in GROUP.trajectories}
    with pytest.raises(RolloutError, match="`p/0` has the score nan"):
        with_scores([GROUP], scores, reward_weight=1.0, score_weight=1.0)


def test_the_score_margin_is_that_of_solved_over_unsolved_trajectories():
    scores = {
        trajectory.summary.trajectory_id: 3.0 if trajectory.summary.reward else 1.0 for trajectory in GROUP.trajectories
    }
    metrics = score_metrics([GROUP], scores, SelectionSection())
    assert metrics["reward_model/score_margin"] == 2.0
    assert 1.0 < metrics["reward_model/score_mean"] < 3.0
