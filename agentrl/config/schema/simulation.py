"""Config tree of a simulation (`agentrl.runners.simulate`): that of a run, and the simulated engine."""

from typing import Self

from pydantic import Field, model_validator

from agentrl.config.schema.fields import Amount, AmountOrZero, Count, Section
from agentrl.config.schema.run import RunConfig


class SimulatedEngineSection(Section):
    """The simulated engine, which computes nothing: durations of steps, memory, and lengths of turns.

    The times are fitted to published figures of vLLM with an 8B model on one H100 (docs/benchmarks.md); measure your own for
    important plans.
    """

    step_ms: Amount = 6.4
    """Base time of a step, in milliseconds."""
    step_ms_per_request: AmountOrZero = 0.055
    """Time added to a step for each running request, in milliseconds."""
    step_ms_per_prefill_token: AmountOrZero = 0.06
    """Time added to a step for each computed prompt token, in milliseconds."""
    kv_tokens: Count = 400_000
    """Size of the KV memory in tokens."""
    max_running: Count = 256
    """Largest number of requests that run at once."""
    max_batched_tokens: Count = 8192
    """Largest number of prompt tokens computed in one step; a longer prompt takes several."""
    turn_tokens_median: Amount = 400.0
    """Median number of tokens of a turn, which is log-normal."""
    turn_tokens_sigma: AmountOrZero = 0.8
    """Standard deviation of the logarithm of a turn's tokens: 0 makes all equal, 1 gives a heavy tail."""
    prompt_sigma: AmountOrZero = 0.4
    """Standard deviation of the logarithm of each prompt's own factor for the length of its turns."""
    min_turns: Count = 2
    """Turns of the shortest trajectory; each but the last calls a tool."""
    max_turns: Count = 10
    """Turns of the longest trajectory; all numbers between `min_turns` and this are equally frequent."""

    @model_validator(mode="after")
    def _turns_are_ordered(self) -> Self:
        if self.min_turns > self.max_turns:
            raise ValueError(
                f"has `min_turns` {self.min_turns}, more than `max_turns` ({self.max_turns}); change one of them"
            )
        return self


class SimulationConfig(RunConfig):
    """The root of the tree for the simulation."""

    simulated: SimulatedEngineSection = Field(default_factory=SimulatedEngineSection)
    """The engine of the simulation, in place of `rollout.engine`."""
