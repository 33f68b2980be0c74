"""Lower bounds on the makespan of a played workload, for engines whose step takes `a + b x running + c x prefilled tokens`.

A bound is the least time in which the engines could do the work; it is found by bisection. Notation: E engines, N sampled
tokens of all trajectories, of which n are one's own, P prefilled ones, S steps of all engines. All steps together take
`a S + b N + c P`, and no more than E times the makespan; what is argued about is how few steps can be enough.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from agentrl.config.schema.run import RunConfig
from agentrl.config.schema.simulation import SimulatedEngineSection, SimulationConfig
from agentrl.runners.simulate import Simulation
from agentrl.types import Trajectory

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A played workload; arrays have an element per trajectory."""

    num_engines: int
    section: SimulatedEngineSection
    reserved_tokens: int
    """Reservation of `reserve_max` for a trajectory with the shortest prompt."""
    sampled: Floats
    """Tokens."""
    observed: Floats
    """Tokens."""
    tool_s: Floats
    prompt_tokens: int
    """Tokens of all prompts, each once."""
    sampled_held: float
    """Sum over all sampled tokens of those before them, which the memory holds in that step."""
    tool_held_s: float
    """Sum over all tool calls of their seconds, times the tokens of their trajectory until then."""

    @property
    def alone_s(self) -> Floats:
        """Time of each trajectory if it runs alone and its prompt is cached."""
        section = self.section
        step_s = 1e-3 * (section.step_ms + section.step_ms_per_request)
        return self.sampled * step_s + 1e-3 * section.step_ms_per_prefill_token * self.observed + self.tool_s

    @property
    def marginal_s(self) -> float:
        """`b N + c P`: what all the work takes in whichever steps it is done."""
        section = self.section
        prefilled = self.prompt_tokens + self.observed.sum()
        marginal_ms = section.step_ms_per_request * self.sampled.sum() + section.step_ms_per_prefill_token * prefilled
        return 1e-3 * float(marginal_ms)


def workload_of(simulation: Simulation, config: RunConfig) -> Workload:
    """Return what a simulation played."""
    records: list[Trajectory] = [trajectory.ref for group in simulation.groups for trajectory in group.trajectories]
    masks = [np.array(record.response_mask) for record in records]
    return Workload(
        num_engines=config.rollout.num_engines,
        section=cast(SimulationConfig, config).simulated,
        reserved_tokens=min(simulation.prompt_tokens.values()) + config.rollout.max_response_tokens,
        sampled=np.array([mask.sum() for mask in masks], dtype=float),
        observed=np.array(
            [len(r.token_ids) - r.num_prompt_tokens - sum(r.response_mask) for r in records], dtype=float
        ),
        tool_s=np.array([sum(_tool_waits_s(record)) for record in records]),
        prompt_tokens=sum(simulation.prompt_tokens.values()),
        sampled_held=float(sum(np.flatnonzero(mask).sum() for mask in masks)),
        tool_held_s=sum(map(_tool_held_s, records, masks)),
    )


def least_of_any_s(work: Workload) -> float:
    """Return the bound of all schedules, those included that know every length and move what they like.

    A trajectory that ends by M has M less its time alone to spare, and each other request of its steps takes b of that. So
    its steps hold on average no more than `1 + spare / (b n)`, and together they are no fewer than n over that (1/x is
    convex, so that the mean over the steps may stand for each). Nor are there fewer than N over the fullest batch, or than what
    is held in all of them over the memory.
    """
    section, alone_s = work.section, work.alone_s
    b_s = 1e-3 * section.step_ms_per_request
    fewest = max(work.sampled.sum() / section.max_running, work.sampled_held / section.kv_tokens)

    def is_enough(makespan_s: float) -> bool:
        batches = np.minimum(section.max_running, 1 + (makespan_s - alone_s) / (b_s * work.sampled))
        steps_s = 1e-3 * section.step_ms * max(fewest, float((work.sampled / batches).sum()))
        return steps_s + work.marginal_s <= work.num_engines * makespan_s

    return _least(is_enough, at_least_s=float(alone_s.max()))


def least_without_recomputation_s(work: Workload) -> float:
    """Return the bound of schedules that know every length and compute nothing twice: what waits for a tool is held as well."""
    section = work.section
    held_s = 1e-3 * (section.step_ms + section.step_ms_per_request) * work.sampled_held + work.tool_held_s
    return max(least_of_any_s(work), held_s / (work.num_engines * section.kv_tokens))


def least_with_reservations_s(work: Workload) -> float:
    """Return the bound of schedules that must be sure that everything fits and know no length.

    Each engine has as many places as its memory holds trajectories at their longest. With r requests in the mean step there are
    N / r steps, and N tokens take their trajectories `a + b r` each at least: more at once need more places, fewer more time.
    """
    section, total = work.section, float(work.sampled.sum())
    num_places = min(section.max_running, section.kv_tokens // work.reserved_tokens)
    a_s, b_s = 1e-3 * section.step_ms, 1e-3 * section.step_ms_per_request
    waits_s = float(work.tool_s.sum() + 1e-3 * section.step_ms_per_prefill_token * work.observed.sum())

    def is_enough(makespan_s: float) -> bool:
        left_s = work.num_engines * makespan_s - work.marginal_s
        if left_s <= 0:
            return False
        running = max(1.0, a_s * total / left_s)
        return waits_s + total * (a_s + b_s * running) <= work.num_engines * num_places * makespan_s

    return _least(is_enough, at_least_s=least_of_any_s(work))


def _tool_waits_s(record: Trajectory) -> list[float]:
    return [max((result.wall_time_s for result in turn.results), default=0.0) for turn in record.turns]


def _tool_held_s(record: Trajectory, mask: NDArray[np.int64]) -> float:
    """Return the sum of a trajectory's waits for tools, each times the tokens that it had by then."""
    ends = np.flatnonzero(np.diff(np.append(mask, 0)) == -1)
    waits_s: Sequence[float] = _tool_waits_s(record)
    return sum(float(end) * wait_s for end, wait_s in zip(ends, waits_s, strict=False))


def _least(is_enough: Callable[[float], bool], *, at_least_s: float) -> float:
    """Return the least time that is enough, to a thousandth; more time is enough as well."""
    low = at_least_s
    if is_enough(low):
        return low
    high = 2 * low
    while not is_enough(high):
        low, high = high, 2 * high
    while not math.isclose(low, high, rel_tol=1e-3):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return low
