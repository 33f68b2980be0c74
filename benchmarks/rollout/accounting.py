"""Checks of a run's directory: every step ended, every prompt occurs once, every token is in its place.

A trajectory with tokens of two episodes would differ from what it says of itself: each sampled span must decode to the text of
its turn, the tokens between two of them must be those of that turn's results, and the first tokens those of its own prompt.
Where whole turns were exchanged, the log-probabilities would no longer follow from the tokens before them: the actor computes
them again in every update, with the weights that should have sampled them, and must find the same.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.gateway.exactness import DropReason
from agentrl.algorithms.group_filter import select
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.judge.connection import JudgeAddress, ToolContext
from agentrl.observability.metrics_file import MetricsRow, read_metrics
from agentrl.run.prompt_sets import training_prompts
from agentrl.tools.builder import build_tools
from agentrl.tools.loader import load_tool_configs
from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Group, Message, Prompt, Termination, ToolCall, Trajectory, TrajectoryRef

_MAX_LOGPROB_DIFF = 1e-4
"""Mean over the sampled tokens of a step; float noise is a hundred times less, weights one update older give more."""
_MAX_RATIO = 1.01


def faults_of_run(
    run_dir: Path, *, config: str, overrides: list[str], agent_tools: Sequence[dict[str, Any]] = ()
) -> list[str]:
    """Return a line for each fault of a run; it must have kept the checkpoint of every step.

    `agent_tools` are what an agent shows the policy in place of the run's tools.
    """
    loaded = load_run_config(config, [f"run.dir={run_dir}", *overrides])
    tokens = _chat_tokens(loaded.config, agent_tools)
    rows = [row for row in read_metrics(run_dir / "metrics.jsonl") if row["step"]]
    faults = [] if (run_dir / "result.json").exists() else ["the run did not finish"]
    if [row["step"] for row in rows] != list(range(1, loaded.config.run.num_steps + 1)):
        faults.append(f"steps that ended: {[row['step'] for row in rows]}")
    for row, prompts in zip(rows, _prompts_of_steps(run_dir, loaded.config, len(rows)), strict=True):
        step = int(row["step"] or 0)
        file = run_dir / "trajectories" / f"step_{step:06d}.atr"
        trajectories = list(read_trajectories(file))
        samples = loaded.config.rollout.samples_per_prompt
        step_faults = accounting_faults(trajectories, prompts, samples_per_prompt=samples)
        step_faults += logprob_faults(row) + update_faults(row, trajectories, loaded.config)
        step_faults += report_faults(row, trajectories)
        written = read_prompts(file)
        for trajectory in trajectories:
            if trajectory.reward is not None and trajectory.prompt_id in written:
                token_problems = token_faults(trajectory, written[trajectory.prompt_id], tokens, version=step - 1)
                step_faults += [f"trajectory {trajectory.trajectory_id}: {fault}" for fault in token_problems]
        faults += [f"step {step}: {fault}" for fault in step_faults]
    return faults


def num_infra_errors(run_dir: Path) -> int:
    """Return the number of trajectories that the infrastructure failed."""
    files = (run_dir / "trajectories").glob("step_*.atr")
    return sum(
        trajectory.termination is Termination.INFRA_ERROR for file in files for trajectory in read_trajectories(file)
    )


def accounting_faults(trajectories: list[Trajectory], prompts: list[Prompt], *, samples_per_prompt: int) -> list[str]:
    """Return a line for each sample of a prompt that is missing or there twice."""
    wanted = Counter((prompt.prompt_id, sample) for prompt in prompts for sample in range(samples_per_prompt))
    counts = Counter((trajectory.prompt_id, trajectory.sample_index) for trajectory in trajectories)
    faults = [f"{name}, sample {sample}: {number} too few" for (name, sample), number in (wanted - counts).items()]
    faults += [f"{name}, sample {sample}: {number} too many" for (name, sample), number in (counts - wanted).items()]
    for trajectory in trajectories:
        is_lost = trajectory.termination in (Termination.INFRA_ERROR, Termination.DATA_ERROR)
        if is_lost != (trajectory.reward is None) or (is_lost and not trajectory.failures):
            faults.append(
                f"{trajectory.trajectory_id}: ended by {trajectory.termination} with reward {trajectory.reward}, "
                f"failures {trajectory.failures}"
            )
    return faults


def logprob_faults(row: MetricsRow) -> list[str]:
    """Return the metrics of a step by which rollout and actor disagree about log-probabilities."""
    limits = {"actor/rollout_logprob_diff_mean": _MAX_LOGPROB_DIFF, "actor/rollout_ratio_max": _MAX_RATIO}
    differences = {key: row.get(key) for key in limits}
    return [f"{key} is {value}" for key, value in differences.items() if value is None or not value < limits[key]]


def update_faults(row: MetricsRow, trajectories: Sequence[Trajectory], config: RunConfig) -> list[str]:
    """Return whether a step was trained on other tokens than those of the groups that its record selects."""
    samples = config.rollout.samples_per_prompt
    refs = [TrajectoryRef(summary=summarise_trajectory(trajectory), ref=trajectory) for trajectory in trajectories]
    groups = [
        Group(prompt_id=refs[first].summary.prompt_id, trajectories=refs[first : first + samples])
        for first in range(0, len(refs), samples)
    ]
    kept, _ = select(groups, config.algorithm.selection, seed=config.run.seed)
    recorded = sum(member.summary.num_response_tokens for group in kept for member in group.trajectories)
    trained = row.get("actor/response_tokens")
    return [] if trained == recorded else [f"{trained} tokens were trained, and its record selects {recorded}"]


def report_faults(row: MetricsRow, trajectories: Sequence[Trajectory]) -> list[str]:
    """Return where the report of a step's agents does not add up, or differs from the record; it is absent without agents."""
    sampled, handed = row.get("agent/tokens_sampled"), row.get("agent/tokens_trained")
    if sampled is None or handed is None:
        return []
    left_out = sum(row.get(f"agent/tokens_{reason}") or 0.0 for reason in DropReason)
    faults = [] if sampled == handed + left_out else [f"{sampled} sampled, {handed} trained, {left_out} left out"]
    recorded = sum(trajectory.num_response_tokens for trajectory in trajectories if not trajectory.is_masked)
    if handed != recorded:
        faults.append(f"the report has {handed} trained tokens, and the record {recorded}")
    return faults


def token_faults(trajectory: Trajectory, prompt: Prompt, tokens: ChatTokens, *, version: int) -> list[str]:
    """Return the faults of a trajectory: tokens that are not of its turns, or not sampled by policy `version`."""
    ids, mask = trajectory.token_ids, trajectory.response_mask
    if not len(ids) == len(mask) == len(trajectory.rollout_logprobs):
        return [f"{len(ids)} tokens, {len(mask)} in the mask, {len(trajectory.rollout_logprobs)} log-probabilities"]
    faults = []
    if ids[: trajectory.num_prompt_tokens] != tokens.prompt(prompt.messages):
        faults.append("it does not begin with its prompt")
    spans = [list(group) for _, group in groupby(range(trajectory.num_prompt_tokens, len(ids)), mask.__getitem__)]
    sampled = [span for span in spans if mask[span[0]]]
    observed = [span for span in spans if not mask[span[0]]]
    turns = [turn for turn in trajectory.turns if turn.text or turn is not trajectory.turns[-1]]
    if [tokens.decode([ids[place] for place in span]) for span in sampled] != [turn.text for turn in turns]:
        faults.append("what was sampled is not the text of its turns")
    calls = [_without_ids(tokens.calls(turn.text, id_prefix="")) for turn in turns]
    if calls != [_without_ids(turn.calls) for turn in turns]:
        faults.append("the calls are not those in the text")
    for span, turn in zip(observed, trajectory.turns, strict=False):
        if not turn.results:  # an agent answered as the user
            continue
        texts = [tokens.cut(result.text, len(ids))[0] for result in turn.results]
        messages: list[Message] = [{"role": "tool", "content": text} for text in texts]
        expected = tokens.observation(messages, names=[call.name for call in turn.calls])
        if not any(result.truncated for result in turn.results) and [ids[place] for place in span] != expected:
            faults.append("what was observed is not what the tools answered")
    if [start for start, _ in trajectory.version_spans] != [span[0] for span in sampled]:
        faults.append("its version spans are not where it was sampled")
    if {span_version for _, span_version in trajectory.version_spans} - {version}:
        faults.append(f"sampled by versions {trajectory.version_spans} instead of {version}")
    return faults


def _prompts_of_steps(run_dir: Path, config: RunConfig, num_steps: int) -> Iterator[list[Prompt]]:
    dataset = training_prompts(config)
    for step in range(1, num_steps + 1):
        state = json.loads((run_dir / "checkpoints" / f"step_{step:06d}" / "state.json").read_text())
        yield dataset.take(state["prompts_taken"] - dataset.position)


def _without_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    return [replace(call, call_id="") for call in calls]


def _chat_tokens(config: RunConfig, agent_tools: Sequence[dict[str, Any]]) -> ChatTokens:
    if agent_tools:
        return ChatTokens.of_model(config.model, list(agent_tools))
    nobody = ToolContext(judge=JudgeAddress(urls=("http://127.0.0.1:9",)))
    schemas = [tool.schema.as_template_dict() for tool in build_tools(load_tool_configs(config), nobody).values()]
    return ChatTokens.of_model(config.model, schemas)
