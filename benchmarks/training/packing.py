"""Time of an update on trajectories of very different lengths, compared with a padded loop and TRL's GRPO trainer.

    python -m benchmarks.training.packing [--groups 3] [--group 8] [--longest 1024] [--rounds 3]

All three make the same update of the same float32 model from the same trajectories (short prompts, response lengths uniform on
a logarithmic scale): forward and backward passes, clipping, AdamW. The learning rate is zero, so every round starts with the
same weights. The norms of the gradients must agree (`tests/training/update/test_splits.py` compares the gradients).

- packed: agentrl's actor, with as many tokens per row as a padded micro-batch of the others;
- padded: eight trajectories at a time, padded to the longest of the eight, through transformers' own model;
- TRL: `GRPOTrainer.training_step`, eight at a time, prompts padded on the left and completions on the right to the longest of
  all, as in its trainer; recorded trajectories replace the sampling.

Times are CPU seconds of one thread, measured in turn after a warm-up round. Prints medians and ratios; the exit code is 1 below
the bar, or if the gradients differ.
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from agentrl.algorithms.advantage import ADVANTAGES
from agentrl.config.schema.algorithm import AlgorithmSection
from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel, ParallelContext, open_store
from agentrl.training.update.update_plan import plan_update
from agentrl.types import Group, Trajectory
from benchmarks.training.workload import make_groups, save_model

MICRO_BATCH = 8
MAX_GRAD_NORM = 1.0
BAR = 2.0
SAME = 1e-4
"""Largest relative difference of the norms of the gradients."""


def packed_update(folder: str, groups: Sequence[Group]) -> Callable[[], float]:
    """Return agentrl's own update; calling it returns the norm of the gradient."""
    longest = max(len(trajectory.ref.token_ids) for group in groups for trajectory in group.trajectories)
    config = RunConfig(
        model=ModelSection(path=folder),
        actor=ActorSection(
            learning_rate=0.0,
            warmup_steps=0,
            max_grad_norm=MAX_GRAD_NORM,
            max_tokens_per_micro_batch=MICRO_BATCH * longest,
        ),
        algorithm=AlgorithmSection(advantage="grpo", aggregation="token_mean"),
        rollout=RolloutSection(max_response_tokens=longest),
    )
    store = open_store("127.0.0.1")
    context = ParallelContext(rank=0, world_size=1, master_addr="127.0.0.1", master_port=store.port, store=store)
    actor = Actor(config, "actor")
    actor.setup(Parallel(context))
    [(shard, refs)] = plan_update(groups, step=1, num_ranks=1, num_mini_batches=1)
    trajectories = [trajectory.ref for trajectory in refs]

    def update() -> float:
        return actor.update(shard, trajectories, [TokenInputs()] * len(trajectories))["actor/grad_norm"]

    return update


def padded_update(folder: str, trajectories: list[Trajectory], advantages: list[float]) -> Callable[[], float]:
    """Return an update of an ordinary model over padded micro-batches; calling it returns the norm of the gradient."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    num_scored = sum(trajectory.num_response_tokens for trajectory in trajectories)
    batches = []
    for start in range(0, len(trajectories), MICRO_BATCH):
        chosen = trajectories[start : start + MICRO_BATCH]
        ids, mask, real = (
            pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
            for rows in (
                [trajectory.token_ids for trajectory in chosen],
                [trajectory.response_mask for trajectory in chosen],
                [[1] * len(trajectory.token_ids) for trajectory in chosen],
            )
        )
        batches.append((ids, mask, real, torch.tensor(advantages[start : start + MICRO_BATCH])[:, None]))

    def update() -> float:
        for ids, mask, real, weights in batches:
            logits = model(input_ids=ids, attention_mask=real).logits[:, :-1]
            logprobs = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
            ratio = torch.exp(logprobs - logprobs.detach())
            (-(ratio * weights * mask[:, 1:]).sum() / num_scored).backward()
        return clip_and_step(model, optimiser)

    return update


def trl_update(folder: str, trajectories: list[Trajectory], advantages: list[float]) -> Callable[[], float]:
    """Return TRL's training steps of one update; calling them returns the norm of the gradient."""
    num_micro_batches = len(trajectories) // MICRO_BATCH
    settings = GRPOConfig(
        output_dir=folder,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=num_micro_batches,
        num_generations=MICRO_BATCH,
        learning_rate=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        loss_type="dapo",
        beta=0.0,
        disable_dropout=True,
    )
    recorded = padded_for_trl(trajectories, advantages)

    class RecordedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
            return dict(recorded)

    trainer: Any = RecordedTrainer(
        folder,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "w3"}] * len(trajectories)),
    )
    trainer.current_gradient_accumulation_steps = num_micro_batches
    optimiser = trainer.create_optimizer()

    def update() -> float:
        for _ in range(num_micro_batches):
            trainer.training_step(trainer.model, {}, None)
        return clip_and_step(trainer.model, optimiser)

    return update


def padded_for_trl(trajectories: list[Trajectory], advantages: list[float]) -> dict[str, Tensor]:
    """Return the trajectories in TRL's form of sampled and scored completions."""
    prompts = [torch.tensor(trajectory.token_ids[: trajectory.num_prompt_tokens]) for trajectory in trajectories]
    completions = [torch.tensor(trajectory.token_ids[trajectory.num_prompt_tokens :]) for trajectory in trajectories]
    return {
        "prompt_ids": pad_sequence(prompts, batch_first=True, padding_side="left"),
        "prompt_mask": pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left"),
        "completion_ids": pad_sequence(completions, batch_first=True),
        "completion_mask": pad_sequence([torch.ones_like(ids) for ids in completions], batch_first=True),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }


def clip_and_step(model: nn.Module, optimiser: torch.optim.Optimizer) -> float:
    """Clip the gradients and make an optimiser step; return the norm of the gradient."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM).item()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return norm


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.groups * options.group % MICRO_BATCH:
        parser.error(f"--groups times --group must be a multiple of {MICRO_BATCH}, the others' micro-batch")
    torch.set_num_threads(1)
    draws = random.Random(0)
    lengths = [
        [round(math.exp(draws.uniform(math.log(16), math.log(options.longest)))) for _ in range(options.group)]
        for _ in range(options.groups)
    ]
    groups = make_groups(draws, prompts=[draws.randrange(16, 48) for _ in lengths], responses=lengths)
    trajectories = [trajectory.ref for group in groups for trajectory in group.trajectories]
    rewards = [torch.tensor(group.rewards) for group in groups]
    advantages = torch.cat(list(ADVANTAGES["grpo"](rewards, normalise_by_std=True))).tolist()
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, width=256, layers=4)
        # TRL first: its trainer would use our process group.
        of_trl = trl_update(folder, trajectories, advantages)
        padded = padded_update(folder, trajectories, advantages)
        updates = {"packed": packed_update(folder, groups), "padded": padded, "TRL": of_trl}
        cpu_s, norms = measured(updates, rounds=options.rounds)
    print(f"{len(trajectories)} trajectories, {sum(len(trajectory.token_ids) for trajectory in trajectories)} tokens")
    passed = True
    for name, median in cpu_s.items():
        ratio, difference = median / cpu_s["packed"], abs(norms[name] / norms["packed"] - 1)
        print(f"{name:6s} {median:.3f} CPU s, x {ratio:.2f} of ours (bar: at least {BAR:g}); norm of the gradient "
              f"{norms[name]:.6g}, which differs by {difference:.1e} (at most {SAME:g})")  # fmt: skip
        passed = passed and difference <= SAME and (name == "packed" or ratio >= BAR)
    sys.exit(0 if passed else 1)


def measured(updates: dict[str, Callable[[], float]], *, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median CPU seconds of each update, and the norm of its gradient."""
    cpu_s: dict[str, list[float]] = {name: [] for name in updates}
    norms: dict[str, float] = {}
    for round_number in range(rounds + 1):
        for name, update in updates.items():
            started = time.process_time()
            norms[name] = update()
            if round_number > 0:  # warm-up
                cpu_s[name].append(time.process_time() - started)
    return {name: statistics.median(times) for name, times in cpu_s.items()}, norms


if __name__ == "__main__":
    main()
