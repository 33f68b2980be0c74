"""Advice on step time: names the stage that costs most, once it is stable, and only when it changes.

The costs are those of `replay`, over the last steps. A stage is named when it costs most in both halves of them; another
one replaces it when it costs far more in both halves. A single slow step lies in one half only, so it changes nothing.
"""

from collections import deque
from collections.abc import Sequence

from agentrl.observability.advice.replay import Replay, Stage, StepCosts
from agentrl.observability.step_time import StepTime
from agentrl.types import TrajectorySummary

_WINDOW = 20
"""Steps that the advice is about."""
_FIRST_STEPS = 6
"""Steps before the first advice."""
_LEAD = 1.5
"""Costs of a stage, relative to those of the named one, from which it replaces it."""
_MIN_SHARE = 0.05
"""Share of the steps' time below which a stage is not worth a word."""
_NUM_NAMED_AT_END = 3

_WAYS_OUT = {
    Stage.SAMPLING: "raise `rollout.num_engines` where GPUs or cores are free",
    Stage.TAIL: "lower `rollout.max_response_tokens` or `rollout.max_turns`, or set `rollout.extra_samples_per_prompt`",
    Stage.ENGINE_QUEUE: "raise `rollout.num_engines`, or lower `rollout.max_concurrent_trajectories`",
    Stage.JUDGE_QUEUE: "raise `judge.num_slots`, or add hosts to `judge.hosts`",
    Stage.TOOLS: "make the tools faster, or raise `rollout.max_concurrent_trajectories`",
    Stage.REWARD: "make the reward faster",
    Stage.TOKENISE: "raise `rollout.num_workers`",
    Stage.DISPATCH: "raise `rollout.num_workers`",
    Stage.RETRY: "the warnings say why episodes fail",
    Stage.UPDATE: "raise `actor.num_workers` where GPUs or cores are free",
    Stage.WEIGHT_SYNC: "set `rollout.max_staleness`, so that the engines go on meanwhile",
    Stage.VALIDATION: "raise `validation.every_steps`",
    Stage.CHECKPOINT: "raise `checkpoint.every_steps`",
}
_AGENT_WAY_OUT = "make the agent faster, or raise `rollout.max_concurrent_trajectories`"


class Advisor:
    """The advice on a run, step by step."""

    def __init__(self, *, num_ahead: int, has_agent: bool = False) -> None:
        """Take `rollout.max_staleness`; with `has_agent` the time of tools is the agent's, which runs its own."""
        self._replay = Replay(num_ahead=num_ahead)
        self._has_agent = has_agent
        self._steps: deque[StepCosts] = deque(maxlen=_WINDOW)
        self._recorded_s: deque[float] = deque(maxlen=_WINDOW)
        self._named: Stage | None = None

    def add(
        self,
        summaries: Sequence[TrajectorySummary],
        spent: StepTime,
        *,
        validation_s: float = 0.0,
        checkpoint_s: float = 0.0,
    ) -> str | None:
        """Add a step; return the advice if it changed."""
        self._steps.append(self._replay.add(summaries, spent, validation_s=validation_s, checkpoint_s=checkpoint_s))
        self._recorded_s.append(spent.total_s + validation_s + checkpoint_s)
        named = stage_to_name(self._steps, self._named)
        if named is self._named:
            return None
        self._named = named
        return None if named is None else self._describe([named])

    def conclusion(self) -> str | None:
        """Return the stages that cost most in the last steps; None in a run too short for advice."""
        if len(self._steps) < _FIRST_STEPS:
            return None
        costs = _sums(self._steps)
        ordered = sorted(costs, key=lambda stage: -costs[stage])
        worth = [stage for stage in ordered if costs[stage] >= _MIN_SHARE * _length_s(self._steps)]
        if not worth:
            return f"advice: no stage costs {_MIN_SHARE:.0%} of the last {len(self._steps)} steps"
        return self._describe(worth[:_NUM_NAMED_AT_END])

    def _describe(self, stages: Sequence[Stage]) -> str:
        costs, length_s, recorded_s = _sums(self._steps), _length_s(self._steps), sum(self._recorded_s)
        shares = {stage: costs[stage] / length_s for stage in stages}
        shorter = ", ".join(
            f"{share * recorded_s:.1f} s ({share:.0%}) without {self._name(stage)}" for stage, share in shares.items()
        )
        way_out = _AGENT_WAY_OUT if self._has_agent and stages[0] is Stage.TOOLS else _WAYS_OUT[stages[0]]
        return (
            f"advice: the last {len(self._steps)} steps ({recorded_s:.0f} s) would be shorter by {shorter}; {way_out}"
        )

    def _name(self, stage: Stage) -> str:
        return "agent" if self._has_agent and stage is Stage.TOOLS else str(stage)


def stage_to_name(steps: Sequence[StepCosts], named: Stage | None) -> Stage | None:
    """Return the stage that the advice is about after these steps, of which `named` was named before the last."""
    if len(steps) < (_FIRST_STEPS if named is None else _WINDOW):
        return named
    costs = _sums(steps)
    first = max(Stage, key=lambda stage: costs[stage])
    middle = len(steps) // 2
    for half in (list(steps)[:middle], list(steps)[middle:]):
        costs = _sums(half)
        rival_s = (
            max(cost_s for stage, cost_s in costs.items() if stage is not first) if named is None else costs[named]
        )
        lead = 1.0 if named is None else _LEAD
        if first is named or costs[first] < max(lead * rival_s, _MIN_SHARE * _length_s(half)):
            return named
    return first


def _sums(steps: Sequence[StepCosts]) -> dict[Stage, float]:
    return {stage: sum(step.saved_s[stage] for step in steps) for stage in Stage}


def _length_s(steps: Sequence[StepCosts]) -> float:
    return sum(step.length_s for step in steps)
