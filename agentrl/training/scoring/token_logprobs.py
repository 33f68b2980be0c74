"""Log-probabilities that a policy gives to sampled tokens, from packed rows.

The decoder runs over the whole row, the head only over the scored tokens, in chunks, so that the logits of a row never
exist at once. For FSDP both are one forward pass, because the head's weight belongs to the outermost group.

Letters in shapes: T packed tokens, N scored tokens, L and M this rank's parts of them, V vocabulary, W width of the decoder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from agentrl.training.model.router_balance import router_loss_sum
from agentrl.training.model.router_replay import begin_row
from agentrl.training.packing.packing import PackedTokens
from agentrl.training.packing.sequence_parallel import RowPart
from agentrl.training.scoring.chunked_logits import chunk_size, vocabulary_scores

_SCORE_ROW = "agentrl_score_row"
_HEAD_IS_PLAIN = "agentrl_head_is_plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Scores of each scored token."""

    logprobs_N: Tensor
    """Log-probabilities, float32, differentiable."""
    entropy_N: Tensor
    """Entropies in nats, float32; differentiable only with `entropy_gradient`."""
    router_loss: Tensor | None = None
    """Auxiliary loss of the routers times the row's number of tokens, `[]`; None if not requested."""


@dataclass
class _DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Output of a decoder with given hidden states; other fields that heads read are empty."""

    router_logits: tuple[Tensor, ...] | None = None


def score_tokens(
    model: nn.Module,
    tokens: PackedTokens,
    *,
    temperature: float,
    entropy_gradient: bool = False,
    router_loss: bool = False,
) -> TokenScores:
    """Run the model over a packed row and score the tokens that were sampled.

    Args:
        model: from `load_model`, on the device of `tokens.local`; shard it before its first row.
        tokens: the row.
        temperature: divisor of the logits, that of the sampling.
        entropy_gradient: make the entropy differentiable.
        router_loss: also compute the routers' auxiliary loss; needs a model that `require_router_loss` accepts.
    """
    if not hasattr(model, _SCORE_ROW):
        setattr(model, _SCORE_ROW, MethodType(_score_row, model))
        register_fsdp_forward_method(model, _SCORE_ROW)
    score_row: Callable[..., tuple[Tensor, Tensor, Tensor | None]] = getattr(model, _SCORE_ROW)
    logprobs_N, entropy_N, router_sum = score_row(tokens, temperature, entropy_gradient, router_loss)
    return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N, router_loss=router_sum)


def scored_states(decoder: nn.Module, local: RowPart) -> Tensor:
    """Run a decoder over a packed row.

    Args:
        decoder: part of a Hugging Face model below its head, loaded with packed attention.
        local: this rank's part of the row.

    Returns:
        `[M, W]`: states of the last layer at this rank's scored tokens.
    """
    return _decoded(decoder, local).last_hidden_state[0][local.scored_M]


def _decoded(decoder: nn.Module, local: RowPart, **options: Any) -> Any:
    return decoder(
        input_ids=local.token_ids_L.unsqueeze(0),
        position_ids=local.position_ids_L.unsqueeze(0),
        use_cache=False,
        layout=local.layout,
        sequence=local.sequence,
        **options,
    )


def _score_row(
    model: Any, tokens: PackedTokens, temperature: float, entropy_gradient: bool, router_loss: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    local = tokens.local
    begin_row(model, tokens)
    decoded = _decoded(model.get_decoder(), local, **({"output_router_logits": True} if router_loss else {}))
    hidden_MW = decoded.last_hidden_state[0][local.scored_M]
    router_sum = router_loss_sum(model, decoded.router_logits, local) if router_loss else None
    if not hasattr(model, _HEAD_IS_PLAIN):
        setattr(model, _HEAD_IS_PLAIN, _head_is_plain(model, hidden_MW))
    if getattr(model, _HEAD_IS_PLAIN):
        logprobs_M, entropy_M = vocabulary_scores(
            hidden_MW,
            model.get_output_embeddings().weight,
            local.targets_M,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
        )
    else:
        size = chunk_size(model.config.get_text_config().vocab_size, hidden_MW.device)
        chunks = [
            checkpoint(_score_chunk, model, hidden, targets, temperature, entropy_gradient, use_reentrant=False)
            for hidden, targets in zip(hidden_MW.split(size), local.targets_M.split(size), strict=True)
        ]
        logprobs_M, entropy_M = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return local.gather(logprobs_M), local.gather(entropy_M), router_sum


def _score_chunk(
    model: Any, hidden_CW: Tensor, targets_C: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logprobs_CV = (_logits(model, hidden_CW).float() / temperature).log_softmax(dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_C = -(logprobs_CV.exp() * logprobs_CV).sum(dim=-1)
    return logprobs_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1), entropy_C


@torch.no_grad()
def _head_is_plain(model: Any, hidden_NW: Tensor) -> bool:
    """Return True if logits are just the product of the head's weight and the hidden state.

    Some architectures scale or cap logits, by various settings; so this tries a state large enough to show it.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        return False
    probe_1W = 100 * torch.linspace(-1, 1, hidden_NW.shape[-1], dtype=hidden_NW.dtype, device=hidden_NW.device)[None]
    expected, logits = (probe_1W @ head.weight.T).float(), _logits(model, probe_1W).float()
    tolerance = 1e-2 if hidden_NW.dtype in (torch.bfloat16, torch.float16) else 1e-4
    return bool((logits - expected).abs().max() <= tolerance * expected.abs().max())


def _logits(model: Any, hidden_CW: Tensor) -> Tensor:
    """Return the logits `[C, V]` that the model computes from the states of its decoder."""
    decoder = model.get_decoder()

    states: Any = hidden_CW.unsqueeze(0)

    def give_hidden(*_: Any, **__: Any) -> _DecoderOutput:
        return _DecoderOutput(last_hidden_state=states)

    decoder.forward = give_hidden
    try:
        return model.forward(input_ids=torch.zeros(1, 1, dtype=torch.long, device=hidden_CW.device)).logits[0]
    finally:
        del decoder.forward
