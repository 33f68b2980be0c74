"""Forward and backward of one update on trajectories of very different lengths, beside a padded loop and TRL's GRPO trainer.

    python -m benchmarks.training.packing [--groups 4] [--group 8] [--longest 512] [--rounds 3]

All three compute the gradient of the same policy loss over the same trajectories, whose responses have lengths drawn evenly
on a logarithmic scale behind short prompts; that the gradients agree is checked.

- packed: agentrl, in rows of at most as many tokens as a micro-batch of the others has with its padding;
- padded: eight trajectories at a time, padded to the longest of the eight, through the model as transformers has it;
- TRL: `GRPOTrainer`'s own loss, eight at a time, prompts padded on the left and completions on the right to the longest of
  all, as its trainer hands them out.

Times are CPU seconds of one thread, in turn, so that what else runs on the machine counts little. Prints medians and ratios.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from agentrl.config.schema import ModelSection
from agentrl.training.balance import Packing
from agentrl.training.batch import pack_trajectories
from agentrl.training.model import load_model
from agentrl.training.scoring import score_tokens
from agentrl.types import Trajectory
from benchmarks.training.workload import make_groups, save_model

MICRO_BATCH = 8


def packed_pass(
    folder: str, trajectories: list[Trajectory], advantages: list[float]
) -> tuple[nn.Module, Callable[[], None]]:
    """Return agentrl's model, and a pass that leaves the gradient in it."""
    model = load_model(ModelSection(path=folder))
    longest = max(len(trajectory.token_ids) for trajectory in trajectories)
    batches = pack_trajectories(trajectories, advantages, packing=Packing(max_tokens=MICRO_BATCH * longest))
    num_scored = sum(trajectory.num_response_tokens for trajectory in trajectories)

    def run() -> None:
        for batch in batches:
            logprobs_N = score_tokens(model, batch.tokens, temperature=1.0).logprobs_N
            ratio_N = torch.exp(logprobs_N - logprobs_N.detach())
            (-(ratio_N * batch.advantages_N).sum() / num_scored).backward()

    return model, run


def padded_pass(
    folder: str, trajectories: list[Trajectory], advantages: list[float]
) -> tuple[nn.Module, Callable[[], None]]:
    """Return an ordinary model, and a pass over padded micro-batches that leaves the gradient in it."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    num_scored = sum(trajectory.num_response_tokens for trajectory in trajectories)
    batches = []
    for start in range(0, len(trajectories), MICRO_BATCH):
        chosen = trajectories[start : start + MICRO_BATCH]
        ids, mask, real = (
            pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
            for rows in (
                [one.token_ids for one in chosen],
                [one.response_mask for one in chosen],
                [[1] * len(one.token_ids) for one in chosen],
            )
        )
        batches.append((ids, mask, real, torch.tensor(advantages[start : start + MICRO_BATCH])[:, None]))

    def run() -> None:
        for ids, mask, real, weights in batches:
            logits = model(input_ids=ids, attention_mask=real).logits[:, :-1]
            logprobs = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
            ratio = torch.exp(logprobs - logprobs.detach())
            (-(ratio * weights * mask[:, 1:]).sum() / num_scored).backward()

    return model, run


def trl_pass(
    folder: str, trajectories: list[Trajectory], advantages: list[float]
) -> tuple[nn.Module, Callable[[], None]]:
    """Return TRL's model, and a pass over its micro-batches that leaves the gradient in it."""
    settings = GRPOConfig(
        output_dir=folder,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=MICRO_BATCH,
        num_generations=MICRO_BATCH,
        loss_type="bnpo",
        epsilon_high=0.28,
        beta=0.0,
        disable_dropout=True,
    )
    trainer: Any = GRPOTrainer(
        folder,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "w3"}] * MICRO_BATCH),
    )
    trainer.current_gradient_accumulation_steps = 1
    num_scored = sum(trajectory.num_response_tokens for trajectory in trajectories)
    prompts = [torch.tensor(one.token_ids[: one.num_prompt_tokens]) for one in trajectories]
    completions = [torch.tensor(one.token_ids[one.num_prompt_tokens :]) for one in trajectories]
    inputs = {
        "prompt_ids": pad_sequence(prompts, batch_first=True, padding_side="left"),
        "prompt_mask": pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left"),
        "completion_ids": pad_sequence(completions, batch_first=True),
        "completion_mask": pad_sequence([torch.ones_like(ids) for ids in completions], batch_first=True),
        "advantages": torch.tensor(advantages),
    }
    trainer.model.eval()  # in which it accumulates nothing; there is no dropout to differ

    def run() -> None:
        for start in range(0, len(trajectories), MICRO_BATCH):
            batch = {name: tensor[start : start + MICRO_BATCH] for name, tensor in inputs.items()}
            num_here = batch["completion_mask"].sum()
            batch["num_items_in_batch"] = num_here
            # Its loss is the mean over the tokens of a micro-batch; ours is over those of all.
            (trainer._compute_loss(trainer.model, batch) * num_here / num_scored).backward()

    return trainer.model, run


def gradient_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients by name."""
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    draws = random.Random(0)
    lengths = [
        [round(math.exp(draws.uniform(math.log(16), math.log(given.longest)))) for _ in range(given.group)]
        for _ in range(given.groups)
    ]
    groups = make_groups(draws, prompts=[draws.randrange(16, 48) for _ in lengths], responses=lengths)
    trajectories = [made.ref for group in groups for made in group.trajectories]
    advantages = [float(index % 2) - 0.4 for index in range(len(trajectories))]
    cpu_s: dict[str, list[float]] = {}
    gradients: dict[str, dict[str, Tensor]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, width=256, layers=4)
        passes = {
            "packed": packed_pass(folder, trajectories, advantages),
            "padded": padded_pass(folder, trajectories, advantages),
            "TRL": trl_pass(folder, trajectories, advantages),
        }
        for _ in range(given.rounds):
            for name, (model, run) in passes.items():
                model.zero_grad()
                started = time.process_time()
                run()
                cpu_s.setdefault(name, []).append(time.process_time() - started)
                gradients[name] = gradient_of(model)
    medians = {name: statistics.median(times) for name, times in cpu_s.items()}
    print(f"{len(trajectories)} trajectories, {sum(len(one.token_ids) for one in trajectories)} tokens")
    for name, median in medians.items():
        furthest = max(
            ((gradients["packed"][weight] - theirs).norm() / theirs.norm()).item()
            for weight, theirs in gradients[name].items()
        )
        print(f"{name:6s} {median:.3f} CPU s, x {median / medians['packed']:.2f} of ours (bar: at least 2); "
              f"gradient differs by {furthest:.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
