"""The `Engine` protocol. Engines are called across processes, so every argument and result is plain data."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

from agentrl.errors import EngineError
from agentrl.types import Completion, Deadline, SamplingParams
from agentrl.weight_sync.base import WeightSource


def check_request(
    token_ids: list[int],
    params: SamplingParams,
    request_id: str,
    open_ids: Container[str],
    *,
    max_tokens: int,
    vocabulary_size: int,
) -> None:
    """Refuse a request that an engine with a context of `max_tokens` (prompt and completion) cannot answer.

    Raises:
        EngineError: the id is in use, the prompt is empty, too long or outside the vocabulary, or there is nothing to sample.
    """
    where = f"engine: request `{request_id}`"
    if request_id in open_ids:
        raise EngineError(f"{where}: the id is in use. Give every turn its own")
    if not 0 < len(token_ids) < max_tokens:
        raise EngineError(
            f"{where}: a prompt of {len(token_ids)} tokens does not fit a context of {max_tokens} with room for an answer. "
            "Raise `data.max_prompt_tokens` or `rollout.max_response_tokens`"
        )
    if min(token_ids) < 0 or max(token_ids) >= vocabulary_size:
        raise EngineError(f"{where}: token ids outside the vocabulary of {vocabulary_size}: is it another tokenizer's?")
    if params.max_tokens < 1:
        raise EngineError(f"{where}: `max_tokens` is {params.max_tokens}: there is nothing to sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of an engine's load."""

    num_running: int
    num_waiting: int
    kv_tokens_used: int
    kv_tokens_capacity: int
    policy_version: int
    num_generated_tokens: int
    """Sampled tokens since the engine started."""
    num_prefill_tokens: int
    """Prompt tokens computed since the engine started."""
    num_cached_tokens: int
    """Prompt tokens found in the cache since the engine started."""
    num_preemptions: int = 0
    """Requests that lost their KV memory to others since the engine started, and are computed again."""
    kv_block_tokens: int = 1
    """Block size of the KV memory; a sequence holds whole blocks."""


class Engine(Protocol):
    """Samples completions for requests that come and go at any time."""

    async def start(self) -> None:
        """Load the model; called once, on the event loop that serves the engine."""

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """Sample one completion of the prompt `token_ids`.

        A request that is aborted, or whose deadline passes, returns the tokens so far, with `finish_reason=abort`.
        Cancelling the awaiting task frees the request's memory.

        Raises:
            EngineError: the engine cannot answer, or the prompt does not fit its context.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request early; unknown ids are ignored, since a request may have just finished."""

    async def sleep(self) -> None:
        """Drop the weights and the cache, to free device memory; requests wait.

        Then come `wake(("weights",))`, `load_weights` and `wake(("kv_cache",))`, in this order.
        """

    async def wake(self, tags: tuple[str, ...]) -> None:
        """Allocate device memory again for `tags` (`weights`, `kv_cache`); see `sleep`."""

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """Replace the weights, drop the prefix cache, and stamp tokens sampled from now on with `version`."""

    async def stats(self) -> EngineStats:
        """Return the current load."""
        ...

    async def aclose(self) -> None:
        """Stop and free all resources."""
