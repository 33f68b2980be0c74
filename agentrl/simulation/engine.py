"""An engine that computes nothing: it takes the time of a real engine, and writes text of the right length.

For capacity planning (`python -m agentrl.runners.simulate`), and for tests with thousands of trajectories. A turn depends only
on its prompt, trajectory and seed, so every schedule plays the same trajectories.
"""

import asyncio
import json
import math
import random
from dataclasses import dataclass
from typing import Literal

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentrl import clock
from agentrl.config.schema.run import ModelSection, RolloutSection, SimulatedEngineSection
from agentrl.engine.base import EngineStats
from agentrl.simulation.batch_model import BatchSimulation, SimulatedRequest
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from agentrl.weight_sync.base import WeightSource

_TOOL_CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
_ANSWER = "<answer>0</answer>"
_FILLER = " and"
_LOGPROB = -0.5
_MAX_PASTS = 65_536
"""Remembered trajectories; many more than run at once."""


@dataclass(slots=True, kw_only=True)
class _Past:
    """State of a trajectory between its turns."""

    opening: str
    """Key of the first turn's prompt."""
    num_opening_tokens: int
    num_computed: int = 0
    """Tokens computed here, still cached or not."""


@dataclass(slots=True, kw_only=True)
class _Pending:
    request: SimulatedRequest
    token_ids: list[int]
    """Token ids of the whole turn."""
    finish_reason: FinishReason
    answer: asyncio.Future[Completion]
    deadline: asyncio.TimerHandle


class SimulatedEngine:
    """An `Engine` on a `BatchSimulation`, on the clock of its event loop."""

    def __init__(self, model: ModelSection, rollout: RolloutSection) -> None:
        """Take the config; `model.path` gives the tokenizer.

        Request ids are `TRAJECTORY-TURN`, as in the agent loop. Tool calls go to the simulated tool, with a random `seed`.
        """
        self._model_path = model.path
        self._section = rollout.simulated
        self._batch = BatchSimulation(rollout.simulated)
        self._pending: dict[str, _Pending] = {}
        self._pasts: dict[str, _Past] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False

    async def start(self) -> None:
        """See `Engine.start`."""
        tokenizer = await asyncio.to_thread(AutoTokenizer.from_pretrained, self._model_path)
        self._writer = _Writer(self._section, tokenizer)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """See `Engine.generate`."""
        loop = asyncio.get_running_loop()
        trajectory, _, number = request_id.rpartition("-")
        past = self._past(trajectory, token_ids)
        turn = self._writer.write(params, opening=past.opening, trajectory=trajectory, number=int(number))
        request = SimulatedRequest(
            request_id=request_id,
            opening=past.opening.encode(),
            num_opening_tokens=past.num_opening_tokens,
            trajectory=trajectory.encode(),
            num_prompt_tokens=len(token_ids),
            num_to_sample=len(turn.token_ids),
            num_once_computed=past.num_computed,
            arrived_at=clock.now(),
        )
        pending = self._pending[request_id] = _Pending(
            request=request,
            token_ids=turn.token_ids,
            finish_reason=turn.finish_reason,
            answer=loop.create_future(),
            deadline=loop.call_later(deadline.remaining_s(), self._end_early, request_id),
        )
        self._add(request)
        try:
            return await pending.answer
        finally:
            past.num_computed = max(request.num_computed, request.num_once_computed)
            pending.deadline.cancel()
            if request_id in self._pending:  # the awaiting task was cancelled
                self._end_early(request_id)

    async def abort(self, request_id: str) -> None:
        """See `Engine.abort`."""
        self._end_early(request_id)

    async def pause(self, mode: Literal["keep", "wait", "abort"]) -> None:
        """See `Engine.pause`."""
        if mode == "wait":
            await asyncio.gather(*(pending.answer for pending in self._pending.values()), return_exceptions=True)
        elif mode == "abort":
            for request_id in list(self._pending):
                self._end_early(request_id)
        self._paused = True
        self._batch.pause(clock.now())
        self._wake_at_next_event()

    async def resume(self) -> None:
        """See `Engine.resume`."""
        self._paused = False
        self._batch.resume(clock.now())
        self._wake_at_next_event()

    async def sleep(self, level: int) -> None:
        """See `Engine.sleep`."""
        await self.pause("keep")

    async def wake(self, tags: tuple[str, ...]) -> None:
        """See `Engine.wake`."""
        await self.resume()

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """See `Engine.load_weights`; only the version is used."""
        self._batch.pause(clock.now())
        self._batch.policy_version = version
        self._batch.forget_all()
        if not self._paused:
            self._batch.resume(clock.now())
        self._wake_at_next_event()

    async def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        counts = self._batch.counts
        return EngineStats(
            num_running=len(self._batch.running),
            num_waiting=len(self._batch.waiting),
            kv_tokens_used=self._batch.used_tokens,
            kv_tokens_capacity=self._section.kv_tokens,
            policy_version=self._batch.policy_version,
            num_generated_tokens=counts.generated,
            num_prefill_tokens=counts.prefilled,
            num_cached_tokens=counts.cached,
            num_preemptions=counts.preemptions,
        )

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens computed again since the start, after a preemption or between turns."""
        return self._batch.counts.recomputed

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        for request_id in list(self._pending):
            self._end_early(request_id)

    def _past(self, trajectory: str, token_ids: list[int]) -> _Past:
        past = self._pasts.get(trajectory)
        if past is None:
            opening = f"{hash(tuple(token_ids))}"
            past = self._pasts[trajectory] = _Past(opening=opening, num_opening_tokens=len(token_ids))
            if len(self._pasts) > _MAX_PASTS:
                del self._pasts[next(iter(self._pasts))]
        return past

    def _add(self, request: SimulatedRequest) -> None:
        if self._paused:
            self._batch.waiting.append(request)
        else:
            self._batch.add(request, clock.now())
            self._wake_at_next_event()

    def _end_early(self, request_id: str) -> None:
        pending = self._pending.get(request_id)
        if pending is None:
            return
        self._batch.remove(pending.request, clock.now())
        self._answer(pending, FinishReason.ABORT)
        if self._paused:
            self._batch.pause(clock.now())
        self._wake_at_next_event()

    def _take_events(self) -> None:
        self._timer = None
        for request in self._batch.advance(clock.now()):
            pending = self._pending[request.request_id]
            self._answer(pending, pending.finish_reason)
        self._wake_at_next_event()

    def _answer(self, pending: _Pending, reason: FinishReason) -> None:
        request = pending.request
        del self._pending[request.request_id]
        if pending.answer.done():
            return
        token_ids = pending.token_ids[: request.num_sampled]
        pending.answer.set_result(
            Completion(
                token_ids=token_ids,
                logprobs=[_LOGPROB] * len(token_ids),
                finish_reason=reason,
                version_spans=tuple(request.version_spans) or ((0, self._batch.policy_version),),
                queue_s=clock.now() - request.arrived_at if request.queue_s is None else request.queue_s,
            )
        )

    def _wake_at_next_event(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at := self._batch.next_event_at) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, at - clock.now()), self._take_events)


@dataclass(frozen=True, slots=True)
class _Turn:
    token_ids: list[int]
    finish_reason: FinishReason


class _Writer:
    """Writes turns: filler of a random length, and a tool call or an answer at the end."""

    def __init__(self, section: SimulatedEngineSection, tokenizer: PreTrainedTokenizerFast) -> None:
        self._section = section
        self._tokenizer = tokenizer
        self._filler = self._encode(_FILLER)[-1]
        self._answer = self._encode(_ANSWER)

    def write(self, params: SamplingParams, *, opening: str, trajectory: str, number: int) -> _Turn:
        section, rng = self._section, random.Random(params.seed)
        num_turns = random.Random(trajectory).randint(section.min_turns, section.max_turns)
        logarithm = random.Random(opening).gauss(math.log(section.turn_tokens_median), section.prompt_sigma)
        length = round(rng.lognormvariate(logarithm, section.turn_tokens_sigma))
        end = self._answer
        if number + 1 < num_turns:
            end = self._encode(_TOOL_CALL % ("simulated_tool", json.dumps({"seed": rng.getrandbits(32)})))
        end = [*end, *params.stop_token_ids[:1]]
        token_ids = [self._filler] * max(0, length - len(end)) + end
        if len(token_ids) > params.max_tokens:
            return _Turn(token_ids[: params.max_tokens], FinishReason.LENGTH)
        return _Turn(token_ids, FinishReason.STOP)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
