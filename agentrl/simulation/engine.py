"""An engine that computes nothing: it takes the time of a real engine, and writes text of the right length.

For capacity planning (`python -m agentrl.runners.simulate`), and for tests with thousands of trajectories. A turn depends only
on its prompt, trajectory and seed, so every schedule plays the same trajectories.
"""

import asyncio
import json
import math
import random
from dataclasses import dataclass

from agentrl import clock
from agentrl.config.schema.run import ModelSection
from agentrl.config.schema.simulation import SimulatedEngineSection
from agentrl.engine.base import EngineStats
from agentrl.models.tokenizer import load_tokenizer
from agentrl.simulation.batch_model import BatchCounts, BatchSimulation, SimulatedRequest
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from agentrl.weight_sync.base import WeightSource

_TOOL_CALL = '<tool_call>\n{"name": "simulated_tool", "arguments": %s}\n</tool_call>'
_ANSWER = "<answer>0</answer>"
_FILLER = " and"
_LOGPROB = -0.5


@dataclass(slots=True, kw_only=True)
class _Past:
    """State of a trajectory between its turns."""

    opening: str
    """Key of the first turn's prompt."""
    num_opening_tokens: int
    num_computed: int = 0
    """Tokens computed here, still cached or not."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Turn(SimulatedRequest):
    """A request with its text, and the future of its caller."""

    token_ids: list[int]
    finish_reason: FinishReason
    answer: asyncio.Future[Completion]


class SimulatedEngine:
    """An `Engine` on a `BatchSimulation`, on the clock of its event loop."""

    def __init__(self, model: ModelSection, section: SimulatedEngineSection) -> None:
        """Take the config; `model.path` gives the tokenizer.

        Request ids are `TRAJECTORY-TURN`, as in the agent loop. Tool calls go to the simulated tool, with a random `seed`.
        """
        self._model_path = model.path
        self._section = section
        self._batch = BatchSimulation(section)
        self._turns: dict[str, _Turn] = {}
        self._pasts: dict[str, _Past] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """See `Engine.start`."""
        # Not in a thread: several engines of a process would import transformers at once, which fails.
        self._tokenizer = load_tokenizer(self._model_path)
        self._filler, self._answer = self._encode(_FILLER)[-1], self._encode(_ANSWER)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """See `Engine.generate`."""
        loop = asyncio.get_running_loop()
        trajectory, _, number = request_id.rpartition("-")
        past = self._past(trajectory, token_ids)
        text_ids = self._write(params, opening=past.opening, trajectory=trajectory, number=int(number))
        turn = self._turns[request_id] = _Turn(
            request_id=request_id,
            opening=past.opening,
            num_opening_tokens=past.num_opening_tokens,
            trajectory=trajectory,
            num_prompt_tokens=len(token_ids),
            num_to_sample=min(len(text_ids), params.max_tokens),
            num_once_computed=past.num_computed,
            arrived_at=clock.now(),
            token_ids=text_ids,
            finish_reason=FinishReason.LENGTH if len(text_ids) > params.max_tokens else FinishReason.STOP,
            answer=loop.create_future(),
        )
        timer = loop.call_later(deadline.remaining_s(), self._end_early, request_id)
        self._batch.add(turn, clock.now())
        self._wake_at_next_event()
        try:
            return await turn.answer
        finally:
            past.num_computed = max(turn.num_computed, turn.num_once_computed)
            timer.cancel()
            self._end_early(request_id)  # the awaiting task may have been cancelled

    async def abort(self, request_id: str) -> None:
        """See `Engine.abort`."""
        self._end_early(request_id)

    async def sleep(self) -> None:
        """See `Engine.sleep`; nothing to free."""

    async def wake(self, tags: tuple[str, ...]) -> None:
        """See `Engine.wake`."""

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """See `Engine.load_weights`; only the version is used."""
        self._batch.renew_weights(clock.now(), version=version)
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
    def counts(self) -> BatchCounts:
        """Counts since the start."""
        return self._batch.counts

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        for request_id in list(self._turns):
            self._end_early(request_id)

    def _past(self, trajectory: str, token_ids: list[int]) -> _Past:
        past = self._pasts.get(trajectory)
        if past is None:
            opening = f"{hash(tuple(token_ids))}"
            past = self._pasts[trajectory] = _Past(opening=opening, num_opening_tokens=len(token_ids))
        return past

    def _end_early(self, request_id: str) -> None:
        if turn := self._turns.get(request_id):
            self._batch.remove(turn, clock.now())
            self._end(turn, FinishReason.ABORT)
            self._wake_at_next_event()

    def _take_events(self) -> None:
        self._timer = None
        for request in self._batch.advance(clock.now()):
            turn = self._turns[request.request_id]
            self._end(turn, turn.finish_reason)
        self._wake_at_next_event()

    def _end(self, turn: _Turn, reason: FinishReason) -> None:
        del self._turns[turn.request_id]
        if turn.answer.done():
            return  # its caller was cancelled
        completion = Completion(
            token_ids=turn.token_ids[: turn.num_sampled],
            logprobs=[_LOGPROB] * turn.num_sampled,
            finish_reason=reason,
            version_spans=tuple(turn.version_spans) or ((0, self._batch.policy_version),),
            queue_s=clock.now() - turn.arrived_at if turn.queue_s is None else turn.queue_s,
        )
        turn.answer.set_result(completion)

    def _wake_at_next_event(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at := self._batch.next_event_at) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, at - clock.now()), self._take_events)

    def _write(self, params: SamplingParams, *, opening: str, trajectory: str, number: int) -> list[int]:
        """Return the token ids of a turn: filler of a random length, and a tool call or an answer at the end."""
        section, rng = self._section, random.Random(params.seed)
        num_turns = random.Random(trajectory).randint(section.min_turns, section.max_turns)
        logarithm = random.Random(opening).gauss(math.log(section.turn_tokens_median), section.prompt_sigma)
        length = round(rng.lognormvariate(logarithm, section.turn_tokens_sigma))
        end = self._answer
        if number + 1 < num_turns:
            end = self._encode(_TOOL_CALL % json.dumps({"seed": rng.getrandbits(32)}))
        end = [*end, *params.stop_token_ids[:1]]
        return [self._filler] * max(0, length - len(end)) + end

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
