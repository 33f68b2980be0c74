"""Gain of each change to an update: sharding, reduction, Liger's kernels, compiled layers; and the kernels of one row.

    python -m benchmarks.gpu.variants [--size 1.5b] [--profile FILE]
    python -m benchmarks.gpu.variants --tiny

Uses the product's own model and loss, random weights, four rows of whole trajectories. Prints a JSON line for each variant.
Each is built anew, since layers that were compiled or replaced cannot be restored. `--profile` writes the table of kernels of
the first variant.
"""

import argparse
import gc
import importlib.util
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from agentrl.training.model.decoder import shape_of
from agentrl.training.model.flops import measured_peak_flops
from agentrl.training.packing.packing import MicroBatch
from benchmarks.gpu.bench import SIZES, Bench, Size, open_bench
from benchmarks.gpu.update import recorded, rows_of

_NUM_ROWS = 4
_H100_FLOPS = 989e12
"""Dense bfloat16, of the data sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One form of the update. Example: `Variant(name="compiled layers", compiled=True)`."""

    name: str
    compiled: bool = False
    liger: bool = False
    row_by_row: bool = False
    """Gather the weights for each row, and reduce its gradients, as several ranks do."""


VARIANTS = (
    Variant(name="as it is"),
    Variant(name="weights gathered and gradients reduced for every row", row_by_row=True),
    Variant(name="Liger's kernels", liger=True),
    Variant(name="compiled layers", compiled=True),
)


def measure(variant: Variant, size: Size, *, tokens: int, table: Path | None) -> dict[str, float]:
    """Return time, utilisation and memory of a variant; `table` receives the kernels of one row."""
    with tempfile.TemporaryDirectory() as folder:
        bench = open_bench(size, folder, compiled=variant.compiled, liger=variant.liger)
        try:
            rows = rows_of(
                recorded([tokens // 8] * _NUM_ROWS, [[tokens - tokens // 8]] * _NUM_ROWS),
                max_tokens=tokens,
                share_prefixes=False,
            )
            started = time.perf_counter()
            update_s, peak_gib = bench.seconds(_gradients(bench, rows, variant), 2)
            with_warmup_s = time.perf_counter() - started
            if table is not None:
                _profile(bench, rows[0], table)
            flops = sum(shape_of(bench.model).flops(row.tokens) for row in rows)
            peak_flops = measured_peak_flops(bench.parallel.device, bench.dtype)
            return {
                "ms_per_row": 1e3 * update_s / _NUM_ROWS,
                "mfu": flops / update_s / peak_flops,
                "of_an_h100": flops / update_s / _H100_FLOPS,
                "gib": peak_gib,
                "with_warmup_s": with_warmup_s,
            }
        finally:
            bench.parallel.close()


def _gradients(bench: Bench, rows: Sequence[MicroBatch], variant: Variant) -> Callable[[], None]:
    """Return what is timed: the gradient of all rows, cleared afterwards."""

    def work() -> None:
        for part in [[row] for row in rows] if variant.row_by_row else [rows]:
            bench.gradient_of(part)
        bench.model.zero_grad()

    return work


def _profile(bench: Bench, row: MicroBatch, table: Path) -> None:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_gpu else [])]
    with profile(activities=activities) as profiler:
        bench.gradient_of([row])
        bench.wait()
    bench.model.zero_grad()
    key = "self_cuda_time_total" if bench.on_gpu else "self_cpu_time_total"
    table.write_text(profiler.key_averages().table(sort_by=key, row_limit=60, max_name_column_width=90))


def _reason_to_skip(variant: Variant) -> str | None:
    if variant.liger and not (torch.cuda.is_available() and importlib.util.find_spec("liger_kernel")):
        return "needs a GPU and `liger-kernel`"
    if variant.compiled and not torch.cuda.is_available():
        return "compiling for a CPU takes minutes"
    return None


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print one variant after the other; return 1 if a variant failed, which does not stop the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("0.5b", "1.5b"), default="1.5b")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a small model and short rows, also without a GPU")
    options = parser.parse_args(words)
    size, tokens = (SIZES["tiny"], 128) if options.tiny else (SIZES[options.size], 8192)
    status = 0
    for variant in VARIANTS:
        if reason := _reason_to_skip(variant):
            print(json.dumps({"variant": variant.name, "skipped": reason}), flush=True)
            continue
        table = options.profile if variant is VARIANTS[0] else None
        try:
            figures: dict[str, float | str] = {**measure(variant, size, tokens=tokens, table=table)}
        except Exception:  # noqa: BLE001  the other variants are worth as much without this one
            figures = {"error": traceback.format_exc()[-1200:]}
            status = 1
        print(json.dumps({"variant": variant.name, **figures}), flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return status


if __name__ == "__main__":
    sys.exit(main())
