"""Warnings about an uninformative reward, from the first batches of a run."""

from collections import Counter
from collections.abc import Sequence

from agentrl.config.schema.agent_loop import AgentSection
from agentrl.config.schema.algorithm import SelectionSection
from agentrl.config.schema.reward import RewardSection
from agentrl.observability.reports.outcome import is_solved
from agentrl.types import Termination, TrajectorySummary

_MIN_TRAJECTORIES = 8
"""Fewer are often equal by chance."""

_LIMITS = {
    Termination.MAX_RESPONSE_TOKENS: "`rollout.max_response_tokens`",
    Termination.MAX_TURNS: "`rollout.max_turns`",
    Termination.TIMEOUT: "`rollout.trajectory_timeout_s` or `rollout.turn_timeout_s`",
}
"""Keys to raise, keyed by the limit that cut a trajectory short."""


def reward_warnings(
    summaries: Sequence[TrajectorySummary], reward: RewardSection, selection: SelectionSection, agent: AgentSection
) -> list[str]:
    """Return warnings about the rewards of a batch, one line each.

    Example: "`my_rewards.Exact` gave 0 for all 64 trajectories that answered, of 8 prompts".
    """
    scored = [summary for summary in summaries if summary.reward is not None]
    asked = [s for s in scored if s.termination is Termination.ANSWERED or reward.score_unfinished == "score"]
    if len(scored) < _MIN_TRAJECTORIES:
        return []
    if not asked:
        return [f"`{reward.label}` was never asked: {_describe_cut(scored, agent)}"]
    values = {summary.reward for summary in asked}
    num_prompts = len({summary.prompt_id for summary in asked})
    if len(values) == 1 and len(asked) >= _MIN_TRAJECTORIES:
        return [
            f"`{reward.label}` gave {asked[0].reward:g} for all {len(asked)} trajectories that it was asked about, of "
            f"{num_prompts} prompts, so nothing can be learnt from it; compare in `trajectories/` what the policy wrote with "
            "what the reward reads"
        ]
    if len(values) > 1 and not any(is_solved(summary, selection) for summary in asked):
        best = max(value for value in values if value is not None)
        return [
            f"no trajectory is solved: `algorithm.selection.solved_at` is {selection.solved_at:g}, and the best reward "
            f"of {len(asked)} trajectories is {best:g}"
            + (f" (`algorithm.selection.metric` is `{selection.metric}`)" if selection.metric else "")
            + "; if that is a right answer, lower `solved_at`"
        ]
    return []


def _describe_cut(cut: Sequence[TrajectorySummary], agent: AgentSection) -> str:
    """Return how trajectories were cut short, and the keys to raise, the most common limit first."""
    limits = Counter(summary.termination for summary in cut).most_common()
    counts = ", ".join(f"{limit} {count}" for limit, count in limits)
    keys = " or ".join(_LIMITS[limit] for limit, _ in limits)
    player = f"the agent `{agent.label}`" if agent.is_set else "the policy"
    return (
        f"all {len(cut)} trajectories were cut short ({counts}). Raise {keys}, or see in `trajectories/` why {player} "
        "does not stop"
    )
