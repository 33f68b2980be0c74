"""Validation of a request before an engine takes it."""

from collections.abc import Container

from agentrl.errors import EngineError
from agentrl.types import SamplingParams


def check_request(
    token_ids: list[int],
    params: SamplingParams,
    request_id: str,
    open_ids: Container[str],
    *,
    max_tokens: int,
    vocabulary_size: int,
) -> None:
    """Refuse a request that an engine cannot answer.

    Args:
        token_ids: the prompt.
        params: sampling parameters.
        request_id: id of the request.
        open_ids: ids of the open requests.
        max_tokens: context length, prompt and completion together.
        vocabulary_size: number of the model's token ids.

    Raises:
        EngineError: the id is in use, the prompt is empty, too long or outside the vocabulary, or `max_tokens` is 0.
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
