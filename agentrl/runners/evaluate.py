"""Measures a policy on the held-out prompts: `python -m agentrl.runners.evaluate config.yaml [section.key=value ...]`.

prompt -> agent loop -> engine -> tool call -> judge -> trajectory -> reward -> accuracy. The same workers, tools and rewards
as in training, without an actor: the engine is the embedded one or vLLM on the folder in `model.path`, or running servers
(`rollout.engine: openai`). A config of a training run will do as it is. A killed evaluation goes on from its trajectories.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import RolloutError
from agentrl.evaluation.figures import Figures, figures_of, interval, number
from agentrl.evaluation.html_pages import write_report_page
from agentrl.evaluation.markdown_pages import write_report_markdown
from agentrl.evaluation.record import EvaluationRecord, read_evaluation
from agentrl.evaluation.report import report_of
from agentrl.evaluation.rollout import roll_out_missing
from agentrl.observability.reports.failure import describe_failures
from agentrl.pages.page import installed_versions, now_text
from agentrl.run.plan import EvaluationPlan, EvaluationRun, evaluating, prepare_evaluation
from agentrl.run.training_step import measured
from agentrl.runners.command_line import exit_process, make_parser, run_command
from agentrl.trajectories.examples import describe_examples
from agentrl.types import Termination, TrajectorySummary

logger = logging.getLogger("agentrl.runners.evaluate")  # also where it is `__main__`


async def evaluate(loaded: LoadedConfig) -> None:
    """Measure, and show the result; if the evaluation is finished, only show it."""
    plan = prepare_evaluation(loaded)  # all checks, before any process starts
    if plan.directory.finished:
        print(f"{plan.directory.path} holds this evaluation already; name another `run.dir` to measure again")
        record = read_evaluation(plan.directory.path, plan.config.reward)
    else:
        async with evaluating(plan) as run:  # judge, Ray, engines, agent-loop workers
            record = await measure(run)
    show(plan, record)


async def measure(run: EvaluationRun) -> EvaluationRecord:
    """Roll out every held-out prompt `validation.samples_per_prompt` times, and write the result; returns the record.

    What is on disk already is not rolled out again, unless the infrastructure failed.

    Raises:
        RolloutError: no trajectory was scored.
    """
    directory, samples = run.plan.directory, run.config.validation.samples_per_prompt
    run.metrics.take_back(after_step=-1)  # what a killed evaluation left
    logger.info("evaluation: %d prompts, samples of each: %d", len(run.plan.validation_prompts), samples)
    started = time.monotonic()
    new = await roll_out_missing(run, read_evaluation(directory.path, run.config.reward))
    wall_time_s = time.monotonic() - started
    record = read_evaluation(directory.path, run.config.reward)
    require_measured(record.summaries)
    metrics = measured(run, record.summaries)
    num_tokens = sum(summary.num_response_tokens for summary in new)
    metrics |= {"validation/wall_time_s": wall_time_s, "validation/sampled_tokens_per_s": num_tokens / wall_time_s}
    run.metrics.log(0, metrics, with_line=False)
    directory.finish(
        {
            "model": run.config.rollout.openai.model or run.config.model.path,
            "num_prompts": len(run.plan.validation_prompts),
            "samples_per_prompt": samples,
            "num_lost": sum(summary.termination is Termination.INFRA_ERROR for summary in record.summaries),
            "num_rolled_out": len(new),
            "wall_time_s": wall_time_s,
            "versions": installed_versions(),
            "finished_at": now_text(),
            "trajectories": str(directory.path / "trajectories"),
            "metrics": metrics,
        }
    )
    return record


def show(plan: EvaluationPlan, record: EvaluationRecord) -> None:
    """Print the result of a measured evaluation, and write its report."""
    config, folder, result = plan.config, plan.directory.path, plan.directory.result()
    figures = figures_of(
        record,
        config.algorithm.selection,
        samples_per_prompt=result["samples_per_prompt"],
        category_column=config.validation.category_column,
    )
    report = report_of(config, record, figures, result)
    write_report_markdown(folder / "report.md", report)
    write_report_page(folder / "report.html", report)
    print(f"{result['model']}: {result['num_prompts']:,} prompts, samples of each: {result['samples_per_prompt']}")
    Console().print(result_table(figures, result["metrics"]))
    for note in report.notes:
        print(note)
    if examples := describe_examples(record.file):
        print(f"{examples}\n")
    print(f"trajectories: {result['trajectories']}\nreport:       {folder / 'report.html'}")


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


def result_table(figures: Sequence[Figures], metrics: Mapping[str, float | None]) -> Table:
    """Return the figures of the first set of prompts, the accuracy of the others, and how episodes went, for a person."""

    def value(name: str, digits: int = 3) -> str:
        value = metrics.get(f"validation/{name}")
        return "-" if value is None or math.isnan(value) else f"{value:,.{digits}f}"

    table = Table()
    for column in ("what", "value", "95 % interval"):
        table.add_column(column, justify="left" if column == "what" else "right")
    of_all, *subsets = figures
    for name, estimate in [*of_all.rows(), *((f"accuracy of {subset.name}", subset.accuracy) for subset in subsets)]:
        label = "accuracy (mean reward)" if name == "accuracy" else name
        table.add_row(label, number(estimate.mean), interval(estimate))
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

    return run_command(command, when_stopped="the same command goes on from the trajectories on disk")


if __name__ == "__main__":
    exit_process(main())
