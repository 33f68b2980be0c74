"""Sections of the learning algorithm: selection, advantages, losses, critic, reward model and LoRA."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.schema.fields import (
    Amount,
    AmountOrZero,
    BelowOne,
    Count,
    CountOrZero,
    Number,
    Section,
    Share,
    known_or_path,
)
from agentrl.config.schema.paths import InputPath

ADVANTAGE_NAMES = ("grpo", "rloo", "reinforce_plus_plus_baseline")
"""Values of `algorithm.advantage` with one advantage per trajectory."""
TOKEN_ADVANTAGE_NAMES = ("reinforce_plus_plus", "gae")
POLICY_LOSS_NAMES = ("ppo", "gspo", "cispo")
AGGREGATION_NAMES = ("token_mean", "trajectory_mean", "fixed_length")
KL_ESTIMATOR_NAMES = ("k1", "k2", "k3")


class SelectionSection(Section):
    """Selection of the trajectories of a group that are trained on."""

    method: Literal["all", "resample_on_correct"] = "resample_on_correct"
    """`resample_on_correct` is GRPO-RoC; `all` is plain GRPO."""
    keep: CountOrZero = 0
    """Trajectories kept per group by `resample_on_correct`; 0 keeps half of `rollout.samples_per_prompt`, as in the paper."""
    positives: Literal["weighted", "sorted"] = "weighted"
    """Draw correct trajectories by quality (the paper), or take the best in order (the released code)."""
    min_positives: CountOrZero = 1
    """Smallest number of solved trajectories kept, if there are as many."""
    min_negatives: CountOrZero = 1
    """Smallest number of other trajectories kept, if there are as many."""
    metric: str | None = None
    """Metric of the reward, such as `accuracy`, used instead of the reward for equal groups, the resampling, the pass rates of
    stages, and accuracy and pass@k in validation; absent: the reward itself.
    """
    solved_at: Number = 1.0
    """Smallest reward, or value of `metric`, of a solved trajectory."""
    drop_equal_reward: bool = True
    """Drop groups whose rewards (or values of `metric`) are all equal, before the resampling: with the group's mean as baseline
    their advantages are 0, unless a reward model scores them differently. A KL term, an entropy bonus and advantages per token
    still have a gradient there.
    """
    max_refill_rounds: CountOrZero = 1
    """Rounds of fresh prompts that replace dropped groups within a step."""

    def num_kept(self, samples_per_prompt: int) -> int:
        """Return the number of trajectories kept of a group whose trajectories all have a reward."""
        if self.method == "all":
            return samples_per_prompt
        return self.keep or min(samples_per_prompt, max(2, samples_per_prompt // 2))  # advantages compare at least two


class RolloutCorrectionSection(Section):
    """Importance weights that correct differences between engine and actor: older weights, or other arithmetic."""

    method: Literal["none", "truncate", "mask"] = "none"
    """`truncate` multiplies the loss by the ratio of actor and engine, at most `max_ratio`; `mask` multiplies it by the ratio
    if that is between `min_ratio` and `max_ratio`, else by 0.
    """
    level: Literal["token", "trajectory", "geometric"] = "token"
    """Ratio of each token (`token`), their product over the trajectory (`trajectory`; TRL's and verl's `sequence`), or its
    geometric mean (`geometric`), which does not grow with length.
    """
    min_ratio: AmountOrZero = 0.5
    """Lower bound, for `mask` only."""
    max_ratio: Amount = 2.0
    """Upper bound."""


class AlgorithmSection(Section):
    """The learning algorithm, from rewards to the loss."""

    selection: SelectionSection = Field(default_factory=SelectionSection)
    """Selection of the trajectories of a group that are trained on."""
    advantage: Annotated[str, known_or_path((*ADVANTAGE_NAMES, *TOKEN_ADVANTAGE_NAMES))] = "grpo"
    """Estimator of the advantages. One value per trajectory: `grpo` (the group's mean is the baseline), `rloo` (the mean of the
    others), `reinforce_plus_plus_baseline` (normalised over all tokens of the step), or the import path of your own function
    (`agentrl.algorithms.advantage`). One per token: `reinforce_plus_plus` (discounted rewards), `gae` (a critic is the
    baseline), or the import path of your own object (`agentrl.algorithms.token_advantage`).
    """
    normalise_by_std: bool = True
    """Divide advantages by their standard deviation: over the group (`grpo`), the step's trajectories (`rloo`), or the step's
    tokens (others); Dr. GRPO does not. Those over the step are also centred on its mean.
    """
    discount: Share = 1.0
    """Discount factor per token, for advantages per token."""
    gae_lambda: Share = 1.0
    """Lambda of `gae`: 0 uses the critic alone, 1 the rewards alone."""
    policy_loss: Annotated[str, known_or_path(POLICY_LOSS_NAMES)] = "ppo"
    """`ppo`, `gspo` (one ratio per trajectory), `cispo` (clipped weights), or the import path of your own function
    (`agentrl.algorithms.policy_loss`).
    """
    aggregation: Annotated[str, known_or_path(AGGREGATION_NAMES)] = "token_mean"
    """Weights of tokens in the loss of a mini-batch: equal for all tokens (`token_mean`), equal for all trajectories
    (`trajectory_mean`), 1 / `rollout.max_response_tokens` (`fixed_length`, Dr. GRPO), or the import path of your own function
    (`agentrl.algorithms.aggregation`).
    """
    clip_ratio_low: AmountOrZero = 0.2
    """Lower PPO clip: ratios below 1 - this are clipped. At most 1, which clips none."""
    clip_ratio_high: AmountOrZero = 0.28
    """Upper PPO clip: ratios above 1 + this are clipped (clip-higher)."""
    clip_ratio_dual: AmountOrZero = 0.0
    """Upper bound of the ratio for negative advantages (dual clip, usually 3); 0: no bound."""
    kl_coefficient: AmountOrZero = 0.0
    """Weight of the KL term against the frozen starting policy; 0 builds no reference model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Place of the KL term: in the loss, with its gradient, or in the reward, as a cost of each token."""
    kl_target: AmountOrZero = 0.0
    """Target KL in nats per trajectory, to which the coefficient is adapted after each step; 0 keeps `kl_coefficient`."""
    kl_estimator: Annotated[str, known_or_path(KL_ESTIMATOR_NAMES)] = "k3"
    """Estimator of the KL divergence from sampled tokens: `k1`, `k2`, `k3`, or the import path of your own function
    (`agentrl.algorithms.kl_divergence`). In the loss, `k1` has a mean gradient of 0 on fresh samples; use `k2` or `k3` there.
    """
    entropy_coefficient: AmountOrZero = 0.0
    """Weight of the mean entropy in the objective, as a bonus."""
    rollout_correction: RolloutCorrectionSection = Field(default_factory=RolloutCorrectionSection)
    """Importance weights for the mismatch of engine and actor; use them if `rollout.max_staleness` is above 0."""

    @property
    def kl_in_reward(self) -> bool:
        """True if the KL term is a cost in the reward."""
        return self.kl_coefficient > 0 and self.kl_in == "reward"


class LoraSection(Section):
    """LoRA: low-rank factors that are trained instead of the linear weights (arXiv:2106.09685), with PEFT."""

    rank: CountOrZero = 0
    """Rank of the factors; 0 trains the weights themselves. With LoRA the base model is the reference; no copy is loaded."""
    alpha: Count = 32
    """Scale: the product of the factors times `alpha / rank` is added to a weight."""
    target_modules: list[str] = []
    """Names of the linear layers that get factors (`q_proj`); empty: all of the decoder."""


class CriticSection(Section):
    """The value model, for `algorithm.advantage: gae`; what is not listed here is as in `actor`."""

    path: InputPath | None = None
    """Hugging Face folder of its initial backbone; absent: `model.path`. Its head starts at zero."""
    learning_rate: BelowOne = 1e-5
    """AdamW learning rate after warm-up; the critic, whose head is new, takes larger steps than the actor."""
    value_clip: AmountOrZero = 0.5
    """Largest change of a value in one step, in units of the reward; 0: no bound."""


class RewardModelSection(Section):
    """A reward model that scores trajectories, in addition to the reward or instead of it."""

    path: InputPath | None = None
    """Hugging Face folder of a sequence classifier with one label; absent: no reward model."""
    weight: Number = 1.0
    """Factor of its score in the total reward, `reward.weight` x reward + this x score; negative if low scores are better."""
    activation: Literal["none", "sigmoid"] = "none"
    """Function applied to its output: `sigmoid` gives a probability."""
