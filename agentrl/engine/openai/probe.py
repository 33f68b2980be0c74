"""Examination of a server by two short completions, because servers differ and their documentation ages.

vLLM (0.10.2 and later) and SGLang (0.5.23) give token ids on `/v1/completions`; OpenAI's own service, llama.cpp's server and
others give text alone, which cannot be turned back into the ids that were sampled.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.config.schema.run import OpenAIEngineSection, RolloutSection
from agentrl.engine.openai.protocol import BrokenError, OpenAIWire, ServedModel, completion_body
from agentrl.engine.openai.reply import Sampled, read_completion
from agentrl.engine.openai.servers import Server
from agentrl.errors import EngineError
from agentrl.types import Completion, FinishReason, SamplingParams

logger = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
"""Limit of the whole examination; a full server answers late."""
_TEXT = "Question: what is 12 + 30? Answer:"
_SAME_LOGPROB = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Examines servers.

    `max_tokens` is the context that a trajectory needs, `encode` the policy's tokenizer without special tokens,
    `vocabulary_size` its number of token ids.
    """

    wire: OpenAIWire
    rollout: RolloutSection
    max_tokens: int
    encode: Callable[[str], list[int]]
    vocabulary_size: int
    _warned: set[str] = field(default_factory=set, init=False)

    async def __call__(self, server: Server) -> None:
        """Examine `server` and fill in its model.

        Raises:
            NotAnsweredError: it does not work now.
            EngineError: it is unsuitable: it returns no token ids or log-probabilities, has another tokenizer, drops the stop
                token, or refuses this client.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                model = _choose(await self.wire.models(server.base_url), self.rollout.openai, server.base_url)
                server.model, server.max_tokens = model.name, model.max_tokens
                await self._examine(server)
        except TimeoutError as error:
            raise BrokenError(
                f"{server.base_url}: no answer to a completion of two tokens in {_TIMEOUT_S:g} s"
            ) from error

    async def _examine(self, server: Server) -> None:
        where = f"engine {server.base_url}"
        prompt, sampled = self.encode(_TEXT), Sampled()
        first = await self._complete(server, _TEXT, SamplingParams(max_tokens=1, temperature=0.0), sampled)
        theirs = sampled.prompt_token_ids
        # The server may add a special token (BOS) to text; prompts of token ids contain it already.
        if theirs is not None and theirs[-len(prompt) :] != prompt:
            raise EngineError(
                f"{where}: `{server.model}` turns a text into other token ids than the tokenizer in `model.path`: {theirs} and "
                f"{prompt}. Set `model.path` to the folder or hub name of the served model"
            )
        token = first.token_ids[0]
        # A flat distribution cut to its top token: its log-probability shows whether the server applies the truncation first.
        forced = SamplingParams(max_tokens=2, temperature=2.0, top_k=1, stop_token_ids=(token,))
        second = await self._complete(server, theirs or prompt, forced, Sampled())
        if second.finish_reason is not FinishReason.STOP or second.token_ids != [token]:
            raise EngineError(
                f"{where}: asked to stop at token {token}, the server returned {second.token_ids} with finish reason "
                f"`{second.finish_reason}`. It must obey `stop_token_ids` and return the stop token, as vLLM does"
            )
        self._check_logprobs(server, raw=first.logprobs[0], forced=second.logprobs[0])
        self._check_context(server)

    async def _complete(
        self, server: Server, prompt: list[int] | str, params: SamplingParams, sampled: Sampled
    ) -> Completion:
        where = f"engine {server.base_url}"
        body = completion_body(prompt, params, model=server.model) | {"add_special_tokens": False}
        await read_completion(self.wire.complete(server.base_url, body), sampled, where=where)
        completion = sampled.completion(max_tokens=params.max_tokens, vocabulary_size=self.vocabulary_size, where=where)
        if not completion.token_ids:
            raise EngineError(f"{where}: a completion has no token")
        return completion

    def _check_logprobs(self, server: Server, *, raw: float, forced: float) -> None:
        rollout = self.rollout
        changed = rollout.temperature not in (0.0, 1.0) or rollout.top_p < 1 or rollout.top_k > 0
        if changed and raw < -_SAME_LOGPROB and abs(forced - raw) < _SAME_LOGPROB:
            self._warn(
                f"engine: {server.base_url} reports, and agentrl records, log-probabilities before temperature and truncation; "
                "start vLLM with `--logprobs-mode processed_logprobs` to get those of the sampled distribution"
            )

    def _check_context(self, server: Server) -> None:
        if server.max_tokens is not None and server.max_tokens < self.max_tokens:
            self._warn(
                f"engine: {server.base_url} has a context of {server.max_tokens} tokens; trajectories are cut to it, not to "
                f"{self.max_tokens} (`data.max_prompt_tokens` and `rollout.max_response_tokens`)"
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:  # a server is examined again whenever it comes back
            self._warned.add(message)
            logger.warning("%s", message)


def _choose(models: list[ServedModel], section: OpenAIEngineSection, base_url: str) -> ServedModel:
    named = [model for model in models if section.model in (None, model.name)]
    if len(named) != 1:
        listed = ", ".join(f"`{model.name}`" for model in models) or "none"
        wanted = "it must list one" if section.model is None else f"`rollout.openai.model` is `{section.model}`"
        raise EngineError(
            f"engine {base_url}: {wanted}, and it lists {listed}. Set `rollout.openai.model` to one of them"
        )
    return named[0]
