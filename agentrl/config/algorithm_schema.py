"""The part of the tree that says what is learnt: selection, advantages, losses, and the models that have a say in them."""

from dataclasses import dataclass, field
from typing import Literal

from agentrl.config.update_schema import UpdateSection

ADVANTAGE_NAMES = ("grpo", "rloo", "reinforce_plus_plus_baseline")
"""Those of a whole trajectory."""
TOKEN_ADVANTAGE_NAMES = ("reinforce_plus_plus", "gae")
POLICY_LOSS_NAMES = ("ppo", "gspo", "cispo")
AGGREGATION_NAMES = ("token_mean", "trajectory_mean", "fixed_length")
KL_ESTIMATOR_NAMES = ("k1", "k2", "k3")


@dataclass(frozen=True)
class SelectionSection:
    """Which trajectories of a group are trained on."""

    method: Literal["all", "resample_on_correct"] = "resample_on_correct"
    """`resample_on_correct` is GRPO-RoC; `all` is plain GRPO."""
    keep: int = 0
    """Trajectories kept per group by `resample_on_correct`; 0 keeps half of `rollout.samples_per_prompt`, as in the paper."""
    positives: Literal["weighted", "sorted"] = "weighted"
    """Draw correct trajectories by quality (the paper), or take the best in order (the released code)."""
    min_positives: int = 1
    """Solved trajectories kept at least, where there are that many."""
    min_negatives: int = 1
    """Other trajectories kept at least, where there are that many."""
    metric: str | None = None
    """Number of the reward's breakdown that selection looks at, such as `accuracy`: for equal groups, the resampling, the
    pass rates of stages, and accuracy and pass@k in validation; absent: the reward itself.
    """
    solved_at: float = 1.0
    """Rewards, or values of `metric`, from which on a trajectory counts as solved."""
    drop_equal_reward: bool = True
    """Drop groups whose rewards (or values of `metric`) are all equal before the resampling: their advantages are 0 where the
    group's mean is the baseline, unless a reward model tells them apart. A KL term, an entropy bonus and advantages per token
    still have a gradient there.
    """
    min_group_size: int = 2
    """Groups with fewer scored trajectories are dropped."""
    max_refill_rounds: int = 1
    """Rounds of fresh prompts that replace dropped groups within a step."""

    def num_kept(self, samples_per_prompt: int) -> int:
        """Return the trajectories kept of a group whose members all have a reward."""
        if self.method == "all":
            return samples_per_prompt
        return self.keep or min(samples_per_prompt, max(2, samples_per_prompt // 2))  # advantages compare at least two


@dataclass(frozen=True)
class RolloutCorrectionSection:
    """Importance weights for what the actor and the engine that sampled do not agree on: older weights, or other arithmetic."""

    method: Literal["none", "truncate", "mask"] = "none"
    """`truncate` multiplies the loss by the ratio of actor and engine, at most `max_ratio`; `mask`, by the ratio where it lies
    between `min_ratio` and `max_ratio`, by 0 elsewhere.
    """
    level: Literal["token", "trajectory", "geometric"] = "token"
    """Ratios of single tokens; or for all tokens of a trajectory their product (TRL's and verl's `sequence`), or its geometric
    mean, which does not grow with length.
    """
    min_ratio: float = 0.5
    """Lower bound, for `mask` only."""
    max_ratio: float = 2.0
    """Upper bound."""


@dataclass(frozen=True)
class AlgorithmSection:
    """From rewards to a loss."""

    selection: SelectionSection = field(default_factory=SelectionSection)
    """Which trajectories of a group are trained on."""
    advantage: str = "grpo"
    """Per trajectory: `grpo` (the group's mean is the baseline), `rloo` (the mean of the others),
    `reinforce_plus_plus_baseline` (normalised over all tokens of the step), or a function of your own by import path
    (`agentrl.algorithms.advantage`). Per token: `reinforce_plus_plus` (discounted rewards), `gae` (a critic is the baseline),
    or an object of your own by import path (`agentrl.algorithms.token_advantage`).
    """
    normalise_by_std: bool = True
    """Divide advantages by their standard deviation: of the group (`grpo`), of the step's trajectories (`rloo`), or of all its
    tokens; Dr. GRPO does not. Those over the step are centred on its mean as well.
    """
    discount: float = 1.0
    """What the reward of the next token counts at this one, for advantages per token."""
    gae_lambda: float = 1.0
    """0 trusts the critic alone, 1 the rewards alone, for `gae`."""
    policy_loss: str = "ppo"
    """`ppo`, `gspo` (one ratio per trajectory), `cispo` (clipped weights), or the import path of a function of your own
    (`agentrl.algorithms.policy_loss`).
    """
    aggregation: str = "token_mean"
    """What tokens count in the loss of a mini-batch: all the same (`token_mean`); each trajectory the same (`trajectory_mean`);
    all divided by `rollout.max_response_tokens` per trajectory (`fixed_length`, Dr. GRPO); or what a function of your own says,
    by import path (`agentrl.algorithms.aggregation`).
    """
    clip_ratio_low: float = 0.2
    """Lower PPO clip: ratios below 1 - this are clipped. At most 1, which sets no such bound."""
    clip_ratio_high: float = 0.28
    """Upper PPO clip: ratios above 1 + this are clipped (clip-higher)."""
    clip_ratio_dual: float = 0.0
    """Ratio from which on a negative advantage weighs no more (dual clip, usually 3); 0 sets no such bound."""
    kl_coefficient: float = 0.0
    """Weight of the KL term against the frozen starting policy; 0 builds no reference model."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where that term stands: in the loss, with its gradient, or as a cost of each token in the reward."""
    kl_target: float = 0.0
    """Nats per trajectory that the coefficient is adapted to after each step, from `kl_coefficient` on; 0 keeps it."""
    kl_horizon: int = 10_000
    """Trajectories over which it adapts: at the greatest error, by a factor of e^0.2."""
    kl_estimator: str = "k3"
    """How that divergence is estimated from the sampled tokens: `k1`, `k2`, `k3`, or a function of your own by import path
    (`agentrl.algorithms.kl_divergence`). In the loss, the gradient of `k1` is 0 on average on fresh samples, whatever the
    divergence; `k2` and `k3` have useful ones.
    """
    entropy_coefficient: float = 0.0
    """Weight of the mean entropy, which is added to what is maximised."""
    rollout_correction: RolloutCorrectionSection = field(default_factory=RolloutCorrectionSection)
    """Whether tokens count by how likely the actor is to write what the engine sampled; right where `rollout.max_staleness`
    is above 0.
    """

    @property
    def kl_in_reward(self) -> bool:
        """Whether the reward has a cost of the distance from the reference in it."""
        return self.kl_coefficient > 0 and self.kl_in == "reward"


@dataclass(frozen=True)
class LoraSection:
    """Thin factors beside the linear weights that are trained in their place (arXiv:2106.09685), with PEFT."""

    rank: int = 0
    """Width of the factors; 0 trains the weights themselves. The base model is then the reference, without a second one."""
    alpha: int = 32
    """What is added to a weight is the product of its factors times this over `rank`."""
    target_modules: list[str] = field(default_factory=list)
    """Names of the linear layers that get some (`q_proj`); empty: all of the decoder."""


@dataclass(frozen=True)
class CriticSection(UpdateSection):
    """The model that learns what reward is still to come: for `algorithm.advantage: gae`."""

    path: str | None = None
    """Hugging Face folder that its backbone starts from; absent: `model.path`. Its head starts at zero."""
    learning_rate: float = 1e-5
    """AdamW learning rate after warm-up."""
    value_clip: float = 0.5
    """How far a value may move in one step, in units of the reward; 0 sets no bound."""


@dataclass(frozen=True)
class RewardModelSection:
    """A model that scores trajectories, beside the reward or in its place."""

    path: str | None = None
    """Hugging Face folder of a sequence classifier with one label; absent: there is no such model."""
    weight: float = 1.0
    """Its share of what is trained on: `reward.weight` x reward + this x score; negative where a low score is the better."""
    activation: Literal["none", "sigmoid"] = "none"
    """What is done to its output: `sigmoid` makes a probability of it."""
    max_tokens_per_micro_batch: int = 16384
    """Packed tokens of one forward pass on one rank."""
