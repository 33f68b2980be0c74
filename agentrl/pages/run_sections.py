"""The parts of a run's report, as tables and charts."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from agentrl.algorithms.group_filter import Fate
from agentrl.config.schema.run import RunConfig
from agentrl.detectors.curves import Curve
from agentrl.observability.metrics_file import MetricsRow, series
from agentrl.observability.reports.outcome import is_solved
from agentrl.pages.charts import Chart, line_of
from agentrl.pages.conversation import Conversation, conversation_of
from agentrl.pages.page import Table, installed_versions, machine_text, now_text
from agentrl.pages.run_record import FailedTries, RunRecord
from agentrl.pages.tool_table import tool_table
from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Termination, Trajectory

_NUM_EXAMPLES = 3
"""Examples of each kind."""
_MAX_CAUSES = 20
_REWARD, _ACCURACY = "rollout/reward_mean", "validation/accuracy"
_CHARTS = {
    "Reward": {"training reward": _REWARD, "validation accuracy": _ACCURACY},
    "Tool use": {
        "trajectories with a call": "rollout/tool_call_share",
        "calls that succeed": "rollout/tool_success_rate",
    },
    "Sampled tokens": {"mean": "rollout/response_tokens_mean", "largest": "rollout/response_tokens_max"},
    "Entropy of the policy": {"nats per token": "actor/entropy"},
    "Gradient norm": {"before clipping": "actor/grad_norm"},
    "Mismatch of engine and actor": {"mean difference of log-probabilities": "actor/rollout_logprob_diff_mean"},
}
_SHARES = {"Tool use"}
_CHANGES = {
    "validation accuracy": _ACCURACY,
    "training reward": _REWARD,
    "trajectories with a call": "rollout/tool_call_share",
    "calls that succeed": "rollout/tool_success_rate",
    "sampled tokens per trajectory": "rollout/response_tokens_mean",
    "turns per trajectory": "rollout/turns_mean",
    "entropy per token": "actor/entropy",
    "gradient norm": "actor/grad_norm",
    "seconds per step": "time/step_s",
}
_STEP_PARTS = {"rollout": "time/rollout_s", "update": "time/update_s", "weight sync": "time/weight_sync_s"}
_TRAJECTORY_PART = ("time/trajectory_", "_s_mean")
_FATES = {
    Fate.TRAINED: "part of the update",
    Fate.NOT_DRAWN: "Resample-on-Correct drew others of its group",
    Fate.ALL_SOLVED: "all of its group are solved: nothing to compare",
    Fate.NONE_SOLVED: "none of its group is solved: nothing to compare",
    Fate.TOO_SMALL: "no other of its group to be compared with",
    Fate.UNSCORED: "no reward: infrastructure or data failed",
    Fate.MASKED: "cut short, and masked by reward.score_unfinished",
}


def notes(record: RunRecord) -> list[str]:
    """Return what a reader must know first."""
    lines = []
    if not record.files:
        lines.append("No step is recorded yet.")
    elif len(record.files) < record.num_files:
        lines.append(
            f"Failures, fates and detectors are those of {len(record.files)} of {record.num_files} steps, evenly spread: the "
            "record is large."
        )
    return lines


def facts(config: RunConfig) -> list[tuple[str, str]]:
    """Return what was trained, on what, and how."""
    algorithm, rollout, actor, model = config.algorithm, config.rollout, config.actor, config.model
    selection = algorithm.selection
    lora = f", LoRA of rank {actor.lora.rank}" if actor.lora.rank else ""
    kept = (
        f"{selection.method}, {selection.keep} of {rollout.samples_per_prompt}" if selection.keep else selection.method
    )
    outcome = selection.metric or "reward"
    versions = ", ".join(f"{name} {number}" for name, number in installed_versions().items())
    rows = {
        "model": f"{model.path} ({model.dtype}{lora})",
        "training data": ", ".join(config.data.train_files),
        "validation data": ", ".join(config.data.validation_files) or "none",
        "algorithm": f"{algorithm.advantage} advantages, {algorithm.policy_loss} loss, {algorithm.aggregation}",
        "clipping": f"{algorithm.clip_ratio_low:g} below, {algorithm.clip_ratio_high:g} above",
        "KL": f"{algorithm.kl_coefficient:g} in the {algorithm.kl_in}" if algorithm.kl_coefficient else "none",
        "selection": kept,
        "learning rate": f"{actor.learning_rate:g}, {actor.warmup_steps} steps of warm-up",
        "batch": f"{rollout.prompts_per_step} prompts of {rollout.samples_per_prompt} samples a step; mini-batches: "
        f"{actor.mini_batches_per_step}, epochs: {actor.epochs_per_step}, staleness: at most {rollout.max_staleness}",
        "limits": f"{rollout.max_response_tokens:,} tokens after the prompt, {rollout.max_turns} turns",
        "temperature": f"{rollout.temperature:g}",
        "reward": f"{config.reward.label}; solved: {outcome} is at least {selection.solved_at:g}",
        "tools": config.tool_config_path or "none",
        "processes": f"engines: {rollout.num_engines} ({rollout.engine}), agent loops: {rollout.num_workers}, actor ranks: "
        f"{actor.num_workers}",
        "seed": f"{config.run.seed}",
        "written": f"{now_text()} on {machine_text()}",
        "versions there": versions,
    }
    return [*rows.items()]


def charts(rows: Sequence[MetricsRow]) -> list[Chart]:
    """Return the curves of the run; those without a value are left out."""
    return [
        Chart(title=title, lines=lines, in_percent=title in _SHARES)
        for title, names in _CHARTS.items()
        if (
            lines := [
                replace(line_of(label, *values, is_smoothed=name != _ACCURACY), has_dots=name == _ACCURACY)
                for label, name in names.items()
                if (values := series(rows, name))[0]
            ]
        )
    ]


def changes(rows: Sequence[MetricsRow]) -> Table:
    """Return first and last value of the main metrics."""
    table = []
    for title, name in _CHANGES.items():
        steps, values = series(rows, name)
        if steps:
            best = f"{max(values):.4g}" if name in (_REWARD, _ACCURACY) else ""
            table.append((title, f"{values[0]:.4g} (step {steps[0]})", f"{values[-1]:.4g} (step {steps[-1]})", best))
    return Table(columns=("metric", "first", "last", "best"), rows=table)


def step_parts(rows: Sequence[MetricsRow]) -> Table:
    """Return where the time of a step went, stages that overlap included."""
    total = math.fsum(series(rows, "time/step_s")[1])
    table = []
    for title, name in _STEP_PARTS.items():
        values = series(rows, name)[1]
        if values and total > 0:
            share = math.fsum(values) / total
            table.append((title, f"{fmean(values):,.2f}", f"{max(values):,.2f}", f"{share:.1%}"))
    if total > 0:
        values = series(rows, "time/step_s")[1]
        table.append(("step", f"{fmean(values):,.2f}", f"{max(values):,.2f}", f"all: {total:,.0f} s"))
    return Table(columns=("part of a step", "mean s", "longest s", "share"), rows=table)


def trajectory_parts(rows: Sequence[MetricsRow]) -> Table:
    """Return where the time of a trajectory went."""
    start, end = _TRAJECTORY_PART
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name.startswith(start)]
    means = {name.removeprefix(start).removesuffix(end): fmean(series(rows, name)[1] or [0.0]) for name in names}
    total = math.fsum(means.values())
    table = [
        (name.replace("_", " "), f"{mean:,.3f}", f"{mean / total:.1%}")
        for name, mean in sorted(means.items(), key=lambda item: -item[1])
        if mean > 0.0005 * total
    ]
    return Table(columns=("part of a trajectory", "mean s", "share"), rows=table)


def failures(tries: Sequence[FailedTries]) -> Table:
    """Return the failed tries by class and cause, most frequent first."""
    table = [
        (
            item.failure_class,
            f"{item.num_tries:,}",
            f"{item.num_lost:,}",
            f"{item.first_step}",
            item.example,
            item.cause,
        )
        for item in tries[:_MAX_CAUSES]
    ]
    return Table(
        columns=("failed in", "trajectories", "lost", "first step", "such as", "cause"), rows=table, num_texts=2
    )


def endings(counts: Counter[str]) -> Table:
    """Return how the episodes ended."""
    table = [(name, f"{count:,}", f"{count / counts.total():.1%}") for name, count in counts.most_common()]
    return Table(columns=("episode ended by", "trajectories", "share"), rows=table)


def tools(record: RunRecord) -> Table:
    """Return the calls of each tool in the latest validation, else in the latest step."""
    trajectories = read_trajectories(record.last_file) if record.last_file else ()
    return tool_table(map(summarise_trajectory, trajectories))


def fates(counts_of_steps: Iterable[Counter[str]]) -> Table:
    """Return what the updates did with the trajectories."""
    counts: Counter[str] = sum(counts_of_steps, Counter[str]())
    table = [
        (fate.replace("_", " "), f"{counts[fate]:,}", f"{counts[fate] / counts.total():.1%}", meaning)
        for fate, meaning in _FATES.items()
        if counts[fate]
    ]
    return Table(columns=("use", "trajectories", "share", "meaning"), rows=table, num_texts=1)


def fate_chart(record: RunRecord) -> Chart | None:
    """Return the shares of the three most frequent uses over the steps."""
    by_step = {step: counts for step, counts in record.fates.items() if counts}
    frequent = sum(by_step.values(), Counter[str]()).most_common(3)
    lines = [
        line_of(
            name.replace("_", " "),
            [*by_step],
            [counts[name] / counts.total() for counts in by_step.values()],
            is_smoothed=True,
        )
        for name, _ in frequent
    ]
    return Chart(title="Use of the trajectories", lines=lines, in_percent=True) if lines else None


def curve_charts(curve: Curve) -> list[Chart]:
    """Return a detector's share of hits, and the mean rewards of both kinds."""
    steps = [point.step for point in curve.points]
    share = line_of("trajectories hit", steps, [point.share for point in curve.points], is_smoothed=True)
    rewards = [
        line_of("where hit", steps, curve.hit_rewards, is_smoothed=True),
        line_of("elsewhere", steps, curve.other_rewards, is_smoothed=True),
    ]
    charts = [Chart(title="Share", lines=[share], in_percent=True), Chart(title="Reward", lines=rewards)]
    return [chart for chart in charts if any(line.steps for line in chart.lines)]


def examples(record: RunRecord) -> list[Conversation]:
    """Return some right and some wrong trajectories of the latest validation, else of the latest step.

    They are of different prompts; wrong ones that came to their own end are preferred.
    """
    if record.last_file is None:
        return []
    selection, prompts = record.config.algorithm.selection, read_prompts(record.last_file)
    right: dict[str, Trajectory] = {}
    wrong: dict[str, Trajectory] = {}
    cut_short: dict[str, Trajectory] = {}
    for trajectory in read_trajectories(record.last_file):
        if trajectory.reward is None or trajectory.prompt_id not in prompts:
            continue
        is_right = is_solved(summarise_trajectory(trajectory), selection)
        ended = trajectory.termination is Termination.ANSWERED
        kind = right if is_right else wrong if ended else cut_short
        kind.setdefault(trajectory.prompt_id, trajectory)
    return [
        conversation_of(prompts[item.prompt_id], item, is_right=is_right)
        for chosen, is_right in ((right, True), (wrong or cut_short, False))
        for item in [*chosen.values()][:_NUM_EXAMPLES]
    ]
