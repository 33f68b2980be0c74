"""The arithmetic of a simulated engine: which requests run in which step, how long that takes, what the KV memory holds.

It follows vLLM's scheduler as far as time is concerned. One step samples a token for every running request, and takes
`a + b x running + c x prefilled tokens` seconds. A request is admitted when its prompt fits the KV memory, in the order of
arrival. When running requests need more than there is, the last admitted one is preempted, loses what it has and computes it
again. What ended requests leave behind is found again by the next turn, until the memory is needed: then what was used least
recently goes first, its end before its beginning.

Running requests share no memory here, which is the worse case.

There is no clock in here: `BatchSimulation` is told what time it is. Steps in which nothing changes are taken together.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from agentrl.config.schema import SimulatedEngineSection


@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedRequest:
    """A request that the simulation decides about."""

    request_id: str
    opening: bytes
    """Names the prompt of its trajectory's first turn, which the other trajectories of the group have too."""
    num_opening_tokens: int
    trajectory: bytes
    """Names its trajectory, whose past turns may be in the memory."""
    num_prompt_tokens: int
    num_to_sample: int
    num_once_computed: int = 0
    """Tokens, from the first, that this engine has computed before: in earlier turns, or until a preemption."""
    arrived_at: float = 0.0
    queue_s: float | None = None
    """Until it was first admitted."""
    num_sampled: int = 0
    num_computed: int = 0
    """Tokens whose keys and values are in the memory."""
    version_spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and sampled tokens."""
        return self.num_prompt_tokens + self.num_sampled

    @property
    def num_to_compute(self) -> int:
        """Tokens without keys and values."""
        return self.num_tokens - self.num_computed

    @property
    def num_to_prefill(self) -> int:
        """Tokens to compute before the next can be sampled; that of a token sampled last is part of sampling."""
        return self.num_to_compute - (self.num_sampled > 0)


@dataclass(slots=True)
class BatchCounts:
    """What was done since the start; all but `preemptions` in tokens."""

    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    """Prompt tokens found in the memory."""
    preemptions: int = 0
    recomputed: int = 0
    """Of `prefilled`: what had been computed for the same trajectory before, and was lost by a preemption or between turns."""


class BatchSimulation:
    """Running and waiting requests of one engine."""

    def __init__(self, section: SimulatedEngineSection) -> None:
        """Take the model of time and memory."""
        self._section = section
        self.policy_version = 0
        self.counts = BatchCounts()
        self.running: list[SimulatedRequest] = []
        self.waiting: deque[SimulatedRequest] = deque()
        self._cache: OrderedDict[bytes, int] = OrderedDict()
        """Tokens kept of openings, and of trajectories beyond their opening; least recently used first."""
        self._cached_tokens = 0
        self.used_tokens = 0
        """Tokens of the memory that running requests hold; what is only cached is free for the taking."""
        self._prefilling: list[SimulatedRequest] = []
        """Of those that run, in their order: which have tokens to compute before they can sample."""
        self._step: _Steps | None = None

    @property
    def next_event_at(self) -> float | None:
        """When the steps under way end; absent: nothing runs."""
        return None if self._step is None else self._step.ends_at

    def add(self, request: SimulatedRequest, now: float) -> None:
        """Let a request wait for its turn, which comes at the end of a step."""
        self.waiting.append(request)
        if self._step is None:
            self._begin_steps(now)
        else:
            self._step.shorten(now)

    def remove(self, request: SimulatedRequest, now: float) -> None:
        """Take out a request early; what it has sampled by the last full step stays its own."""
        self._catch_up(now)
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self._stop(request)
            self._keep(request)
            if self._step is not None:
                self._step.leave_out(request)
        if self._step is not None and not self.running:
            self._step = None
            self._begin_steps(now)

    def pause(self, now: float) -> None:
        """Stop in the middle of a step, which begins again at `resume`."""
        self._catch_up(now)
        self._step = None

    def resume(self, now: float) -> None:
        """Go on."""
        if self._step is None:
            self._begin_steps(now)

    def forget_all(self) -> None:
        """Drop what is in the memory, as a change of the weights does; what runs is computed again. Call it while paused."""
        self._cache.clear()
        self._cached_tokens = self.used_tokens = 0
        for request in self.running:
            request.num_once_computed = max(request.num_once_computed, request.num_computed)
            request.num_computed = 0
        self._prefilling = list(self.running)

    def advance(self, now: float) -> list[SimulatedRequest]:
        """Do the steps that have ended by `now`; return the requests that sampled their last token."""
        if self._step is None or now < self._step.ends_at:
            return []
        ended = self._end_steps(self._step)
        self._begin_steps(now)
        return ended

    def _catch_up(self, now: float) -> None:
        """Do those of the steps under way that are over, and leave the others as they are."""
        step = self._step
        if step is None:
            return
        done = step.num_done_by(now)
        if done:
            self._sample(step, done)
            step.forget(done)

    def _end_steps(self, step: "_Steps") -> list[SimulatedRequest]:
        for request, num_tokens in step.prefills:
            before = request.num_computed
            request.num_computed += num_tokens
            self.used_tokens += num_tokens
            self.counts.prefilled += num_tokens
            self.counts.recomputed += max(0, min(request.num_computed, request.num_once_computed) - before)
        self._sample(step, step.num_steps)
        ended = [request for request in step.samplers if request.num_sampled >= request.num_to_sample]
        for request in ended:
            self._stop(request)
            self._keep(request)
        return ended

    def _sample(self, step: "_Steps", num_steps: int) -> None:
        version = self.policy_version
        for request in step.samplers:
            spans = request.version_spans
            if not spans or spans[-1][1] != version:
                spans.append((request.num_sampled, version))
            request.num_sampled += num_steps
            # The keys of the last token come with the next step.
            num_computed = request.num_prompt_tokens + request.num_sampled - 1
            self.used_tokens += num_computed - request.num_computed
            request.num_computed = num_computed
        self.counts.generated += num_steps * len(step.samplers)
        if step.prefills:
            self._prefilling = [request for request in self._prefilling if request.num_to_prefill]

    def _begin_steps(self, now: float) -> None:
        self._admit(now)
        self._make_room()
        if not self.running:
            self._step = None
            return
        section = self._section
        budget = section.max_batched_tokens
        prefills: list[tuple[SimulatedRequest, int]] = []
        unready: set[SimulatedRequest] = set()
        for request in self._prefilling:
            missing = request.num_to_prefill
            num_tokens = min(missing, budget)
            budget -= num_tokens
            if num_tokens:
                prefills.append((request, num_tokens))
            if num_tokens < missing:
                unready.add(request)
        samplers = [request for request in self.running if request not in unready] if unready else list(self.running)
        duration_s = 1e-3 * (
            section.step_ms
            + section.step_ms_per_request * len(self.running)
            + section.step_ms_per_prefill_token * (section.max_batched_tokens - budget)
        )
        num_steps = 1 if prefills else self._steps_without_change(samplers)
        self._step = _Steps(starts_at=now, step_s=duration_s, num_steps=num_steps, prefills=prefills, samplers=samplers)

    def _steps_without_change(self, samplers: list[SimulatedRequest]) -> int:
        """Return after how many steps the first request ends or the memory is full."""
        to_first_end = min(request.num_to_sample - request.num_sampled for request in samplers)
        free = self._section.kv_tokens - self.used_tokens
        return max(1, min(to_first_end, free // len(samplers)))

    def _admit(self, now: float) -> None:
        if not self.waiting:
            return
        needed = self.used_tokens + sum(request.num_to_compute for request in self._prefilling)
        while self.waiting and len(self.running) < self._section.max_running:
            request = self.waiting[0]
            needed += request.num_tokens
            if self.running and needed > self._section.kv_tokens:
                return
            self.waiting.popleft()
            if request.queue_s is None:
                request.queue_s = now - request.arrived_at
            self._find_prefix(request)
            self.running.append(request)
            self.used_tokens += request.num_computed
            self._prefilling.append(request)

    def _make_room(self) -> None:
        """Preempt the last admitted requests until the next step's tokens fit."""
        # One token for each that samples; those that prefill need all that they have yet to compute.
        needed = self.used_tokens + len(self.running) - len(self._prefilling)
        needed += sum(request.num_to_compute for request in self._prefilling)
        while len(self.running) > 1 and needed > self._section.kv_tokens:
            victim = self.running[-1]
            needed -= max(victim.num_tokens, victim.num_computed + 1)
            self._stop(victim)
            victim.num_once_computed = max(victim.num_once_computed, victim.num_computed)
            victim.num_computed = 0
            self.counts.preemptions += 1
            self.waiting.appendleft(victim)
        self._evict()

    def _stop(self, request: SimulatedRequest) -> None:
        self.running.remove(request)
        self.used_tokens -= request.num_computed
        if request in self._prefilling:
            self._prefilling.remove(request)

    def _find_prefix(self, request: SimulatedRequest) -> None:
        if request.num_sampled:
            return  # preempted: what it had is gone
        opening, past = self._cache.get(request.opening, 0), self._cache.pop(request.trajectory, 0)
        self._cached_tokens -= past
        if opening:
            self._cache.move_to_end(request.opening)
            # The last token of a prompt is computed in any case, to sample from.
            request.num_computed = min(opening + past, request.num_prompt_tokens - 1)
            self.counts.cached += request.num_computed

    def _keep(self, request: SimulatedRequest) -> None:
        """Keep the first prompt, and the rest apart: it is of use to one trajectory, and is dropped before."""
        opening = min(request.num_opening_tokens, request.num_computed)
        for key, num_tokens in ((request.trajectory, request.num_computed - opening), (request.opening, opening)):
            self._cached_tokens += num_tokens - self._cache.pop(key, 0)
            self._cache[key] = num_tokens
        self._evict()

    def _evict(self) -> None:
        excess = self._cached_tokens + self.used_tokens - self._section.kv_tokens
        while self._cache and excess > 0:
            key, num_tokens = next(iter(self._cache.items()))
            dropped = min(num_tokens, excess)
            if dropped == num_tokens:
                del self._cache[key]
            else:
                self._cache[key] = num_tokens - dropped
            self._cached_tokens -= dropped
            excess -= dropped


@dataclass(slots=True, kw_only=True)
class _Steps:
    """One step, or several alike."""

    starts_at: float
    step_s: float
    num_steps: int
    prefills: list[tuple[SimulatedRequest, int]]
    samplers: list[SimulatedRequest]

    @property
    def ends_at(self) -> float:
        return self.starts_at + self.num_steps * self.step_s

    def num_done_by(self, now: float) -> int:
        """Return how many are over; one that prefills counts only when it has ended."""
        if self.prefills:
            return 0
        return min(self.num_steps - 1, max(0, math.floor((now - self.starts_at) / self.step_s)))

    def shorten(self, now: float) -> None:
        """End with the step that is under way now."""
        self.num_steps = min(self.num_steps, max(1, math.ceil((now - self.starts_at) / self.step_s)))

    def leave_out(self, request: SimulatedRequest) -> None:
        """Go on without one that has been taken out; the steps take as long as they were to."""
        self.prefills = [(other, num_tokens) for other, num_tokens in self.prefills if other is not request]
        self.samplers = [other for other in self.samplers if other is not request]

    def forget(self, num_done: int) -> None:
        self.starts_at += num_done * self.step_s
        self.num_steps -= num_done
