"""Balance of a mixture's experts: transformers' auxiliary loss for the routers of some architectures.

The loss is the number of experts times the sum over experts of (share of tokens routed there) x (mean routing probability),
over all layers together (Switch Transformer, arXiv:2101.03961, equations 4 to 6). Even routing to k experts gives k.

Letters in shapes: T packed tokens of this rank, E experts.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.training.packing.packed_tokens import PackedTokens

_FUNCTION = "load_balancing_loss_func"
_PARAMETERS = ["gate_logits", "num_experts", "top_k", "attention_mask"]


def require_router_loss(model: nn.Module, where: str) -> None:
    """Raise ConfigError for a causal LM whose architecture has no auxiliary loss in transformers; `where` names its folder."""
    function, kind = _loss_function(model), getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    has_loss = function is not None and list(inspect.signature(function).parameters) == _PARAMETERS
    if not (has_loss and hasattr(model, "num_experts") and hasattr(model, "num_experts_per_tok")):
        raise ConfigError(
            f"`actor.router_aux_loss_coef` is set, but {where} (`{kind}`) has no auxiliary loss of routers: it has no experts, "
            "or a bias balances them. Leave the key out"
        )


def router_loss_sum(model: Any, router_logits: tuple[Tensor, ...], tokens: PackedTokens) -> Tensor:
    """Return the auxiliary loss of a row times its number of tokens, `[]`, so that those of rows can be added.

    A token of a shared prefix counts once for each sequence that continues it. If several ranks share a row, the loss is taken
    over each rank's tokens and summed. `router_logits` are `[T, E]` of each layer with experts.
    """
    function = _loss_function(model)
    assert function is not None
    num_tokens = tokens.uses_T.sum()
    # In an empty row any finite loss will do: it is multiplied by 0.
    weights_1T = (tokens.uses_T + (num_tokens == 0)).unsqueeze(0)
    loss = function(
        tuple(logits.float() for logits in router_logits), model.num_experts, model.num_experts_per_tok, weights_1T
    )
    return tokens.sum_over_ranks(loss * num_tokens)


def _loss_function(model: nn.Module) -> Callable[..., Tensor] | None:
    """Return the loss function from the module of the model's class; FSDP wraps the class, hence the search."""
    files = (sys.modules[kind.__module__] for kind in type(model).__mro__)
    return next((getattr(file, _FUNCTION) for file in files if hasattr(file, _FUNCTION)), None)
