"""The balance of a mixture's experts: the auxiliary loss that transformers adds for the routers of some architectures.

It is the number of experts times the sum over experts of (share of tokens sent there) x (mean probability of being sent
there), over all layers together (Switch Transformer, arXiv:2101.03961, equations 4 to 6). Even routing to k experts gives k.

Letters in shapes: L packed tokens of this rank, E experts.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.training.sequence_parallel import RowPart

_FUNCTION = "load_balancing_loss_func"
_PARAMETERS = ["gate_logits", "num_experts", "top_k", "attention_mask"]


def require_router_loss(model: nn.Module, where: str) -> None:
    """Refuse a model for whose architecture transformers has no auxiliary loss.

    Args:
        model: a causal LM of transformers.
        where: the key, and the folder that it names.

    Raises:
        ConfigError: it has no experts, or balances them by other means.
    """
    function, kind = _loss_function(model), getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    has_loss = function is not None and list(inspect.signature(function).parameters) == _PARAMETERS
    if not (has_loss and hasattr(model, "num_experts") and hasattr(model, "num_experts_per_tok")):
        raise ConfigError(
            f"`actor.router_aux_loss_coef` is set, but {where} (`{kind}`) has no auxiliary loss of routers: it has no experts, "
            "or a bias balances them. Leave the key out"
        )


def router_loss_sum(model: Any, router_logits: tuple[Tensor, ...], here: RowPart) -> Tensor:
    """Return the auxiliary loss of a row, `[]`, times its tokens, so that those of rows may be added.

    A token of a shared prefix counts once for each sequence that continues it, as if nothing were shared. Where several ranks
    share a row, the loss is of each rank's tokens by themselves, and their sum is the same on every rank.

    Args:
        model: from `load_model`; `require_router_loss` has accepted it.
        router_logits: `[L, E]` of each layer with experts.
        here: what this rank computes of the row.
    """
    function = _loss_function(model)
    assert function is not None
    num_tokens = here.uses_L.sum()
    # Of a row that only fills up, any finite loss is multiplied by 0.
    weights_1L = (here.uses_L + (num_tokens == 0)).unsqueeze(0)
    loss = function(
        tuple(logits.float() for logits in router_logits), model.num_experts, model.num_experts_per_tok, weights_1L
    )
    return here.sum_of_parts(loss * num_tokens)


def _loss_function(model: nn.Module) -> Callable[..., Tensor] | None:
    """Return the function that stands beside the model's own class, of which FSDP makes another one."""
    files = (sys.modules[kind.__module__] for kind in type(model).__mro__)
    return next((getattr(file, _FUNCTION) for file in files if hasattr(file, _FUNCTION)), None)
