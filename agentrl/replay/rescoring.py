"""Scores of recorded trajectories by the config's reward, which may be another one, or ask another judge, than the run's.

Scores are appended to a file as they come, so that the same command goes on where a killed one ended.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from agentrl.agent_loop.scoring import isolated_reward, score
from agentrl.config.schema.run import RunConfig
from agentrl.errors import DataError, RolloutError
from agentrl.judge.connection import ToolContext
from agentrl.observability.json_lines import append_json_lines, read_json_lines
from agentrl.replay.recorded_run import RecordedRun, RecordedStep
from agentrl.rewards.base import Reward
from agentrl.rewards.loader import build_reward
from agentrl.run.fingerprints import code_of_user, digest_of
from agentrl.run.judges import driver_judge
from agentrl.types import Termination, Trajectory

_NUM_AT_ONCE = 64
_BATCH = 256
"""Trajectories between two writes to the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingChange:
    """Difference between recorded and new rewards; pairs are of one group."""

    num_scored: int
    num_failed: int
    """Trajectories without a new score: the reward failed on them."""
    mean_before: float
    mean_after: float
    num_changed: int
    num_pairs: int
    """Pairs whose recorded rewards differ."""
    num_reversed: int
    """Pairs among them that are now ordered the other way round."""
    num_tied: int
    """Pairs among them that are now equal."""
    num_parted: int
    """Pairs of equal recorded rewards that now differ."""
    examples: tuple[str, ...]
    """Ids of trajectories with the largest change."""


def scores_file(run: RecordedRun) -> Path:
    """Return the file of the scores by the config's reward and judge, and the user's code as it is now."""
    config = run.config.model_dump(mode="json", include={"reward", "judge"})
    code = {name: digest_of(path, key=name) for name, path in code_of_user().items()}
    digest = hashlib.sha256(json.dumps([config, code], sort_keys=True).encode()).hexdigest()
    return run.directory.path / "replays" / f"scores_{digest[:8]}.jsonl"


@contextlib.asynccontextmanager
async def started_reward(run: RecordedRun) -> AsyncIterator[Reward]:
    """Start the config's reward, with a judge if it needs one."""
    judge = run.config.judge.model_copy(update={"placement": "driver"})
    async with driver_judge((), run.config.reward, judge) as address:
        reward = isolated_reward(build_reward(run.config.reward, ToolContext(judge=address)))
        await reward.start()
        async with contextlib.aclosing(reward):
            yield reward


async def rescore(recorded: RecordedStep, reward: Reward, config: RunConfig, file: Path) -> None:
    """Score what the file lacks of a step, many at once, and append it; a failure of the reward leaves one out."""
    done = {(row["trajectory_id"], row["started_at"]) for row in read_json_lines(file)}  # ids repeat after a resume
    with_reward = (trajectory for trajectory in recorded.trajectories if trajectory.reward is not None)
    missing = [item for item in with_reward if (item.trajectory_id, _started_at(item)) not in done]
    places = asyncio.Semaphore(_NUM_AT_ONCE)

    async def scored(trajectory: Trajectory) -> dict[str, object] | None:
        async with places:
            return await _new_score(trajectory, recorded, reward, config)

    for start in range(0, len(missing), _BATCH):
        rows = await asyncio.gather(*map(scored, missing[start : start + _BATCH]))
        append_json_lines(file, [row for row in rows if row is not None])


async def _new_score(
    trajectory: Trajectory, recorded: RecordedStep, reward: Reward, config: RunConfig
) -> dict[str, object] | None:
    value = 0.0
    if trajectory.termination is Termination.ANSWERED or config.reward.score_unfinished == "score":
        try:
            prompt = recorded.prompts[trajectory.prompt_id]
            value = (await score(reward, config.reward, prompt, trajectory.turns)).value
        except (RolloutError, DataError):
            return None
    return {
        "trajectory_id": trajectory.trajectory_id,
        "started_at": _started_at(trajectory),
        "step": recorded.step,
        "reward": value,
    }


def _started_at(trajectory: Trajectory) -> float:
    return trajectory.span.started_at if trajectory.span else 0.0


def read_scores(file: Path) -> dict[str, float]:
    """Return the new rewards, keyed by trajectory id."""
    return {row["trajectory_id"]: row["reward"] for row in read_json_lines(file)}


def compare_rankings(
    steps: Iterable[RecordedStep], scores: Mapping[str, float], *, num_examples: int = 3
) -> RankingChange:
    """Compare recorded and new rewards, one by one and within groups, where a reward teaches by its order alone."""
    before: list[float] = []
    after: list[float] = []
    changes: list[tuple[float, str]] = []
    num_failed = num_pairs = num_reversed = num_tied = num_parted = 0
    for recorded in steps:
        for group in recorded.groups:
            scored = [item.summary for item in group.trajectories if item.summary.reward is not None]
            known = [summary for summary in scored if summary.trajectory_id in scores]
            num_failed += len(scored) - len(known)
            pairs = [(float(summary.reward or 0.0), scores[summary.trajectory_id]) for summary in known]
            before += [old for old, _ in pairs]
            after += [new for _, new in pairs]
            names = (summary.trajectory_id for summary in known)
            changes += [(abs(new - old), name) for (old, new), name in zip(pairs, names, strict=True) if new != old]
            for (old, new), (other_old, other_new) in combinations(pairs, 2):
                num_pairs += old != other_old
                num_reversed += (old - other_old) * (new - other_new) < 0
                num_tied += old != other_old and new == other_new
                num_parted += old == other_old and new != other_new
    largest = sorted(changes, key=lambda change: -change[0])[:num_examples]
    return RankingChange(
        num_scored=len(before),
        num_failed=num_failed,
        mean_before=sum(before) / max(1, len(before)),
        mean_after=sum(after) / max(1, len(after)),
        num_changed=len(changes),
        num_pairs=num_pairs,
        num_reversed=num_reversed,
        num_tied=num_tied,
        num_parted=num_parted,
        examples=tuple(name for _, name in largest),
    )
