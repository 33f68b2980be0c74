"""Whether a server can be an engine here: found by two short completions, because servers differ and documents age.

vLLM (0.10.2 and later) and SGLang (0.5.23) give token ids on `/v1/completions`; OpenAI's own service, llama.cpp's server and
others give text alone, which cannot be turned back into the ids that were sampled.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.config.schema import OpenAIEngineSection, RolloutSection
from agentrl.engine.openai_reply import Sampled, read_completion
from agentrl.engine.openai_servers import Server
from agentrl.engine.openai_wire import BrokenError, OpenAIWire, ServedModel, completion_body
from agentrl.errors import EngineError
from agentrl.types import Completion, FinishReason, SamplingParams

logger = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
"""Of the whole examination: a server that is full answers late."""
_TEXT = "Question: what is 12 + 30? Answer:"
_SAME_LOGPROB = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Examines servers.

    `max_tokens` is the context that a trajectory needs, `encode` the policy's own tokenizer, without special tokens,
    `vocabulary_size` the number of its token ids.
    """

    wire: OpenAIWire
    rollout: RolloutSection
    max_tokens: int
    encode: Callable[[str], list[int]]
    vocabulary_size: int
    _warned: set[str] = field(default_factory=set, init=False)

    async def __call__(self, server: Server) -> None:
        """Fill in the model of `server`.

        Raises:
            NotAnsweredError: it does not work now.
            EngineError: it will not do: it gives no token ids or log-probabilities, has another tokenizer, cuts the stop
                token off, or refuses this client. The message names the way out.
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
        # Theirs may start with a special token (BOS), which prompts of token ids bring along themselves.
        if theirs is not None and theirs[-len(prompt) :] != prompt:
            raise EngineError(
                f"{where}: `{server.model}` turns a text into other token ids than the tokenizer in `model.path`: {theirs} and "
                f"{prompt}. Name the folder or hub name of the model that is served there"
            )
        token = first.token_ids[0]
        # A flat distribution of which only the top is kept: its log-probability tells what the server's numbers mean.
        forced = SamplingParams(max_tokens=2, temperature=2.0, top_k=1, stop_token_ids=(token,))
        second = await self._complete(server, theirs or prompt, forced, Sampled())
        if second.finish_reason is not FinishReason.STOP or second.token_ids != [token]:
            raise EngineError(
                f"{where}: asked to stop at token {token} and to give it, the server gives {second.token_ids} and finish "
                f"reason `{second.finish_reason}`. It must keep `stop_token_ids`, and return the stop token, as vLLM does"
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
            raise EngineError(f"{where}: a completion came back without any token")
        return completion

    def _check_logprobs(self, server: Server, *, raw: float, forced: float) -> None:
        rollout = self.rollout
        changed = rollout.temperature not in (0.0, 1.0) or rollout.top_p < 1 or rollout.top_k > 0
        if changed and raw < -_SAME_LOGPROB and abs(forced - raw) < _SAME_LOGPROB:
            self._warn(
                f"engine: {server.base_url} gives log-probabilities from before temperature and truncation, and so they are "
                "recorded; start vLLM with `--logprobs-mode processed_logprobs` for those of what was sampled"
            )

    def _check_context(self, server: Server) -> None:
        if server.max_tokens is not None and server.max_tokens < self.max_tokens:
            self._warn(
                f"engine: {server.base_url} has a context of {server.max_tokens} tokens: trajectories are cut from "
                f"{self.max_tokens} (`data.max_prompt_tokens` and `rollout.max_response_tokens`) to that"
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:  # it is examined again whenever it comes back
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
