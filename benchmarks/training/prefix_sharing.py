"""Time of forward and backward passes of a group with a long prompt: prompt shared, or only packed.

    python -m benchmarks.training.prefix_sharing [--prompt 512] [--response 128] [--group 16] [--width 256] [--rounds 5]

Packing alone repeats the prompt for every trajectory. Both must compute the same gradients. Times are CPU seconds of one
thread, measured in turn. Prints medians and the ratio; the exit code is 1 below the bar, or if the gradients differ.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time

import torch
from torch import Tensor, nn

from agentrl.config.schema.run import ModelSection
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import MicroBatch, pack_trajectories
from agentrl.training.scoring.token_logprobs import score_tokens
from benchmarks.training.workload import make_groups, save_model

BAR = 2.5
SAME = 1e-5
"""Largest difference of the gradients, relative to the norm of each."""


def gradient(model: nn.Module, batches: list[MicroBatch]) -> dict[str, Tensor]:
    """Return the gradient of a policy loss over all of the micro-batches."""
    model.zero_grad()
    for batch in batches:
        scores = score_tokens(model, batch.tokens, temperature=1.0)
        ratio_N = torch.exp(scores.logprobs_N - scores.logprobs_N.detach())
        (-(ratio_N * batch.advantages_N).sum() / 1000).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def main() -> int:
    """Measure in turn and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--response", type=int, default=128)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    [group] = make_groups(random.Random(0), prompts=[options.prompt], responses=[[options.response] * options.group])
    trajectories = [trajectory.ref for trajectory in group.trajectories]
    advantages = [float(index % 2) - 0.5 for index in range(options.group)]
    batches = {
        name: pack_trajectories(trajectories, advantages, packing=Packing(max_tokens=16384, share_prefixes=shared))
        for name, shared in (("packed", False), ("shared", True))
    }
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, width=options.width, layers=options.layers)
        model = load_model(ModelSection(path=folder))
    cpu_s: dict[str, list[float]] = {name: [] for name in batches}
    gradients: dict[str, dict[str, Tensor]] = {}
    for _ in range(options.rounds):
        for name, rows in batches.items():
            started = time.process_time()
            gradients[name] = gradient(model, rows)
            cpu_s[name].append(time.process_time() - started)
    largest = max(
        ((gradients["shared"][name] - expected).norm() / expected.norm()).item()
        for name, expected in gradients["packed"].items()
    )
    medians = {name: statistics.median(times) for name, times in cpu_s.items()}
    for name, rows in batches.items():
        computed = sum(len(row.tokens.token_ids_T) for row in rows)
        print(f"{name}: {computed} tokens computed, {medians[name]:.3f} CPU s")
    ratio = medians["packed"] / medians["shared"]
    print(f"gradients differ by {largest:.1e} of their norm (at most {SAME:g})")
    print(f"x {ratio:.2f} (bar: at least {BAR:g})")
    return 0 if ratio >= BAR and largest <= SAME else 1


if __name__ == "__main__":
    sys.exit(main())
