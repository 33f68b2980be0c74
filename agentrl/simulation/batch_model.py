"""Model of a simulated engine's time and memory: the requests of each step, its duration, the contents of the KV memory.

It models the timing of vLLM's scheduler. One step samples a token for every running request and takes
`a + b x running + c x prefilled tokens` seconds. Requests are admitted in order of arrival, once their prompt fits the KV
memory. When the memory of running requests does not suffice, the last admitted one is preempted and computed again. The cache
of ended requests serves the next turn until its memory is needed: the least recently used is evicted first, its end before its
beginning. Running requests share no memory, which is the worse case.

`BatchSimulation` has no clock: callers pass the time. Steps in which nothing changes are merged.
"""

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from agentrl.config.schema.simulation import SimulatedEngineSection


@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedRequest:
    """A request of the simulation."""

    request_id: str
    opening: str
    """Key of the first turn's prompt, which the trajectories of a group share."""
    num_opening_tokens: int
    trajectory: str
    """Key of its trajectory, whose past turns may be in the cache."""
    num_prompt_tokens: int
    num_to_sample: int
    num_once_computed: int = 0
    """Leading tokens that this engine has computed before, in earlier turns or until a preemption."""
    arrived_at: float = 0.0
    queue_s: float | None = None
    """Time until it was first admitted."""
    num_sampled: int = 0
    num_computed: int = 0
    """Tokens whose keys and values are in the memory."""
    version_spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and sampled tokens."""
        return self.num_prompt_tokens + self.num_sampled

    @property
    def num_to_prefill(self) -> int:
        """Tokens to compute before the next can be sampled; the last sampled token is part of sampling."""
        return self.num_tokens - self.num_computed - (self.num_sampled > 0)

    def lose_memory(self) -> None:
        """Drop the keys and values; they are computed again."""
        self.num_once_computed = max(self.num_once_computed, self.num_computed)
        self.num_computed = 0


@dataclass(slots=True)
class BatchCounts:
    """Counts since the start, in tokens except `preemptions`."""

    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    """Prompt tokens found in the memory."""
    preemptions: int = 0
    recomputed: int = 0
    """Part of `prefilled` that was computed before for the same trajectory, and lost by a preemption or between turns."""


@dataclass(slots=True, kw_only=True)
class _Steps:
    """One step, or several equal ones."""

    starts_at: float
    step_s: float
    num_steps: int
    prefills: list[tuple[SimulatedRequest, int]]
    samplers: list[SimulatedRequest]

    @property
    def ends_at(self) -> float:
        return self.starts_at + self.num_steps * self.step_s


class BatchSimulation:
    """Running and waiting requests of one engine."""

    def __init__(self, section: SimulatedEngineSection) -> None:
        self._section = section
        self.policy_version = 0
        self.counts = BatchCounts()
        self.running: list[SimulatedRequest] = []
        self.waiting: deque[SimulatedRequest] = deque()
        self._cache: OrderedDict[str, int] = OrderedDict()
        """Cached tokens of openings, and of trajectories beyond their opening; least recently used first."""
        self._cached_tokens = 0
        self.used_tokens = 0
        """KV tokens of running requests; cached tokens can be evicted and do not count."""
        self._prefilling: list[SimulatedRequest] = []
        """Running requests that must compute tokens before they can sample, in running order."""
        self._step: _Steps | None = None

    @property
    def next_event_at(self) -> float | None:
        """End of the current steps; None if nothing runs."""
        return None if self._step is None else self._step.ends_at

    def add(self, request: SimulatedRequest, now: float) -> None:
        """Queue a request; it is admitted at the end of the current step."""
        self.waiting.append(request)
        step = self._step
        if step is None:
            self._begin_steps(now)
        else:
            step.num_steps = min(step.num_steps, max(1, math.ceil((now - step.starts_at) / step.step_s)))

    def remove(self, request: SimulatedRequest, now: float) -> None:
        """Remove a request early; it keeps the tokens of the last full step, and the others' step takes as long."""
        self._catch_up(now)
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self._end(request)
            if self._step is not None:
                self._step.prefills = [prefill for prefill in self._step.prefills if prefill[0] is not request]
                self._step.samplers = [other for other in self._step.samplers if other is not request]
        if self._step is not None and not self.running:
            self._begin_steps(now)

    def renew_weights(self, now: float, *, version: int) -> None:
        """Drop the KV memory, and restart the current step with new weights; running requests are computed again."""
        self._catch_up(now)
        self.policy_version = version
        self._cache.clear()
        self._cached_tokens = self.used_tokens = 0
        for request in self.running:
            request.lose_memory()
        self._prefilling = list(self.running)
        self._begin_steps(now)

    def advance(self, now: float) -> list[SimulatedRequest]:
        """Run the steps that have ended by `now`; return the requests that sampled their last token."""
        step = self._step
        if step is None or now < step.ends_at:
            return []
        for request, num_tokens in step.prefills:
            before = request.num_computed
            request.num_computed += num_tokens
            self.used_tokens += num_tokens
            self.counts.prefilled += num_tokens
            self.counts.recomputed += max(0, min(request.num_computed, request.num_once_computed) - before)
        self._sample(step, step.num_steps)
        ended = [request for request in step.samplers if request.num_sampled >= request.num_to_sample]
        for request in ended:
            self._end(request)
        self._begin_steps(now)
        return ended

    def _catch_up(self, now: float) -> None:
        """Run those of the current steps that are over by `now`; a step that prefills counts only at its end."""
        step = self._step
        if step is None or step.prefills:
            return
        num_done = min(step.num_steps - 1, max(0, math.floor((now - step.starts_at) / step.step_s)))
        if num_done:
            self._sample(step, num_done)
            step.starts_at += num_done * step.step_s
            step.num_steps -= num_done

    def _sample(self, step: _Steps, num_steps: int) -> None:
        version = self.policy_version
        for request in step.samplers:
            spans = request.version_spans
            if not spans or spans[-1][1] != version:
                spans.append((request.num_sampled, version))
            request.num_sampled += num_steps
            # The keys of the last token are computed by the next step.
            num_computed = request.num_tokens - 1
            self.used_tokens += num_computed - request.num_computed
            request.num_computed = num_computed
        self.counts.generated += num_steps * len(step.samplers)
        if step.prefills:
            self._prefilling = [request for request in self._prefilling if request.num_to_prefill]

    def _begin_steps(self, now: float) -> None:
        self._admit(now)
        self._make_room()
        self._step = None
        if not self.running:
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
        samplers = [request for request in self.running if request not in unready]
        duration_s = 1e-3 * (
            section.step_ms
            + section.step_ms_per_request * len(self.running)
            + section.step_ms_per_prefill_token * (section.max_batched_tokens - budget)
        )
        num_steps = 1
        if not prefills:  # until the first request ends or the memory is full, nothing changes
            to_first_end = min(request.num_to_sample - request.num_sampled for request in samplers)
            num_steps = max(1, min(to_first_end, (section.kv_tokens - self.used_tokens) // len(samplers)))
        self._step = _Steps(starts_at=now, step_s=duration_s, num_steps=num_steps, prefills=prefills, samplers=samplers)

    def _admit(self, now: float) -> None:
        if not self.waiting:
            return
        needed = self.used_tokens + self._missing_tokens()
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
        # One token for each that samples, all missing tokens for each that prefills.
        needed = self.used_tokens + len(self.running) - len(self._prefilling) + self._missing_tokens()
        while len(self.running) > 1 and needed > self._section.kv_tokens:
            victim = self.running[-1]
            needed -= max(victim.num_tokens, victim.num_computed + 1)
            self._stop(victim)
            victim.lose_memory()
            self.counts.preemptions += 1
            self.waiting.appendleft(victim)
        self._evict()

    def _missing_tokens(self) -> int:
        return sum(request.num_tokens - request.num_computed for request in self._prefilling)

    def _stop(self, request: SimulatedRequest) -> None:
        self.running.remove(request)
        self.used_tokens -= request.num_computed
        if request in self._prefilling:
            self._prefilling.remove(request)

    def _end(self, request: SimulatedRequest) -> None:
        """Stop a request, and cache its opening and the rest, which serves one trajectory only and is evicted first."""
        self._stop(request)
        opening = min(request.num_opening_tokens, request.num_computed)
        for key, num_tokens in ((request.trajectory, request.num_computed - opening), (request.opening, opening)):
            self._cached_tokens += num_tokens - self._cache.pop(key, 0)
            self._cache[key] = num_tokens
        self._evict()

    def _find_prefix(self, request: SimulatedRequest) -> None:
        if request.num_sampled:
            return  # preempted: its cache is lost
        opening, past = self._cache.get(request.opening, 0), self._cache.pop(request.trajectory, 0)
        self._cached_tokens -= past
        if opening:
            self._cache.move_to_end(request.opening)
            # The last token of a prompt is always computed, to sample from.
            request.num_computed = min(opening + past, request.num_prompt_tokens - 1)
            self.counts.cached += request.num_computed

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
