"""A scripted engine: what the policy "samples" is written down by the test."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.engine.base import EngineStats
from agentrl.errors import EngineError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from agentrl.weight_sync.base import WeightSource

Reply = Sequence[int] | Completion | EngineError
Script = Sequence[Reply] | Mapping[tuple[int, ...], Reply] | Callable[[list[int], SamplingParams], Reply]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """Arguments of one call of `generate`."""

    token_ids: list[int]
    params: SamplingParams
    request_id: str


def idle_stats(*, kv_tokens: int = 0) -> EngineStats:
    """Return what an engine says that has done nothing yet; `kv_tokens` is its memory, 0 where it has no bound of its own."""
    return EngineStats(
        num_running=0,
        num_waiting=0,
        kv_tokens_used=0,
        kv_tokens_capacity=kv_tokens,
        policy_version=0,
        num_generated_tokens=0,
        num_prefill_tokens=0,
        num_cached_tokens=0,
    )


class ScriptedEngine:
    """An `Engine` that answers from a script.

    The script is a list (answers in the order of the calls), a dict keyed by the prompt's token ids, or a function.
    A reply of token ids gets the log-probability `logprob` for each, is cut at `max_tokens` (then it finishes by
    length), and stops otherwise; a `Completion` is passed on unchanged; an `EngineError` is raised.
    `cut` are the tokens that an aborted request has sampled. `calls` records every request, `aborted` every abort.
    """

    def __init__(self, script: Script, *, delay_s: float = 0.0, logprob: float = -0.5, cut: Sequence[int] = ()) -> None:
        self._script = script
        self._delay_s = delay_s
        self._logprob = logprob
        self._cut = list(cut)
        self._running: dict[str, asyncio.Event] = {}
        self._awake = asyncio.Event()
        self._awake.set()
        self.calls: list[EngineCall] = []
        self.aborted: list[str] = []
        self.policy_version = 0
        self.num_generated_tokens = 0

    async def start(self) -> None: ...

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        index = len(self.calls)
        self.calls.append(EngineCall(token_ids=list(token_ids), params=params, request_id=request_id))
        if not await self._delay(request_id, deadline):
            self.num_generated_tokens += len(self._cut)
            return self._completion(self._cut, FinishReason.ABORT)
        reply = self._reply(index, token_ids, params)
        if isinstance(reply, EngineError):
            raise reply
        if isinstance(reply, Completion):
            return reply
        ids = list(reply)[: params.max_tokens]
        self.num_generated_tokens += len(ids)
        return self._completion(ids, FinishReason.STOP if len(ids) == len(reply) else FinishReason.LENGTH)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if aborted := self._running.get(request_id):
            aborted.set()

    async def sleep(self) -> None:
        self._awake.clear()

    async def wake(self, tags: tuple[str, ...]) -> None:
        self._awake.set()

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        self.policy_version = version

    async def stats(self) -> EngineStats:
        return replace(
            idle_stats(),
            num_running=len(self._running),
            policy_version=self.policy_version,
            num_generated_tokens=self.num_generated_tokens,
            num_prefill_tokens=sum(len(call.token_ids) for call in self.calls),
        )

    async def aclose(self) -> None: ...

    async def _delay(self, request_id: str, deadline: Deadline) -> bool:
        """Wait the scripted time; False when the request was aborted or its deadline passed before it was over."""
        aborted = self._running[request_id] = asyncio.Event()
        waits = [asyncio.create_task(self._think()), asyncio.create_task(aborted.wait())]
        try:
            done, _ = await asyncio.wait(waits, timeout=deadline.remaining_s(), return_when=asyncio.FIRST_COMPLETED)
            return waits[0] in done and not aborted.is_set()
        finally:
            for wait in waits:
                wait.cancel()
            del self._running[request_id]

    async def _think(self) -> None:
        await self._awake.wait()
        await asyncio.sleep(self._delay_s)

    def _reply(self, index: int, token_ids: list[int], params: SamplingParams) -> Reply:
        if callable(self._script):
            return self._script(token_ids, params)
        if isinstance(self._script, Mapping):
            return self._script[tuple(token_ids)]
        assert index < len(self._script), f"the script has {len(self._script)} replies, and this is call {index + 1}"
        return self._script[index]

    def _completion(self, ids: list[int], reason: FinishReason) -> Completion:
        return Completion(
            token_ids=ids,
            logprobs=[self._logprob] * len(ids),
            finish_reason=reason,
            version_spans=((0, self.policy_version),),
        )
