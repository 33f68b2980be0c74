"""Continuous batching: selects the running requests and the tokens of the next forward pass.

Everything here runs on the compute thread. A step extends all running sequences: by one token if they decode, by a chunk of
their tokens if they are new or the weights have changed.
"""

import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch

from agentrl.engine.base import EngineStats
from agentrl.engine.embedded.kv_cache import Chunk
from agentrl.engine.embedded.model import LanguageModel
from agentrl.engine.embedded.prefix_rows import PrefixRows
from agentrl.engine.embedded.sampling import sample
from agentrl.engine.stop_strings import StopStrings
from agentrl.errors import EngineError
from agentrl.types import Completion, FinishReason, SamplingParams
from agentrl.weight_sync.base import WeightSource

MAX_PREFILL_TOKENS_PER_STEP = 2048
"""Longer prompts take several steps, so that they delay the running sequences less."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request, from its arrival to its completion."""

    prompt_ids: np.ndarray
    """[num prompt tokens], int32."""
    params: SamplingParams
    uniforms: list[float]
    """One draw from [0, 1) for each token that may be sampled, fixed by the seed."""
    future: Future[Completion] = field(default_factory=Future)
    row: int = -1
    """Row of the KV cache; -1 while the request waits."""
    arrived_at: float = field(default_factory=time.monotonic)
    started_at: float = 0.0
    """Time at which it got its row."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_spans: list[tuple[int, int]] = field(default_factory=list)


class BatchScheduler:
    """Admits requests in order of arrival, steps them, and ends them."""

    def __init__(self, model: LanguageModel, stops: StopStrings) -> None:
        self.model, self._stops = model, stops
        self._rows = PrefixRows(num_rows=model.cache.num_rows, max_tokens=model.max_tokens)
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}
        """Requests, keyed by cache row."""
        self.is_awake = True
        self._policy_version = self._num_generated = self._num_prefilled = self._num_cached = 0

    @property
    def is_busy(self) -> bool:
        """True while there is something to compute."""
        return self.is_awake and self.model.weights.are_whole and bool(self.running or self.waiting)

    def step(self) -> None:
        """Extend the running sequences, and sample for those that are fully computed; call it while `is_busy`."""
        self._admit()
        chunks, budget = [], MAX_PREFILL_TOKENS_PER_STEP
        for row in sorted(self.running):
            start, stop = int(self._rows.num_computed[row]), int(self._rows.num_tokens[row])
            if stop - start > 1:
                stop = min(stop, start + budget)
                budget -= stop - start
            if start < stop:
                chunks.append(Chunk(row, start, stop))
                self._rows.num_computed[row] = stop
        chunks.sort(key=len)
        logits = self.model.extend(self._rows.token_ids, chunks)
        whole = [i for i, chunk in enumerate(chunks) if chunk.stop == self._rows.num_tokens[chunk.row]]
        self._sample([self.running[chunks[i].row] for i in whole], logits[whole])

    def end(self, request: Request, outcome: FinishReason | EngineError = FinishReason.ABORT) -> None:
        """End a request, if it has not ended, with its tokens so far or with an error."""
        if request.future.done():
            return
        if request.row < 0:
            self.waiting.remove(request)
        else:
            del self.running[request.row]
            self._rows.release(request.row)
        if isinstance(outcome, EngineError):
            request.future.set_exception(outcome)
            return
        completion = Completion(
            token_ids=request.token_ids,
            logprobs=request.logprobs,
            finish_reason=outcome,
            version_spans=tuple(request.version_spans) or ((0, self._policy_version),),
            queue_s=(request.started_at or time.monotonic()) - request.arrived_at,
        )
        request.future.set_result(completion)

    def load_weights(self, source: WeightSource, version: int) -> None:
        """Replace the weights and drop the cache; running requests go on, computed again from their tokens.

        Raises:
            EngineError: the weights do not fit or are gone; nothing has changed then.
        """
        self.model.weights.load(source)
        self._policy_version = version
        self._rows.invalidate()

    def drop_cache(self) -> None:
        """Free the KV cache; running requests go on, computed again from their tokens."""
        self._rows.invalidate()
        self.model.cache.layers.clear()

    def fall_asleep(self) -> None:
        """Free memory; see `Engine.sleep`."""
        self.drop_cache()
        self.model.weights.drop()

    def stats(self) -> EngineStats:
        """Return the current load."""
        return EngineStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_tokens_used=int(self._rows.num_computed[self._rows.running].sum()),
            kv_tokens_capacity=self._rows.token_ids.size,
            policy_version=self._policy_version,
            num_generated_tokens=self._num_generated,
            num_prefill_tokens=self._num_prefilled,
            num_cached_tokens=self._num_cached,
        )

    def _admit(self) -> None:
        while self.waiting and (placement := self._rows.place(self.waiting[0].prompt_ids)):
            request = self.waiting.popleft()
            if placement.row != placement.source:
                self.model.cache.copy_prefix(placement.source, placement.row, placement.num_cached)
            request.row, request.started_at = placement.row, time.monotonic()
            self.running[request.row] = request
            self._num_cached += placement.num_cached
            self._num_prefilled += len(request.prompt_ids) - placement.num_cached

    def _sample(self, requests: list[Request], logits_BV: torch.Tensor) -> None:
        uniforms = [request.uniforms[len(request.token_ids)] for request in requests]
        token_ids, logprobs = sample(logits_BV, [r.params for r in requests], uniforms)
        for request, token_id, logprob in zip(requests, token_ids, logprobs, strict=True):
            if not np.isfinite(logprob):
                # NaN in the cache would spoil other requests even if masked, as 0 * NaN is NaN.
                self.drop_cache()
                broken = f"NaN or infinity in the logits of version {self._policy_version}: the weights are broken"
                self.end(request, EngineError(f"engine: {broken}"))
                continue
            if not request.version_spans or request.version_spans[-1][1] != self._policy_version:
                request.version_spans.append((len(request.token_ids), self._policy_version))
            request.token_ids.append(token_id)
            request.logprobs.append(logprob)
            self._rows.append(request.row, token_id)
            self._num_generated += 1
            if token_id in request.params.stop_token_ids or self._stops.reached(request.token_ids, request.params.stop):
                self.end(request, FinishReason.STOP)
            elif len(request.token_ids) == len(request.uniforms):
                self.end(request, FinishReason.LENGTH)
