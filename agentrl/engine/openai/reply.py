"""Builds a `Completion` from the chunks of a reply, and refuses an invalid reply."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from agentrl.engine.openai.protocol import BrokenError, Chunk
from agentrl.errors import EngineError
from agentrl.types import Completion, FinishReason

_LOWEST_LOGPROB = -9999.0
"""vLLM's value for minus infinity; SGLang's is lower."""

_HIGHEST_LOGPROB = 0.01
"""Log-probability of a certain token: 0, with a margin for rounding."""

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(slots=True, kw_only=True)
class Sampled:
    """The received part of one completion."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_token_ids: list[int] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that the server found in its cache."""
    failure: str = ""
    """Reason of the last failure, or of a suspected one."""

    def forget(self) -> None:
        """Reset for another try."""
        self.token_ids, self.logprobs, self.finish_reason, self.num_cached_tokens = [], [], None, 0

    def completion(self, *, max_tokens: int, vocabulary_size: int, where: str) -> Completion:
        """Return the received part, with `finish_reason=abort` if the reply is not complete.

        Raises:
            EngineError: a log-probability is missing or impossible, a token is not in the model's vocabulary, or there are too
                many tokens.
        """
        ids, logprobs = self.token_ids, self.logprobs
        if self.finish_reason is None:  # it may have ended between a token and its log-probability
            count = min(len(ids), len(logprobs))
            ids, logprobs = ids[:count], logprobs[:count]
        if len(logprobs) != len(ids):
            raise EngineError(
                f"{where}: {len(ids)} tokens came with {len(logprobs)} log-probabilities. The server must return one for each "
                "sampled token (`logprobs`)"
            )
        if len(ids) > max_tokens:
            raise EngineError(f"{where}: {len(ids)} tokens came, more than `max_tokens` ({max_tokens})")
        impossible = next((token for token in ids if not 0 <= token < vocabulary_size), None)
        if impossible is not None:
            raise EngineError(
                f"{where}: token id {impossible:.6g} is not in the vocabulary of `model.path` ({vocabulary_size} ids). Set "
                "`model.path` to the folder or hub name of the served model"
            )
        for value in logprobs:
            if value is None or not _LOWEST_LOGPROB < value < _HIGHEST_LOGPROB:
                raise EngineError(
                    f"{where}: the log-probability of a sampled token is {value}, so the model is broken. Check its weights "
                    "and data type on the server"
                )
        return Completion(
            token_ids=ids,
            logprobs=[value for value in logprobs if value is not None],
            finish_reason=self.finish_reason or FinishReason.ABORT,
            version_spans=((0, 0),),  # its weights never change
        )


async def read_completion(chunks: AsyncGenerator[Chunk, None], sampled: Sampled, *, where: str) -> None:
    """Add the chunks to `sampled` as they come, until the reply is complete.

    If this ends early, `sampled` keeps the part so far, and the connection is closed.

    Raises:
        NotAnsweredError: the reply ended before its last token, or the server aborted it.
        EngineError: it holds no token ids, or an unknown finish reason.
    """
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                _add(chunk, sampled, where)
    except BrokenError:
        if sampled.finish_reason is None:
            raise  # else only the end of the stream is missing
    if sampled.finish_reason is None:
        raise BrokenError(f"{where}: the reply ended early, after {len(sampled.token_ids)} tokens")


def _add(chunk: Chunk, sampled: Sampled, where: str) -> None:
    if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
        sampled.num_cached_tokens = max(0, chunk.usage.prompt_tokens_details.cached_tokens or 0)
    for choice in chunk.choices:
        if choice.token_ids is None:
            raise EngineError(
                f"{where}: the reply holds text, but no `token_ids`, which text cannot replace. Serve the model with vLLM "
                "0.10.2 or later, or with SGLang 0.5.23 or later"
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
