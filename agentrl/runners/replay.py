"""Replays stages of a recorded run, and names what differs from the record.

    python -m agentrl.runners.replay verify config.yaml       is the record whole, and do its parts agree?
    python -m agentrl.runners.replay score config.yaml        scores by the config's reward: another one, or another judge's
    python -m agentrl.runners.replay select config.yaml       which trajectories does the config train on?
    python -m agentrl.runners.replay tools config.yaml        do the tools still answer the recorded calls the same?
    python -m agentrl.runners.replay update config.yaml --step 12   the update, from the checkpoint before it

The config is that of the run; `section.key=value` words change what is replayed. `--step` picks steps; without it, all are
replayed. On CPUs an update is equal bit for bit. The exit status is 1 where something differs.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.models.tokenizer import light_tokenizer_class
from agentrl.replay.recorded_run import RecordedRun
from agentrl.replay.rescoring import compare_rankings, read_scores, rescore, scores_file, started_reward
from agentrl.replay.selection import replay_selection
from agentrl.replay.tool_calls import CallReplay, replay_calls, started_tools
from agentrl.replay.update import replay_update
from agentrl.replay.verification import problems_of_step
from agentrl.runners.command_line import EXIT_FAILED, run_command

_MAX_SHOWN = 10
_MAX_CHARACTERS = 200


async def verify(run: RecordedRun, wanted: Sequence[int]) -> bool:
    """Print the contradictions of the record; return True if there are none."""
    config = run.config
    has_texts = not config.agent_loop.agent.is_set and config.agent_loop.environment is None
    tokens = ChatTokens.of_model(config.model, [], light_tokenizer_class(config.model.path)) if has_texts else None
    num_trajectories, problems = 0, []
    for recorded in run.steps(wanted):
        num_trajectories += len(recorded.trajectories)
        problems += [f"step {recorded.step}: {problem}" for problem in problems_of_step(recorded, tokens)]
    _print_some(problems)
    print(f"verify: {num_trajectories:,} trajectories, {len(problems):,} contradictions")
    return not problems


async def rescore_all(run: RecordedRun, wanted: Sequence[int]) -> bool:
    """Score the recorded trajectories; print how rewards and the order within groups change."""
    file = scores_file(run)
    async with started_reward(run) as reward:
        for recorded in run.steps(wanted):
            await rescore(recorded, reward, run.config, file)
    change = compare_rankings(run.steps(wanted), read_scores(file))
    print(
        f"score: {change.num_scored:,} trajectories by `{run.config.reward.label}`; mean reward {change.mean_before:.4g} -> "
        f"{change.mean_after:.4g}; {change.num_changed:,} changed, {change.num_failed:,} without a score"
    )
    print(
        f"pairs within groups: {change.num_pairs:,} ordered before; now {change.num_reversed:,} reversed and "
        f"{change.num_tied:,} equal; {change.num_parted:,} that were equal now differ"
    )
    if change.examples:
        print(f"largest changes: {', '.join(change.examples)} (`agentrl.runners.show`)")
    print(f"scores: {file}")
    return not change.num_changed and not change.num_failed


async def select_all(run: RecordedRun, wanted: Sequence[int]) -> bool:
    """Select from the recorded groups; print how the uses of trajectories change."""
    before, after, changed = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for recorded in run.steps(wanted):
        replayed = replay_selection(recorded, run.config)
        before.update(recorded.fates.values())
        after.update(replayed.counts)
        changed.update(replayed.changed.values())
    for fate in sorted({*before, *after}):
        print(f"{fate:12} {before[fate]:8,} recorded {after[fate]:8,} now")
    for (old, new), count in changed.most_common():
        print(f"{count:,} trajectories: {old} -> {new}")
    print(f"select: {sum(changed.values()):,} trajectories are used otherwise")
    return not changed


async def call_tools(run: RecordedRun, wanted: Sequence[int]) -> bool:
    """Make the recorded calls; print how many are answered otherwise, and some of them."""
    if run.config.agent_loop.agent.is_set:
        raise ConfigError(
            "agent_loop.agent: the calls of this run were made by the agent, whose tools cannot be replayed"
        )
    num_calls, different = 0, []
    async with started_tools(run) as tools:
        for recorded in run.steps(wanted):
            calls = await replay_calls(recorded, tools)
            num_calls += len(calls)
            different += [call for call in calls if not call.is_equal]
    _print_some([_described(call) for call in different])
    print(f"tools: {num_calls:,} calls, {len(different):,} answered otherwise")
    return not different


async def update_all(run: RecordedRun, wanted: Sequence[int]) -> bool:
    """Make the wanted updates; print the metrics, and where the state differs."""
    if not wanted:
        raise ConfigError("`update` starts the run's models: name the update with `--step N`")
    is_equal = True
    for recorded in run.steps(wanted):
        replayed = await replay_update(run, recorded)
        for name, (before, after) in replayed.changed.items():
            print(f"  {name}: {before!r} recorded, {after!r} now")
        state = "not compared: the run kept no checkpoint after it"
        if replayed.has_state:
            state = f"differs first at {replayed.state_differs_at}" if replayed.state_differs_at else "equal"
        print(
            f"step {recorded.step}: {replayed.num_trajectories} trajectories, {len(replayed.metrics)} metrics of which "
            f"{len(replayed.changed)} differ; state after the update: {state}"
        )
        is_equal &= not replayed.changed and replayed.state_differs_at is None
    return is_equal


_STAGES = {"verify": verify, "score": rescore_all, "select": select_all, "tools": call_tools, "update": update_all}


def _described(call: CallReplay) -> str:
    new = "no answer" if call.replayed is None else f"{call.replayed.status}, {call.replayed.text!r}"
    before = f"{call.recorded.status}, {call.recorded.text!r}"
    return f"{call.trajectory_id}, turn {call.turn}, `{call.tool}`: {_cut(before)} -> {_cut(new)}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def _print_some(lines: Sequence[str]) -> None:
    for line in lines[:_MAX_SHOWN]:
        print(f"  {line}")
    if len(lines) > _MAX_SHOWN:
        print(f"  ... and {len(lines) - _MAX_SHOWN:,} more")


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agentrl.runners.replay", description="Replay stages of a recorded run."
    )
    parser.add_argument("stage", choices=list(_STAGES))
    parser.add_argument("config", help="YAML file of the run")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="change single keys of it")
    parser.add_argument("--step", type=int, action="append", metavar="N", default=[], help="a step; may be repeated")
    words = parser.parse_intermixed_args()
    equal: list[bool] = []

    async def command() -> None:
        run = RecordedRun(load_run_config(words.config, words.overrides, purpose=Purpose.EXPORT))
        equal.append(await _STAGES[words.stage](run, words.step))

    status = run_command(command, when_stopped="the same command goes on where it can")
    return status or (0 if equal == [True] else EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main())
