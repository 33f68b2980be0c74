import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.config.schema.algorithm import LoraSection
from agentrl.config.schema.run import ModelSection
from agentrl.config.schema.sft import SftTrainingSection
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.supervised import SupervisedTrainer
from tests.training.training_cases import VOCABULARY, make_example

TRAINING = SftTrainingSection(
    learning_rate=0.01,
    warmup_steps=2,
    final_learning_rate_fraction=0.1,
    weight_decay=0.1,
    max_grad_norm=0.5,
    max_tokens_per_micro_batch=64,
    num_threads=1,
)


def make_trainer(
    model: ModelSection,
    *,
    seed: int = 0,
    initial_weights: Literal["pretrained", "random"] = "pretrained",
    lora: LoraSection | None = None,
    activation_checkpointing: bool = False,
) -> SupervisedTrainer:
    training = TRAINING.model_copy(
        update={
            "initial_weights": initial_weights,
            "seed": seed,
            "activation_checkpointing": activation_checkpointing,
        }
    )
    trainer = SupervisedTrainer(model, training, num_steps=20, lora=lora or LoraSection())
    trainer.setup()
    return trainer


@pytest.fixture
def trainer(policy: ModelSection) -> Iterator[SupervisedTrainer]:
    started = make_trainer(policy)
    yield started
    started.close()


def examples(seed: int) -> list[TokenisedExample]:
    draws = random.Random(seed)
    return [make_example(draws, draws.randrange(6, 40)) for _ in range(12)]


def test_loss_and_norm_match_a_plain_loop(trainer: SupervisedTrainer, policy: ModelSection):
    model = AutoModelForCausalLM.from_pretrained(policy.path, dtype=torch.float32)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1)
    for step in (1, 2, 3):
        total, num_tokens = torch.zeros(()), 0
        for example in examples(step):
            labels = [i if m else -100 for i, m in zip(example.token_ids, example.response_mask, strict=True)]
            logits = model(torch.tensor([example.token_ids])).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum")
            num_tokens += sum(example.response_mask)
        optimiser.zero_grad()
        (total / num_tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimiser.param_groups:
            group["lr"] = trainer.learning_rate(step)
        optimiser.step()
        metrics = trainer.step(examples(step))
        assert metrics["sft/loss"] == pytest.approx(total.item() / num_tokens, rel=1e-4)
        assert metrics["sft/grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
        assert metrics["sft/response_tokens"] == num_tokens


def test_a_pattern_is_learnt(trainer: SupervisedTrainer):
    pattern = [TokenisedExample(token_ids=[3, 4, 5, 6, 7, 8], response_mask=[0, 1, 1, 1, 1, 1])] * 4
    losses = [trainer.step(pattern)["sft/loss"] for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]


def test_examples_without_a_response_token_are_refused(trainer: SupervisedTrainer):
    prompts_only = [TokenisedExample(token_ids=[3, 4, 5], response_mask=[0, 0, 0])]
    with pytest.raises(ValueError, match="none of the examples has a response token"):
        trainer.step(prompts_only)


def test_random_weights_need_only_a_config_and_follow_the_seed(policy: ModelSection, tmp_path: Path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in Path(policy.path).iterdir():
        if file.suffix != ".safetensors":
            (bare / file.name).write_bytes(file.read_bytes())
    exports = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trainer = make_trainer(ModelSection(path=str(bare)), seed=seed, initial_weights="random")
        trainer.step(examples(0))
        trainer.export(str(tmp_path / name))
        trainer.close()
        exports.append((tmp_path / name / "model.safetensors").read_bytes())
    assert exports[0] == exports[1] != exports[2]
    assert len(AutoTokenizer.from_pretrained(tmp_path / "a")) == VOCABULARY


def test_a_model_can_be_exported_over_its_source_folder(policy: ModelSection, tmp_path: Path):
    for file in Path(policy.path).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    before = (tmp_path / "model.safetensors").read_bytes()
    trainer = make_trainer(ModelSection(path=str(tmp_path)))
    trainer.step(examples(0))
    trainer.export(str(tmp_path))
    trainer.close()
    assert (tmp_path / "model.safetensors").read_bytes() != before
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == VOCABULARY


def test_the_held_out_loss_equals_that_of_a_step_and_changes_nothing(trainer: SupervisedTrainer):
    before = trainer.mean_loss(examples(1))
    assert trainer.mean_loss(examples(1)) == before
    assert trainer.step(examples(1))["sft/loss"] == pytest.approx(before, rel=1e-6)
    after = trainer.mean_loss(examples(1))
    assert after < before


@pytest.mark.parametrize("lora", [None, LoraSection(rank=2)])
def test_a_checkpoint_restores_weights_optimiser_and_schedule(
    policy: ModelSection, tmp_path: Path, lora: LoraSection | None
):
    exports, metrics = [], []
    for name in ("straight", "resumed"):
        trainer = make_trainer(policy, lora=lora)
        for step in (1, 2):
            trainer.step(examples(step))
        if name == "resumed":
            trainer.save(str(tmp_path / "checkpoint"))
            trainer.close()
            trainer = make_trainer(policy, lora=lora)
            trainer.load(str(tmp_path / "checkpoint"), step=2)
        metrics.append(trainer.step(examples(3)))
        trainer.export(str(tmp_path / name))
        trainer.close()
        exports.append((tmp_path / name / "model.safetensors").read_bytes())
    assert exports[0] == exports[1]
    assert metrics[0] == metrics[1]


def test_recomputed_activations_give_the_same_loss_and_gradient(policy: ModelSection):
    metrics = []
    for activation_checkpointing in (False, True):
        trainer = make_trainer(policy, activation_checkpointing=activation_checkpointing)
        metrics.append(trainer.step(examples(1)))
        trainer.close()
    assert metrics[1] == pytest.approx(metrics[0])


def test_lora_starts_from_the_model(policy: ModelSection):
    losses = []
    for lora in (None, LoraSection(rank=2)):
        trainer = make_trainer(policy, lora=lora)
        losses.append(trainer.mean_loss(examples(1)))
        trainer.close()
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
