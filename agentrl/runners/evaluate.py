"""Measures a policy on the held-out prompts: `python -m agentrl.runners.evaluate config.yaml [section.key=value ...]`.

prompt -> agent loop -> engine -> tool call -> judge -> trajectory -> reward -> accuracy. The same workers, tools and rewards
as in training, without an actor: the engine is the embedded one on the folder in `model.path`, or running servers
(`rollout.engine: openai`). A config of a training run will do as it is.
"""

import logging
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import RolloutError
from agentrl.observability.reports.failure import describe_failures
from agentrl.run.plan import EvaluationRun, evaluating, prepare_evaluation
from agentrl.run.training_step import measured, roll_out_held_out
from agentrl.runners.command_line import make_parser, run_command
from agentrl.trajectories.examples import describe_examples
from agentrl.types import TrajectorySummary

logger = logging.getLogger("agentrl.runners.evaluate")  # also where it is `__main__`


async def evaluate(loaded: LoadedConfig) -> None:
    """Measure and print the result; if the run is finished, only print it."""
    plan = prepare_evaluation(loaded)  # all checks, before any process starts
    if plan.directory.finished:
        print(f"{plan.directory.path} holds this evaluation already; name another `run.dir` to measure again")
    else:
        async with evaluating(plan) as run:  # judge, Ray, engines, agent-loop workers
            plan.directory.finish(await measure(run))
    result = plan.directory.result()
    print(f"{result['model']}: {result['num_prompts']:,} prompts, samples of each: {result['samples_per_prompt']}")
    Console().print(result_table(result))
    if examples := describe_examples(Path(result["trajectories"], "validation_000000.atr")):
        print(f"{examples}\n")
    print(f"trajectories: {result['trajectories']}")


async def measure(run: EvaluationRun) -> dict[str, Any]:
    """Roll out every held-out prompt `validation.samples_per_prompt` times; return the result as plain data.

    Raises:
        RolloutError: no trajectory was scored.
    """
    directory, samples = run.plan.directory, run.config.validation.samples_per_prompt
    run.metrics.take_back(after_step=-1)  # what a killed evaluation left
    directory.trajectories.take_back(after_step=-1)
    logger.info("evaluation: %d prompts, samples of each: %d", len(run.plan.validation_prompts), samples)
    started = time.monotonic()
    summaries = await roll_out_held_out(run, step=0, name="evaluation")
    wall_time_s = time.monotonic() - started
    require_measured(summaries)
    metrics = measured(run, summaries)
    num_tokens = sum(summary.num_response_tokens for summary in summaries)
    metrics |= {"validation/wall_time_s": wall_time_s, "validation/sampled_tokens_per_s": num_tokens / wall_time_s}
    run.metrics.log(0, metrics, with_line=False)
    return {
        "model": run.config.rollout.openai.model or run.config.model.path,
        "num_prompts": len(run.plan.validation_prompts),
        "samples_per_prompt": samples,
        "trajectories": str(directory.path / "trajectories"),
        "metrics": metrics,
    }


def require_measured(summaries: Sequence[TrajectorySummary]) -> None:
    """Refuse a result that is made of nothing.

    Raises:
        RolloutError: no trajectory was scored; the message has a count and an example of each class of failure.
    """
    if all(summary.reward is None for summary in summaries):
        raise RolloutError(
            f"evaluation: none of {len(summaries)} trajectories was scored, so nothing was measured: "
            f"{'; '.join(describe_failures(summaries))}. Mend that; the same command measures again"
        )


def result_table(result: dict[str, Any]) -> Table:
    """Return the accuracy and what it is made of, for a person."""
    metrics: dict[str, float | None] = result["metrics"]

    def value(name: str, digits: int = 3) -> str:
        number = metrics.get(f"validation/{name}")
        return "-" if number is None or math.isnan(number) else f"{number:.{digits}f}"

    rows = {"accuracy (mean reward)": "accuracy"}
    for name in metrics:
        kind, _, rest = name.removeprefix("validation/").partition("/")
        if kind == "accuracy" and rest:
            rows[f"accuracy of {rest}"] = f"accuracy/{rest}"
    rows |= {
        f"pass@{k}": f"pass_at_{k}" for name in metrics if (k := name.removeprefix("validation/pass_at_")).isdigit()
    }
    table = Table()
    for column in ("what", "value", "standard error"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, name in rows.items():
        kind, slash, rest = name.partition("/")
        table.add_row(what, value(name), value(f"{kind}_stderr{slash}{rest}"))
    table.add_section()
    table.add_row("trajectories that call a tool", value("tool_call_share"), "")
    table.add_row("tool calls that succeed", value("tool_success_rate"), "")
    table.add_row("sampled tokens per trajectory", value("response_tokens_mean", 1), "")
    shares = [metrics[f"validation/{name}_share"] for name in ("truncated", "max_turns", "timeout")]
    known = [share for share in shares if share is not None]
    cut_short = f"{math.fsum(known):.3f}" if known else "-"
    table.add_row("cut short (tokens, turns or time)", cut_short, "")
    table.add_row("sampled tokens per second", value("sampled_tokens_per_s", 0), "")
    table.add_row("wall time without the start (s)", value("wall_time_s", 1), "")
    table.add_row("left out (infrastructure failed)", value("infra_errors", 0), "")
    table.add_row("left out (data cannot be scored)", value("data_errors", 0), "")
    return table


def main() -> int:
    """Run the command line; returns the exit status."""
    arguments = make_parser("evaluate", "Measure a policy on the held-out prompts.").parse_intermixed_args()

    async def command() -> None:
        await evaluate(load_run_config(arguments.config, arguments.overrides, purpose=Purpose.EVALUATION))

    return run_command(command, when_stopped="nothing was measured; the same command starts again")


if __name__ == "__main__":
    sys.exit(main())
