"""Scores of packed rows: above all the log-probabilities that a policy gives to sampled tokens.

The decoder runs over the whole row, the head only over the scored tokens, in chunks, so that the logits of a row never
exist at once. For FSDP both are one forward pass, because the head's weight belongs to the outermost group.

Letters in shapes: N scored tokens of a row, M those of them that this rank computes, V vocabulary, W width of the decoder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from agentrl.training.model.router_balance import router_loss_sum
from agentrl.training.model.router_replay import begin_row
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.packing import empty_tokens, fill_up, members_of, pack_tokens, plan_rows
from agentrl.training.packing.sequences import TokenSequence
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.chunked_logits import chunk_size, vocabulary_scores

_SCORE_ROW = "agentrl_score_row"
_HEAD_IS_PLAIN = "agentrl_head_is_plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Log-probabilities and entropies (nats) of each scored token, float32; entropies are differentiable only on request."""

    logprobs_N: Tensor
    entropy_N: Tensor
    router_loss: Tensor | None = None
    """Auxiliary loss of the routers times the row's number of tokens, `[]`; None if not requested."""


@dataclass
class _DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Output of a decoder with given hidden states."""

    router_logits: tuple[Tensor, ...] | None = None


@torch.no_grad()
def score_sequences(
    score: Callable[[PackedTokens], Tensor],
    sequences: Sequence[TokenSequence],
    parallel: Parallel,
    packing: Packing,
) -> list[NDArray[np.float32]]:
    """Return the `score`, `[N]` of a packed row, of each of this rank's sequences; all ranks must call it, maybe with none."""
    rows = plan_rows(sequences, packing)
    [num_rows] = parallel.max([len(rows)])
    packed = fill_up([pack_tokens(sequences, row) for row in rows], empty_tokens(), int(num_rows))
    scores_N = [score(tokens.to(parallel.device, parallel.sequence)).float().cpu() for tokens in packed]
    arrays: dict[int, NDArray[np.float32]] = {}
    for row, row_N in zip(rows, scores_N, strict=False):  # the rest are empty rows
        counts = [sum(sequences[member].response_mask[1:]) for member in members_of(row)]
        arrays |= {i: part.numpy() for i, part in zip(members_of(row), row_N.split(counts), strict=True)}
    return [arrays[i] for i in range(len(sequences))]


def score_tokens(
    model: nn.Module,
    tokens: PackedTokens,
    *,
    temperature: float,
    entropy_gradient: bool = False,
    router_loss: bool = False,
) -> TokenScores:
    """Run a model of `load_model` over a packed row and score the tokens that were sampled; shard it before its first row.

    `temperature` is that of the sampling. `entropy_gradient` makes the entropy differentiable, and `router_loss` also computes
    the routers' auxiliary loss, for a model that `require_router_loss` accepts.
    """
    if not hasattr(model, _SCORE_ROW):
        setattr(model, _SCORE_ROW, MethodType(_score_row, model))
        register_fsdp_forward_method(model, _SCORE_ROW)
    score_row: Callable[..., tuple[Tensor, Tensor, Tensor | None]] = getattr(model, _SCORE_ROW)
    logprobs_N, entropy_N, router_sum = score_row(tokens, temperature, entropy_gradient, router_loss)
    return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N, router_loss=router_sum)


def scored_states(decoder: nn.Module, tokens: PackedTokens) -> Tensor:
    """Return `[M, W]`: the states of a Hugging Face decoder's last layer at this rank's scored tokens."""
    return _decoded(decoder, tokens).last_hidden_state[0].index_select(0, tokens.scored_N)


def _decoded(decoder: nn.Module, tokens: PackedTokens, **options: Any) -> Any:
    return decoder(
        input_ids=tokens.token_ids_T.unsqueeze(0),
        position_ids=tokens.position_ids_T.unsqueeze(0),
        use_cache=False,
        layout=tokens.layout,
        sequence=tokens.sequence,
        **options,
    )


def _score_row(
    model: Any, tokens: PackedTokens, temperature: float, entropy_gradient: bool, router_loss: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    begin_row(model, tokens)
    decoded = _decoded(model.get_decoder(), tokens, **({"output_router_logits": True} if router_loss else {}))
    hidden_MW = decoded.last_hidden_state[0].index_select(0, tokens.scored_N)
    router_sum = router_loss_sum(model, decoded.router_logits, tokens) if router_loss else None
    if not hasattr(model, _HEAD_IS_PLAIN):
        setattr(model, _HEAD_IS_PLAIN, _head_is_plain(model, hidden_MW))
    if getattr(model, _HEAD_IS_PLAIN):
        logprobs_M, entropy_M = vocabulary_scores(
            hidden_MW,
            model.get_output_embeddings().weight,
            tokens.targets_N,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
        )
    else:
        size = chunk_size(model.config.get_text_config().vocab_size, hidden_MW.device)
        chunks = [
            checkpoint(_score_chunk, model, hidden, targets, temperature, entropy_gradient, use_reentrant=False)
            for hidden, targets in zip(hidden_MW.split(size), tokens.targets_N.split(size), strict=True)
        ]
        logprobs_M, entropy_M = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return tokens.gather(logprobs_M), tokens.gather(entropy_M), router_sum


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
    decoder, states = model.get_decoder(), cast(Any, hidden_CW.unsqueeze(0))

    def give_hidden(*_: Any, **__: Any) -> _DecoderOutput:
        return _DecoderOutput(last_hidden_state=states)

    decoder.forward = give_hidden
    try:
        return model.forward(input_ids=torch.zeros(1, 1, dtype=torch.long, device=hidden_CW.device)).logits[0]
    finally:
        del decoder.forward
