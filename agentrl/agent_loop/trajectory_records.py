"""Records between manager and workers: the request for a trajectory, its summary, the record of a lost one, and reports."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from agentrl.agent_loop.gateway.exactness import ExactnessReport
from agentrl.config.schema.run import ValidationSection
from agentrl.judge.stats import JudgeStats
from agentrl.observability.loop_lag import Lag
from agentrl.rewards.math_answer import AnswerStats
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import (
    Failure,
    Prompt,
    Termination,
    Trajectory,
    TrajectoryRef,
    TrajectorySummary,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRequest:
    """Request for one trajectory. Its sampling follows from the run's seed and these fields alone."""

    step: int
    prompt: Prompt
    sample_index: int
    num_prompt_tokens: int = 0
    """Tokens that are reserved for the prompt."""
    held_out: bool = False
    """True for validation, whose sampling may differ."""
    sampling: ValidationSection | None = None
    """Sampling of this trajectory, in place of the run's or validation's."""
    seed: str | None = None
    """Seed of its sampling; absent: the run's seed and its id."""
    failures: tuple[Failure, ...] = ()
    """Reasons why earlier attempts ended early, on another engine or by another worker."""

    @property
    def attempt(self) -> int:
        """Number of earlier attempts."""
        return len(self.failures)

    @property
    def trajectory_id(self) -> str:
        """Unique within a run."""
        return f"{self.step}-{self.prompt.prompt_id}-{self.sample_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Measurements of a worker since its last report."""

    lag: Lag
    """Lag of its event loop."""
    judge: JudgeStats
    answers: AnswerStats
    agent: ExactnessReport = field(default_factory=ExactnessReport)
    """Counts of failed episodes; others are in the summaries of their trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTrajectorySummary(TrajectorySummary):
    """Summary of a trajectory that an agent played."""

    agent: ExactnessReport = field(compare=False)
    """Counts of the agent's calls."""


def with_agent_counts(summary: TrajectorySummary, counts: ExactnessReport) -> TrajectorySummary:
    """Return the summary with the counts of its agent, if there are any."""
    if not counts.metrics():
        return summary
    facts = {item.name: getattr(summary, item.name) for item in fields(summary)}
    return AgentTrajectorySummary(**facts, agent=counts)


def failed_trajectory(request: TrajectoryRequest, failures: Sequence[Failure]) -> Trajectory:
    """Return the record of a trajectory of which all tries failed."""
    is_data = failures[-1].failure_class.is_data
    return Trajectory(
        trajectory_id=request.trajectory_id,
        prompt_id=request.prompt.prompt_id,
        sample_index=request.sample_index,
        token_ids=[],
        num_prompt_tokens=0,
        response_mask=[],
        rollout_logprobs=[],
        version_spans=(),
        turns=(),
        termination=Termination.DATA_ERROR if is_data else Termination.INFRA_ERROR,
        failures=(*request.failures, *failures),
        num_retries=request.attempt + len(failures) - 1,
    )


def given_up(request: TrajectoryRequest, failures: Sequence[Failure]) -> TrajectoryRef:
    """Return the record of a trajectory that no worker could finish."""
    record = failed_trajectory(request, failures)
    return TrajectoryRef(summary=summarise_trajectory(record), ref=record)
