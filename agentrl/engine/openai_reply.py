"""From the chunks of a reply to a completion that may be recorded, or a clear no."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from agentrl.engine.openai_wire import BrokenError, Chunk
from agentrl.errors import EngineError
from agentrl.types import Completion, FinishReason

_LOWEST_LOGPROB = -9999.0
"""vLLM writes minus infinity as this number, SGLang as a lower one."""

_HIGHEST_LOGPROB = 0.01
"""Log-probability of a token that is certain: 0, and the rounding of a server."""

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(slots=True, kw_only=True)
class Sampled:
    """What has come of one completion so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_token_ids: list[int] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that the server says it found in its cache."""
    failure: str = ""
    """Why an earlier try gave nothing, or why this one seems to give nothing."""

    def forget(self) -> None:
        """Start again, for another try."""
        self.token_ids, self.logprobs, self.finish_reason, self.num_cached_tokens = [], [], None, 0

    def completion(self, *, max_tokens: int, vocabulary_size: int, where: str) -> Completion:
        """Return what has come, with `finish_reason=abort` where the reply is not complete.

        Raises:
            EngineError: there is not one log-probability for each token, one is impossible, a token is none of the model's
                vocabulary, or there are too many tokens.
        """
        ids, logprobs = self.token_ids, self.logprobs
        if self.finish_reason is None:  # cut between a token and its log-probability, if they come apart
            count = min(len(ids), len(logprobs))
            ids, logprobs = ids[:count], logprobs[:count]
        if len(logprobs) != len(ids):
            raise EngineError(
                f"{where}: {len(ids)} tokens came with {len(logprobs)} log-probabilities. The server must give one for each "
                "token that it samples (`logprobs`)"
            )
        if len(ids) > max_tokens:
            raise EngineError(f"{where}: {len(ids)} tokens came, and `max_tokens` was {max_tokens}")
        impossible = next((token for token in ids if not 0 <= token < vocabulary_size), None)
        if impossible is not None:
            raise EngineError(
                f"{where}: token id {impossible:.6g} came, and the vocabulary of `model.path` has {vocabulary_size}. Name the "
                "folder or hub name of the model that is served there"
            )
        for value in logprobs:
            if value is None or not _LOWEST_LOGPROB < value < _HIGHEST_LOGPROB:
                raise EngineError(
                    f"{where}: the log-probability of a sampled token is {value}. A model that gives such numbers is broken: "
                    "look at its weights and type on the server"
                )
        return Completion(
            token_ids=ids,
            logprobs=[value for value in logprobs if value is not None],
            finish_reason=self.finish_reason or FinishReason.ABORT,
            version_spans=((0, 0),),  # its weights never change
        )


async def read_completion(chunks: AsyncGenerator[Chunk, None], sampled: Sampled, *, where: str) -> None:
    """Add the chunks to `sampled` as they come, until the reply is complete.

    Whatever ends this early leaves in `sampled` what had come by then, and closes the connection.

    Raises:
        NotAnsweredError: the reply ended before its last token, or the server aborted it.
        EngineError: it holds no token ids, or ends for a reason of its own.
    """
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                _add(chunk, sampled, where)
    except BrokenError:
        if sampled.finish_reason is None:
            raise  # else only the closing words are missing
    if sampled.finish_reason is None:
        raise BrokenError(f"{where}: the reply ended early, after {len(sampled.token_ids)} tokens")


def _add(chunk: Chunk, sampled: Sampled, where: str) -> None:
    if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
        sampled.num_cached_tokens = max(0, chunk.usage.prompt_tokens_details.cached_tokens or 0)
    for choice in chunk.choices:
        if choice.token_ids is None:
            raise EngineError(
                f"{where}: the reply holds text, but no `token_ids`, and text cannot be turned back into the tokens that were "
                "sampled. Serve the model with vLLM 0.10.2 or later, or with SGLang 0.5.23 or later"
            )
        sampled.token_ids += choice.token_ids
        sampled.logprobs += choice.logprobs.token_logprobs if choice.logprobs is not None else []
        sampled.prompt_token_ids = choice.prompt_token_ids or sampled.prompt_token_ids
        if choice.finish_reason == "abort":
            raise BrokenError(f"{where}: the server aborted the completion after {len(sampled.token_ids)} tokens")
        if choice.finish_reason is not None:
            reason = _FINISH_REASONS.get(choice.finish_reason)
            if reason is None:
                raise EngineError(f"{where}: unknown finish reason `{choice.finish_reason}`")
            sampled.finish_reason = reason
