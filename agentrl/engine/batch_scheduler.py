"""Continuous batching: which requests run, and what the next forward pass computes for them.

Everything here runs on the compute thread, except where it says otherwise. A step extends every running sequence at once:
one token for those that decode, a chunk of their tokens for those that have just come, or whose weights have changed.
"""

import time
from asyncio import Future
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from agentrl.engine.base import EngineStats
from agentrl.engine.kv_cache import Chunk
from agentrl.engine.language_model import LanguageModel
from agentrl.engine.prefix_rows import PrefixRows
from agentrl.engine.sampling import sample
from agentrl.errors import EngineError
from agentrl.types import Completion, FinishReason, SamplingParams

MAX_PREFILL_TOKENS_PER_STEP = 2048
"""Longer prompts are computed in several steps, so that they hold up the running sequences only so long."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request, from its arrival to its completion."""

    request_id: str
    prompt_ids: np.ndarray
    """[num prompt tokens], int32."""
    params: SamplingParams
    max_tokens: int
    """`params.max_tokens`, or what the context leaves if that is less."""
    stop_token_ids: frozenset[int]
    uniforms: list[float]
    """One draw from [0, 1) per token to sample, fixed by the seed alone; empty for a greedy request."""
    future: Future[Completion]
    """Belongs to the event loop."""
    is_wanted: bool = True
    """False ends it at the next tick; set from any thread."""
    row: int = -1
    """Its row of the KV cache; -1 while it waits for one."""
    arrived_at: float = field(default_factory=time.monotonic)
    queue_s: float = 0.0
    """Until it got its row."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_spans: list[tuple[int, int]] = field(default_factory=list)
    outcome: Completion | EngineError | None = None

    def append(self, token_id: int, logprob: float, policy_version: int) -> FinishReason | None:
        """Take one sampled token; returns why it was the last one, or None to go on."""
        if not self.version_spans or self.version_spans[-1][1] != policy_version:
            self.version_spans.append((len(self.token_ids), policy_version))
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_tokens else None

    def hand_over(self) -> None:
        """Give the awaiting task the outcome; on the event loop."""
        if isinstance(self.outcome, Completion) and not self.future.done():
            self.future.set_result(self.outcome)
        elif isinstance(self.outcome, EngineError) and not self.future.done():
            self.future.set_exception(self.outcome)


class BatchScheduler:
    """Admits requests in the order they came, steps them, and says which have ended."""

    def __init__(self, model: LanguageModel, *, num_rows: int, max_tokens: int) -> None:
        self._model = model
        self._rows = PrefixRows(num_rows=num_rows, max_tokens=max_tokens)
        self.waiting: deque[Request] = deque()
        """Any thread may append to it."""
        self.running: list[Request] = []
        self._ended: list[Request] = []
        self.admits = self.steps = self.is_awake = True
        self._policy_version = self._num_generated = self._num_prefilled = self._num_cached = 0

    @property
    def is_busy(self) -> bool:
        """Whether the next tick has something to compute."""
        return self.is_awake and self.steps and bool(self.running or (self.admits and self.waiting))

    def tick(self) -> list[Request]:
        """Do one step if there is work; returns the requests that have ended, each with its outcome."""
        for request in [r for r in (*self.running, *self.waiting) if not r.is_wanted]:
            self._end(request, FinishReason.ABORT)
        if self.is_busy:
            self._admit()
            self._step()
        ended, self._ended = self._ended, []
        return ended

    def weights_changed(self, policy_version: int) -> None:
        """Forget what old weights have computed; running requests go on from their tokens, computed anew."""
        self._policy_version = policy_version
        self._rows.invalidate()

    def drop_cache(self) -> None:
        """Free the KV cache; running requests go on from their tokens, computed anew."""
        self._rows.invalidate()
        self._model.cache.drop()

    def stats(self) -> EngineStats:
        """Count what is there."""
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
        while self.admits and self.waiting and (placement := self._rows.place(self.waiting[0].prompt_ids)):
            request = self.waiting.popleft()
            if placement.row != placement.source:
                self._model.cache.copy_prefix(placement.source, placement.row, placement.num_cached)
            request.row = placement.row
            request.queue_s = time.monotonic() - request.arrived_at
            self.running.append(request)
            self._num_cached += placement.num_cached
            self._num_prefilled += len(request.prompt_ids) - placement.num_cached

    def _step(self) -> None:
        """Extend the running sequences, and sample for those whose last token is computed."""
        by_row = {request.row: request for request in self.running}
        chunks, budget = [], MAX_PREFILL_TOKENS_PER_STEP
        for row in sorted(by_row):
            start, stop = int(self._rows.num_computed[row]), int(self._rows.num_tokens[row])
            if stop - start > 1:
                stop = start + min(stop - start, budget)
                budget -= stop - start
            if start < stop:
                chunks.append(Chunk(row, start, stop))
        chunks.sort(key=lambda chunk: len(chunk) > 1)
        logits = self._model.extend(self._rows.token_ids, chunks)
        for chunk in chunks:
            self._rows.num_computed[chunk.row] = chunk.stop
        whole = [i for i, chunk in enumerate(chunks) if chunk.stop == self._rows.num_tokens[chunk.row]]
        self._sample([by_row[chunks[i].row] for i in whole], logits[whole])

    def _sample(self, requests: list[Request], logits_BV: torch.Tensor) -> None:
        uniforms = [r.uniforms[len(r.token_ids)] if r.uniforms else 0.0 for r in requests]
        token_ids, logprobs = sample(logits_BV, [r.params for r in requests], uniforms)
        for request, token_id, logprob in zip(requests, token_ids, logprobs, strict=True):
            if not np.isfinite(logprob):
                self._fail(request)
                continue
            self._num_generated += 1
            if reason := request.append(token_id, logprob, self._policy_version):
                self._end(request, reason)
            else:
                self._rows.append(request.row, token_id)

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.row < 0:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._rows.release(request.row)
        request.outcome = request.outcome or Completion(
            token_ids=request.token_ids,
            logprobs=request.logprobs,
            finish_reason=reason,
            version_spans=tuple(request.version_spans) or ((0, self._policy_version),),
            queue_s=request.queue_s if request.row >= 0 else time.monotonic() - request.arrived_at,
        )
        self._ended.append(request)

    def _fail(self, request: Request) -> None:
        # What it leaves in the cache would spoil others even where it is masked, as 0 * NaN is NaN.
        self.drop_cache()
        request.outcome = EngineError(
            f"engine: request `{request.request_id}`: the logits after {len(request.token_ids)} sampled tokens hold"
            f" NaN or infinity (policy version {self._policy_version}): the weights are broken"
        )
        self._end(request, FinishReason.ABORT)
