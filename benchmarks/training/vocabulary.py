"""Time and peak memory of log-probabilities and loss at a vocabulary of 150K, compared with a plain implementation.

    python -m benchmarks.training.vocabulary [--tokens 1024] [--width 512] [--vocabulary 150000] [--rounds 3]

Measures forward and backward passes from hidden states to loss. The plain implementation is a matrix product, `log_softmax`,
`gather` and the entropy without gradient, as in usual training loops. Each round runs both in new processes; memory is the peak
of resident memory above that before the pass, and times are CPU seconds. Prints medians and ratios; the exit code is 1 if one
misses its bar, or if loss, entropy or gradient differ.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import Tensor

from agentrl.training.scoring.chunked_logits import vocabulary_scores

NAMES = ("plain", "chunked")
TIME_BAR = 1.4
MEMORY_BAR = 0.25
SAME = 1e-4
"""Largest relative difference of loss, entropy and norm of the gradient."""


def plain_scores(hidden_NW: Tensor, head_VW: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies from all logits at once."""
    logprobs_NV = (hidden_NW @ head_VW.T).log_softmax(dim=-1)
    with torch.no_grad():
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
    return logprobs_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1), entropy_N


def measure(name: str, tokens: int, width: int, vocabulary: int) -> dict[str, float]:
    """Run one forward and backward pass in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden_NW = torch.randn(tokens, width, requires_grad=True)
    head_VW = (torch.randn(vocabulary, width) / width**0.5).requires_grad_()
    targets_N = torch.randint(vocabulary, (tokens,))
    torch.mm(torch.randn(64, 64), torch.randn(64, 64))  # allocates the buffers of the matrix library
    before_kib, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if name == "plain":
        logprobs_N, entropy_N = plain_scores(hidden_NW, head_VW, targets_N)
    else:
        logprobs_N, entropy_N = vocabulary_scores(
            hidden_NW, head_VW, targets_N, temperature=1.0, entropy_gradient=False
        )
    loss = -logprobs_N.mean()
    loss.backward()
    cpu_s = time.process_time() - started
    peak_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    assert hidden_NW.grad is not None
    return {
        "cpu_s": cpu_s,
        "peak_mib": peak_mib,
        "loss": loss.item(),
        "entropy": entropy_N.mean().item(),
        "grad_norm": hidden_NW.grad.norm().item(),
    }


def main() -> int:
    """Measure in turn and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=NAMES, help="print one measurement as JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.tokens, options.width, options.vocabulary)))
        return 0
    results: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    sizes = [f"--tokens={options.tokens}", f"--width={options.width}", f"--vocabulary={options.vocabulary}"]
    for _ in range(options.rounds):
        for name in NAMES:
            command = [sys.executable, "-m", "benchmarks.training.vocabulary", f"--only={name}", *sizes]
            results[name].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in results.items()
    }
    for name, row in medians.items():
        print(f"{name:8s} " + "  ".join(f"{key} {value:.5g}" for key, value in row.items()))
    plain, chunked = (medians[name] for name in NAMES)
    time_ratio, memory_ratio = (chunked[key] / plain[key] for key in ("cpu_s", "peak_mib"))
    largest = max(abs(chunked[key] / plain[key] - 1) for key in ("loss", "entropy", "grad_norm"))
    print(f"time x {time_ratio:.2f} (bar: at most {TIME_BAR:g})")
    print(f"memory x {memory_ratio:.3f} (bar: below {MEMORY_BAR:g})")
    print(f"loss, entropy and gradient differ by {largest:.1e} (at most {SAME:g})")
    return 0 if time_ratio <= TIME_BAR and memory_ratio < MEMORY_BAR and largest <= SAME else 1


if __name__ == "__main__":
    sys.exit(main())
