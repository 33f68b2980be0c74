"""Log-probabilities that a policy gives to sampled tokens, from packed rows.

The model runs in two parts: the decoder over the whole row, and the head over the scored tokens only, in chunks, so that
the logits of a row never exist together. Both run inside one forward pass of the model as FSDP sees it, because the
weight of the head belongs to the outermost group of weights.

Letters in shapes: T packed tokens, N scored tokens, L and M those of them that this rank computes, V vocabulary, W width of
the decoder.
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

from agentrl.training.batch import PackedTokens
from agentrl.training.router_balance import router_loss_sum
from agentrl.training.router_replay import begin_row
from agentrl.training.sequence_parallel import RowPart
from agentrl.training.vocabulary import chunk_size, vocabulary_scores

_SCORE_ROW = "agentrl_score_row"
_HEAD_IS_PLAIN = "agentrl_head_is_plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What the model says about each scored token."""

    logprobs_N: Tensor
    """float32, differentiable where gradients are on."""
    entropy_N: Tensor
    """float32, in nats; differentiable where it was asked for."""
    router_loss: Tensor | None = None
    """Auxiliary loss of the routers times the tokens of the row, `[]`, differentiable; absent: it was not asked for."""


@dataclass
class _DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Hidden states in place of what a decoder returns, with the fields that heads pass on, empty."""

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
        model: from `load_model`, on the device of `tokens.here`; if it is to be sharded, then before its first row.
        tokens: the row.
        temperature: divides the logits, as it did when the tokens were sampled.
        entropy_gradient: let gradients through the entropy as well.
        router_loss: compute the auxiliary loss of the routers as well; `require_router_loss` has accepted the model.
    """
    if not hasattr(model, _SCORE_ROW):
        setattr(model, _SCORE_ROW, MethodType(_score_row, model))
        register_fsdp_forward_method(model, _SCORE_ROW)
    score_row: Callable[..., tuple[Tensor, Tensor, Tensor | None]] = getattr(model, _SCORE_ROW)
    logprobs_N, entropy_N, router_sum = score_row(tokens, temperature, entropy_gradient, router_loss)
    return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N, router_loss=router_sum)


def scored_states(decoder: nn.Module, here: RowPart) -> Tensor:
    """Run a decoder over a packed row.

    Args:
        decoder: the part of a Hugging Face model below its head, loaded with packed attention.
        here: what this rank computes of the row.

    Returns:
        `[M, W]`: of the last layer, at the scored tokens of this rank.
    """
    return _decoded(decoder, here).last_hidden_state[0][here.scored_M]


def _decoded(decoder: nn.Module, here: RowPart, **options: Any) -> Any:
    return decoder(
        input_ids=here.token_ids_L.unsqueeze(0),
        position_ids=here.position_ids_L.unsqueeze(0),
        use_cache=False,
        layout=here.layout,
        sequence=here.sequence,
        **options,
    )


def _score_row(
    model: Any, tokens: PackedTokens, temperature: float, entropy_gradient: bool, router_loss: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    here = tokens.here
    begin_row(model, tokens)
    decoded = _decoded(model.get_decoder(), here, **({"output_router_logits": True} if router_loss else {}))
    hidden_MW = decoded.last_hidden_state[0][here.scored_M]
    router_sum = router_loss_sum(model, decoded.router_logits, here) if router_loss else None
    if not hasattr(model, _HEAD_IS_PLAIN):
        setattr(model, _HEAD_IS_PLAIN, _head_is_plain(model, hidden_MW))
    if getattr(model, _HEAD_IS_PLAIN):
        logprobs_M, entropy_M = vocabulary_scores(
            hidden_MW,
            model.get_output_embeddings().weight,
            here.targets_M,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
        )
    else:
        size = chunk_size(model.config.get_text_config().vocab_size, hidden_MW.device)
        chunks = [
            checkpoint(_score_chunk, model, hidden, targets, temperature, entropy_gradient, use_reentrant=False)
            for hidden, targets in zip(hidden_MW.split(size), here.targets_M.split(size), strict=True)
        ]
        logprobs_M, entropy_M = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return here.of_whole_row(logprobs_M), here.of_whole_row(entropy_M), router_sum


def _score_chunk(
    model: Any, hidden_CW: Tensor, targets_C: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logprobs_CV = (_logits(model, hidden_CW).float() / temperature).log_softmax(dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_C = -(logprobs_CV.exp() * logprobs_CV).sum(dim=-1)
    return logprobs_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1), entropy_C


@torch.no_grad()
def _head_is_plain(model: Any, hidden_NW: Tensor) -> bool:
    """Whether logits are the product of the head's weight and the hidden state, and nothing more.

    Some architectures scale or bend them, each by a setting of its own name; so a state is tried, enlarged until it would show.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        return False
    probe_1W = 100 * torch.linspace(-1, 1, hidden_NW.shape[-1], dtype=hidden_NW.dtype, device=hidden_NW.device)[None]
    expected, found = (probe_1W @ head.weight.T).float(), _logits(model, probe_1W).float()
    tolerance = 1e-2 if hidden_NW.dtype in (torch.bfloat16, torch.float16) else 1e-4
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def _logits(model: Any, hidden_CW: Tensor) -> Tensor:
    """Return `[C, V]`: what the model makes of these states after its decoder, whatever that is."""
    decoder = model.get_decoder()

    states: Any = hidden_CW.unsqueeze(0)

    def give_hidden(*_: Any, **__: Any) -> _DecoderOutput:
        return _DecoderOutput(last_hidden_state=states)

    decoder.forward = give_hidden
    try:
        return model.forward(input_ids=torch.zeros(1, 1, dtype=torch.long, device=hidden_CW.device)).logits[0]
    finally:
        del decoder.forward
