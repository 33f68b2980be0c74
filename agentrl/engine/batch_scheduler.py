"""Continuous batching: which requests run, and what the next forward pass computes for them.

Everything here runs on the compute thread. A step extends every running sequence at once: one token for those that
decode, a chunk of the prompt for those that have just come.
"""

import time
from collections import deque
from concurrent.futures import Future
from enum import StrEnum
from itertools import chain

import numpy as np
import torch

from agentrl.engine.base import EngineStats
from agentrl.engine.kv_cache import Chunk
from agentrl.engine.language_model import LanguageModel
from agentrl.engine.prefix_rows import PrefixRows
from agentrl.engine.request import Request
from agentrl.engine.sampling import sample
from agentrl.errors import EngineError
from agentrl.types import FinishReason

MAX_PREFILL_TOKENS_PER_STEP = 2048
"""Longer prompts are computed in several steps, so that they hold up the running sequences only so long."""


class Phase(StrEnum):
    """What `pause` and `resume` switch between."""

    RUNNING = "running"
    DRAINING = "draining"
    """Running requests finish, waiting ones wait."""
    FROZEN = "frozen"


class BatchScheduler:
    """Admits requests in the order they came, steps them, and hands over their completions."""

    def __init__(self, model: LanguageModel, *, num_rows: int, max_tokens: int) -> None:
        self._model = model
        self._rows = PrefixRows(num_rows=num_rows, max_tokens=max_tokens)
        self._max_tokens = max_tokens
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._drain_waiters: list[Future[None]] = []
        self.phase = Phase.RUNNING
        self.policy_version = 0
        self._num_generated = self._num_prefilled = self._num_cached = 0

    def submit(self, request: Request) -> None:
        """Queue a request."""
        if any(r.request_id == request.request_id for r in chain(self._waiting, self._running)):
            raise EngineError(f"engine: request id `{request.request_id}` is in use: give every turn its own")
        self._waiting.append(request)

    def tick(self) -> float | None:
        """Do one step if there is work; see `compute_thread.Work`."""
        now = time.monotonic()
        for request in [r for r in chain(self._running, self._waiting) if r.is_abandoned(now)]:
            self._end(request, FinishReason.ABORT)
        if self._model.is_awake and self.phase is Phase.RUNNING:
            self._admit()
        if self._model.is_awake and self.phase is not Phase.FROZEN and self._running:
            self._step()
            return 0.0
        if self.phase is Phase.DRAINING and not self._running:
            self._set_phase(Phase.FROZEN)
        expiries = [r.expires_at for r in chain(self._running, self._waiting)]
        return max(0.0, min(expiries) - now) if expiries else None

    def abort(self, request_id: str | None) -> None:
        """End one request, or all of them, with what is sampled so far."""
        for request in [*self._running, *self._waiting]:
            if request_id in (request.request_id, None):
                self._end(request, FinishReason.ABORT)

    def freeze(self) -> None:
        """Stop before the next step."""
        self._set_phase(Phase.FROZEN)

    def drain(self, drained: Future[None]) -> None:
        """Let the running requests finish, admit no others; `drained` is resolved then, or by `resume`."""
        self.phase = Phase.DRAINING
        self._drain_waiters.append(drained)

    def resume(self) -> None:
        """Go on."""
        self._set_phase(Phase.RUNNING)

    def weights_changed(self, version: int) -> None:
        """Forget what old weights have computed, except for the sequences that have begun to be sampled.

        Those keep their keys and values, as in vLLM: recomputing them would cost a prefill each per update, and the
        importance correction takes the difference into account. A later turn of theirs starts from a clean prefill.
        """
        self.policy_version = version
        self._rows.invalidate()
        for request in self._running:
            if not request.token_ids:
                self._rows.restart(request.row)

    def cache_dropped(self) -> None:
        """Forget every prefix, before the cache's memory goes.

        Raises:
            EngineError: a request runs.
        """
        if self._running:
            raise EngineError(f"engine: cannot sleep with {len(self._running)} running requests: `pause('wait')` first")
        self._rows.invalidate()

    def stats(self) -> EngineStats:
        """Count what is there."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_tokens_used=int(self._rows.num_computed[self._rows.running].sum()),
            kv_tokens_capacity=self._rows.token_ids.size,
            policy_version=self.policy_version,
            num_generated_tokens=self._num_generated,
            num_prefill_tokens=self._num_prefilled,
            num_cached_tokens=self._num_cached,
        )

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        for waiter in self._drain_waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(None)
        self._drain_waiters.clear()

    def _admit(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            placement = self._rows.place(request.prompt_ids)
            if placement is None:
                break
            self._waiting.popleft()
            if placement.num_cached and placement.row != placement.source:
                self._model.cache.copy_prefix(placement.source, placement.row, placement.num_cached)
            self._rows.occupy(placement, request.prompt_ids)
            request.row = placement.row
            self._running.append(request)
            self._num_cached += placement.num_cached
            self._num_prefilled += len(request.prompt_ids) - placement.num_cached

    def _compact(self) -> None:
        """Move running rows down until at most a fifth of those that attend together are holes."""
        limit = len(self._running) * 5 // 4 + 2
        high = [r for r in self._running if r.row >= limit]
        for request, hole in zip(high, np.flatnonzero(~self._rows.running[:limit]).tolist(), strict=False):
            num_tokens = int(max(self._rows.num_computed[[request.row, hole]]))
            self._model.cache.swap(request.row, hole, num_tokens)
            self._rows.swap(request.row, hole)
            request.row = hole

    def _step(self) -> None:
        self._compact()
        rows = self._rows
        missing = (rows.num_tokens - rows.num_computed).tolist()
        self._running.sort(key=lambda request: request.row)
        sampled = [r for r in self._running if missing[r.row] == 1]
        single_rows = [r.row for r in sampled]
        chunks, budget = [], MAX_PREFILL_TOKENS_PER_STEP
        for request in self._running:
            if missing[request.row] > 1 and budget:
                start = int(rows.num_computed[request.row])
                stop = start + min(missing[request.row], budget)
                budget -= stop - start
                chunks.append(Chunk(row=request.row, start=start, stop=stop))
                if stop == rows.num_tokens[request.row]:
                    sampled.append(request)
        logits = self._model.extend(rows.token_ids, single_rows, rows.num_tokens[single_rows].tolist(), chunks)
        rows.num_computed[single_rows] += 1
        for chunk in chunks:
            rows.num_computed[chunk.row] = chunk.stop
        # Only the last chunk can be cut short by the budget, and then its logits are the last row.
        self._sample(sampled, logits[: len(sampled)])

    def _sample(self, requests: list[Request], logits_BV: torch.Tensor) -> None:
        if not requests:
            return
        uniforms = [r.uniforms[len(r.token_ids)] if r.uniforms else 0.0 for r in requests]
        token_ids, logprobs = sample(logits_BV, [r.params for r in requests], uniforms)
        for request, token_id, logprob in zip(requests, token_ids, logprobs, strict=True):
            if not np.isfinite(logprob):
                self._fail(request)
                continue
            request.append(token_id, logprob, self.policy_version)
            self._num_generated += 1
            if reason := request.finish_reason:
                self._end(request, reason)
            else:
                self._rows.append(request.row, token_id)

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.row < 0:
            self._waiting.remove(request)
        else:
            self._running.remove(request)
            self._rows.release(request.row)
        request.complete(reason, self.policy_version)

    def _fail(self, request: Request) -> None:
        self._running.remove(request)
        self._rows.free(request.row)
        self._model.cache.clear_row(request.row)
        request.fail(
            EngineError(
                f"engine: request `{request.request_id}`: the logits after {len(request.token_ids)} sampled tokens hold"
                f" NaN or infinity (policy version {self.policy_version}): the weights are broken"
            )
        )
