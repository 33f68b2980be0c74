"""OpenAI's completions protocol: the request for one completion, the chunks of its reply, and the checks of both.

The fields beyond OpenAI's own (`return_token_ids`, `stop_token_ids`, `top_k`, ...) are shared by vLLM and SGLang.
"""

from dataclasses import dataclass, field
from typing import Any

from pydantic import AliasPath, BaseModel, Field

from agentrl.errors import EngineError
from agentrl.servers.session import BrokenError
from agentrl.types import Completion, FinishReason, SamplingParams

_LOWEST_LOGPROB = -9999.0
"""vLLM's value for minus infinity; SGLang's is lower."""
_HIGHEST_LOGPROB = 0.01
"""Log-probability of a certain token: 0, with a margin for rounding."""


class ServedModel(BaseModel):
    """A model that a server lists."""

    id: str
    max_model_len: int | None = None
    """Prompt and completion together; None if unknown."""


class ServedModels(BaseModel):
    """The reply of `/models`."""

    data: list[ServedModel]


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: list[float | None] = Field([], validation_alias=AliasPath("logprobs", "token_logprobs"))
    finish_reason: str | None = None


class Chunk(BaseModel):
    """One event of a streamed reply; the last ones have no choice."""

    choices: list[_Choice] = []
    num_cached_tokens: int | None = Field(
        None, validation_alias=AliasPath("usage", "prompt_tokens_details", "cached_tokens")
    )
    """Prompt tokens that the server found in its cache."""
    error: Any = None


def completion_body(prompt: list[int] | str, params: SamplingParams, *, model: str) -> dict[str, Any]:
    """Return the body of a request for one streamed completion of `prompt`."""
    body = {
        "model": model,
        "prompt": prompt,
        "add_special_tokens": False,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "seed": params.seed,
        # Explicit, since servers fill gaps from the model's `generation_config.json`, such as Qwen3's top-k of 20.
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(params.stop_token_ids),
        # Stop strings are matched in text with special tokens, which servers drop by default.
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "logprobs": 1,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if params.stop:  # with one field of vLLM and one of SGLang that keep the stop string in the text
        body |= {"stop": list(params.stop), "include_stop_str_in_output": True, "no_stop_trim": True}
    return body


@dataclass(slots=True, kw_only=True)
class Sampled:
    """The received part of one completion; `where` begins the messages of its errors."""

    where: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_token_ids: list[int] | None = None
    num_cached_tokens: int = 0

    def add(self, chunk: Chunk) -> None:
        """Add the next part; BrokenError if the server aborted it, EngineError if it holds no token ids."""
        self.num_cached_tokens = chunk.num_cached_tokens or self.num_cached_tokens
        for choice in chunk.choices:
            if choice.token_ids is None:
                raise EngineError(
                    f"{self.where}: the reply holds text, but no `token_ids`, which text cannot replace. Serve the model with "
                    "vLLM 0.10.2 or later, or with SGLang 0.5.23 or later"
                )
            self.token_ids += choice.token_ids
            self.logprobs += choice.logprobs
            self.prompt_token_ids = choice.prompt_token_ids or self.prompt_token_ids
            if choice.finish_reason == "abort":
                raise BrokenError(f"{self.where}: the server aborted it after {len(self.token_ids)} tokens")
            if choice.finish_reason not in (None, "stop", "length"):
                raise EngineError(f"{self.where}: unknown finish reason `{choice.finish_reason}`")
            self.finish_reason = FinishReason(choice.finish_reason) if choice.finish_reason else self.finish_reason

    def completion(self, *, max_tokens: int, vocabulary_size: int) -> Completion:
        """Return the received part, with `finish_reason=abort` if the reply is not complete.

        Raises:
            EngineError: a token or its log-probability is missing or impossible.
        """
        ids, logprobs, where = self.token_ids, self.logprobs, self.where
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
        valid = [value for value in logprobs if value is not None and _LOWEST_LOGPROB < value < _HIGHEST_LOGPROB]
        if len(valid) != len(logprobs):
            wrong = next(value for value in logprobs if value not in valid)
            raise EngineError(
                f"{where}: the log-probability of a sampled token is {wrong}, so the model is broken. Check its weights and "
                "data type on the server"
            )
        return Completion(
            token_ids=ids,
            logprobs=valid,
            finish_reason=self.finish_reason or FinishReason.ABORT,
            version_spans=((0, 0),),  # its weights never change
        )
