"""The record of an evaluation on disk, as facts about each trajectory without its tokens."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.schema.reward import RewardSection
from agentrl.errors import ConfigError, DataError
from agentrl.rewards.answers.text import spelling
from agentrl.rewards.math_answer import MATH_ANSWER_REWARD, final_answer
from agentrl.trajectories.store import TrajectoryStore, read_prompts, read_trajectories
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Prompt, Termination, Trajectory, TrajectorySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Facts about one trajectory of an evaluation."""

    summary: TrajectorySummary
    answer: str | None = None
    """Spelling of its final answer; None without an answer, or where the reward reads none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """All samples of an evaluation so far, with their prompts."""

    file: Path
    prompts: Mapping[str, Prompt]
    samples: list[Sample]
    """In the order of their ids; the last try of each."""
    has_answers: bool
    """True if the reward compares final answers, so that they can be voted on."""

    @property
    def summaries(self) -> list[TrajectorySummary]:
        """The summaries of all samples."""
        return [sample.summary for sample in self.samples]

    def trajectories(self, trajectory_ids: Collection[str]) -> dict[str, Trajectory]:
        """Return whole trajectories, keyed by id; the last try of each."""
        return {
            item.trajectory_id: item for item in read_trajectories(self.file) if item.trajectory_id in trajectory_ids
        }


def record_file(run_dir: Path) -> Path:
    """Return the file of an evaluation's trajectories, which may not exist yet."""
    return TrajectoryStore(run_dir).file(0, validation=True)


def read_evaluation(run_dir: Path, reward: RewardSection) -> EvaluationRecord:
    """Return the record of an evaluation that is finished, runs, or was killed; empty if nothing is on disk.

    Raises:
        ConfigError: the file is damaged.
    """
    file = record_file(run_dir)
    read_answer = _answer_reader(reward)
    samples = {}
    try:
        prompts = read_prompts(file)
        for trajectory in read_trajectories(file):
            answer = read_answer(prompts[trajectory.prompt_id], trajectory) if read_answer else None
            summary = summarise_trajectory(trajectory)
            samples[trajectory.prompt_id, trajectory.sample_index] = Sample(summary=summary, answer=answer)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{file} is damaged: {error}. Remove it to measure again.") from error
    return EvaluationRecord(
        file=file,
        prompts=prompts,
        samples=[samples[key] for key in sorted(samples)],
        has_answers=read_answer is not None,
    )


def _answer_reader(reward: RewardSection) -> Callable[[Prompt, Trajectory], str | None] | None:
    """Return how the reward reads the answer of a trajectory; None if it has no notion of one."""
    if all(scorer.class_name != MATH_ANSWER_REWARD for scorer in reward.scorers):
        return None

    def read(prompt: Prompt, trajectory: Trajectory) -> str | None:
        if trajectory.termination is not Termination.ANSWERED and reward.score_unfinished != "score":
            return None  # cut short: the reward has not read it
        try:
            return spelling(final_answer(prompt, trajectory.turns, reward.answer_format).text) or None
        except DataError:
            return None

    return read
