"""Distance of the rollout schedule from the best possible one, on simulated engines and a virtual clock.

    python -m benchmarks.rollout.scheduler [--sizes 1 64 1024] [--prefill-ms 0.06] [--json FILE]

Eight simulated engines (`configs/simulate.yaml`) play 1, 64, 1,024 and, where asked, 8,192 trajectories: 2 to 10 turns of
log-normal length, some prompts longer than others, tools of 0.05 to 5 s. Every schedule plays the same trajectories.

- *ample* memory: makespan over the larger of the longest trajectory alone and all work at the engines' peak rate. No schedule
  gets below 1. The *bound* is a sharper one: what no schedule gets below that knows every length (`schedule_bounds`).
- *scarce* memory (an eighth of what all would hold at their longest, room for one at least): the makespan of static
  assignment, where all trajectories enter at once and the engines preempt what does not fit, over that of admission by
  reservation, at the longest or by the lengths seen. *Recomputed* is the share of all computed tokens that the same engine had
  computed for the same trajectory before. How much faster than static a schedule can be is bounded as well: with every length
  known, with nothing computed twice, and by reservations at the longest. `--steps-before 1` measures the second step of a run,
  for which admission has seen the lengths of the first.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, cast

from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.config.schema.simulation import SimulationConfig
from agentrl.config.validation.relations import Purpose
from agentrl.runners.simulate import Simulation, simulate
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.types import TrajectorySummary
from benchmarks.judge import report
from benchmarks.rollout.schedule_bounds import (
    least_of_any_s,
    least_with_reservations_s,
    least_without_recomputation_s,
    workload_of,
)

_SAMPLES_PER_PROMPT = 16
_NUM_ENGINES = 8
_AT_ONCE = 320
"""Trajectories on one engine: as many as it runs, and a quarter more for those that wait for a tool."""
_SCARCITY = 8
_LONGEST_TOKENS = 256 + 8192
"""Longest trajectory of `configs/simulate.yaml`, prompt included."""


def play(
    size: int, *, kv_tokens: int, admission: str, prefill_ms: float, static: bool = False, num_steps_before: int = 0
) -> tuple[Simulation, LoadedConfig]:
    """Play so many trajectories, after steps of as many; `static` lets all of them in at once."""
    samples = min(size, _SAMPLES_PER_PROMPT)
    overrides = [
        f"rollout.prompts_per_step={size // samples}",
        f"rollout.samples_per_prompt={samples}",
        f"simulated.kv_tokens={kv_tokens}",
        f"simulated.step_ms_per_prefill_token={prefill_ms}",
        f"rollout.admission={admission}",
        f"rollout.max_concurrent_trajectories={max(size, _AT_ONCE) if static else _AT_ONCE}",
    ]
    loaded = load_run_config("configs/simulate.yaml", overrides, purpose=Purpose.SIMULATION)
    playing = simulate(loaded, assumed_kv_tokens=0 if static else None, num_steps_before=num_steps_before)
    return run_in_virtual_time(playing), loaded


def least_makespan_s(simulation: Simulation, config: RunConfig) -> float:
    """Return what no schedule can beat: the longest trajectory alone, or all work at the peak rate of all engines.

    Work is every sampled token in the fullest batch, every prompt computed once, and every observation.
    """
    section, summaries = cast(SimulationConfig, config).simulated, simulation.summaries

    def prefilled(summary: TrajectorySummary) -> int:
        return summary.num_tokens - summary.num_response_tokens

    def alone_s(summary: TrajectorySummary) -> float:
        step_ms = section.step_ms + section.step_ms_per_request
        prefill_ms = prefilled(summary) * section.step_ms_per_prefill_token
        return 1e-3 * (summary.num_response_tokens * step_ms + prefill_ms) + summary.tool_time_s

    lengths = simulation.prompt_tokens
    observed = sum(prefilled(summary) - lengths[summary.prompt_id] for summary in summaries)
    sampled_ms = section.step_ms / section.max_running + section.step_ms_per_request
    work_ms = sampled_ms * sum(summary.num_response_tokens for summary in summaries)
    work_ms += section.step_ms_per_prefill_token * (observed + sum(lengths.values()))
    return max(1e-3 * work_ms / config.rollout.num_engines, *(alone_s(summary) for summary in summaries))


def ample_row(size: int, prefill_ms: float) -> report.Row:
    """Return the row of one size where every trajectory fits."""
    simulation, loaded = play(size, kv_tokens=size * _LONGEST_TOKENS, admission="reserve_max", prefill_ms=prefill_ms)
    least_s = least_makespan_s(simulation, loaded.config)
    bound_s = least_of_any_s(workload_of(simulation, loaded.config))
    return {
        "trajectories": size,
        "makespan s": simulation.makespan_s,
        "least s": least_s,
        "ratio": simulation.makespan_s / least_s,
        "bound s": bound_s,
        "over the bound": simulation.makespan_s / bound_s,
        "CPU ms per turn": 1000 * simulation.cpu_time_s / sum(s.num_turns for s in simulation.summaries),
    }


def scarce_rows(size: int, prefill_ms: float, *, num_steps_before: int) -> tuple[report.Row, report.Row]:
    """Return the row of one size where few trajectories fit, and that of how much faster than static a schedule can be."""
    options: dict[str, Any] = {"prefill_ms": prefill_ms, "num_steps_before": num_steps_before}
    kv_tokens = max(_LONGEST_TOKENS, size * _LONGEST_TOKENS // _NUM_ENGINES // _SCARCITY)
    static, loaded = play(size, kv_tokens=kv_tokens, admission="reserve_max", static=True, **options)
    row: report.Row = {"trajectories": size, "static s": static.makespan_s, "static recomputed": _recomputed(static)}
    for admission in ("reserve_max", "expected"):
        simulation, _ = play(size, kv_tokens=kv_tokens, admission=admission, **options)
        row |= {
            f"{admission} s": simulation.makespan_s,
            f"{admission} faster": static.makespan_s / simulation.makespan_s,
            f"{admission} recomputed": _recomputed(simulation),
        }
    work = workload_of(static, loaded.config)
    bounds: report.Row = {
        "trajectories": size,
        "any schedule": static.makespan_s / least_of_any_s(work),
        "nothing computed twice": static.makespan_s / least_without_recomputation_s(work),
        "lengths unknown, and all fit at their longest": static.makespan_s / least_with_reservations_s(work),
    }
    return row, bounds


def _recomputed(simulation: Simulation) -> float:
    return simulation.counts.recomputed / (simulation.counts.generated + simulation.counts.prefilled)


def main() -> int:
    """Play all sizes and print the tables."""
    parser = report.arguments(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 64, 1024], help="trajectories")
    parser.add_argument("--prefill-ms", type=float, default=0.06, help="time that a step takes longer per prompt token")
    parser.add_argument(
        "--steps-before", type=int, default=0, help="steps before the one measured, where memory is scarce"
    )
    options: argparse.Namespace = parser.parse_args()
    report.print_machine()
    ample = [ample_row(size, options.prefill_ms) for size in options.sizes]
    report.print_table("ample memory: makespan over the least there can be", ample)
    scarce = [
        scarce_rows(size, options.prefill_ms, num_steps_before=options.steps_before)
        for size in options.sizes
        if size >= 4 * _NUM_ENGINES
    ]
    played, bounds = [row for row, _ in scarce], [row for _, row in scarce]
    if scarce:
        report.print_table("scarce memory: static assignment over admission by reservation", played)
        report.print_table(
            "scarce memory: how many times faster than static assignment a schedule can be at most", bounds
        )
    path: Path | None = options.json
    report.write_json(path, {"ample": ample, "scarce": played, "scarce bounds": bounds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
