from itertools import islice
from pathlib import Path

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.run.preflight.models.folders import check_models
from agentrl.training.model.decoder import load_classifier
from agentrl.training.model.scalar_model import classifier_model
from examples.arithmetic.generate import validation_problems
from examples.arithmetic.train_reward_model import accuracy, held_out_dialogues, train, training_dialogues

EXAMPLE = SHIPPED_FOLDER / "examples" / "arithmetic"


def test_right_and_wrong_answers_are_about_as_many():
    labels = [label for _, label in islice(training_dialogues(), 1000)]
    assert 0.4 < sum(labels) / len(labels) < 0.7


def test_no_held_out_question_is_learnt_from():
    held_out = {problem.question for problem in validation_problems()}
    questions = {dialogue[1]["content"] for dialogue, _ in islice(training_dialogues(), 1000)}
    assert not questions & held_out
    assert {dialogue[1]["content"] for dialogue, _ in held_out_dialogues()} == held_out


def test_training_writes_a_folder_that_is_a_reward_model(tmp_path: Path):
    train(EXAMPLE / "policy", tmp_path, num_steps=20, batch_size=2, learning_rate=1e-4)
    assert classifier_model(load_classifier(str(tmp_path))).head.out_features == 1
    assert (tmp_path / "tokenizer.json").read_bytes() == (EXAMPLE / "policy" / "tokenizer.json").read_bytes()


def test_the_shipped_model_knows_right_from_wrong():
    """It was 0.988 when it was made; saying `right` to everything would be about 0.6."""
    assert accuracy(EXAMPLE / "reward_model", EXAMPLE / "policy") > 0.95


def test_the_ppo_demo_asks_for_a_reference_a_critic_and_a_reward_model():
    config = load_run_config(str(SHIPPED_FOLDER / "configs" / "demo_ppo.yaml")).config
    check_models(config)
    assert (config.has_reference, config.has_critic, config.has_reward_model) == (True, True, True)
