"""Replay of the rollout's expert choice in training (R3, arXiv:2510.11370).

Engine and actor round differently, so a token may reach other experts in training than in the rollout, and get a very
different log-probability. With replay, routers choose the recorded experts, with logits, gradients and weights of the current
forward pass. All routers of transformers choose by one `topk` over the experts, so this replaces `topk`.

Letters in shapes: T packed tokens of this rank, E experts, K experts of a token, B bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from agentrl.errors import ConfigError
from agentrl.training.packing.packed_tokens import PackedTokens

_REPLAY = "agentrl_routing_replay"
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""Exceptions of a router with another signature."""


@dataclass
class _Replay:
    """Experts that a model's routers must choose, also in a second pass (recomputed activations)."""

    num_layers: int
    num_chosen: int
    experts: Tensor | None = None
    """`[T, layers, K]`, int64; None: routers choose freely."""


def replay_routing(model: Any, layers: Sequence[nn.Module], where: str) -> None:
    """Make the routers of a model, which is not sharded yet, choose the experts that are recorded in a row.

    `layers` are all of its blocks, in order (`decoder_layers`); `where` is config key and folder.

    Raises:
        ConfigError: the model has no experts, or its routers do not choose by one `topk` over all of them.
    """
    recorder: Any = (getattr(model.get_decoder(), "_can_record_outputs", None) or {}).get("router_logits")
    kind = getattr(recorder, "target_class", None)
    by_layer: list[list[Any]] = [
        [part for part in layer.modules() if kind is not None and isinstance(part, kind)] for layer in layers
    ]
    config = model.config.get_text_config()
    problem = _problem([router for routers in by_layer for router in routers], config)
    if problem:
        raise ConfigError(
            f"`rollout.replay_routing` is set, but {where} (`{config.model_type}`) {problem}; leave the key out"
        )
    replay = _Replay(num_layers=len(by_layer), num_chosen=config.num_experts_per_tok)
    for number, routers in enumerate(by_layer):
        for router in routers:
            router.forward = partial(_route, router.forward, router.num_experts, replay, number)
    setattr(model, _REPLAY, replay)


def begin_row(model: nn.Module, tokens: PackedTokens) -> None:
    """Pass the experts of a row to the routers, if `replay_routing` was called; ValueError if it has none, or other ones."""
    replay: _Replay | None = getattr(model, _REPLAY, None)
    if replay is None:
        return
    experts_TB = tokens.experts_TB
    if experts_TB is None:
        if tokens.num_tokens:
            raise ValueError(
                "actor: the engine did not return the experts of a trajectory; leave `rollout.replay_routing` out"
            )
        replay.experts = None
        return
    size = experts_TB.shape[1] / (replay.num_layers * replay.num_chosen)
    if size not in (1, 2):
        raise ValueError(
            f"actor: {experts_TB.shape[1]} bytes of experts per token, and the model has {replay.num_layers} layers with "
            f"{replay.num_chosen} experts of a token; serve the same model, or leave `rollout.replay_routing` out"
        )
    values = experts_TB if size == 1 else experts_TB.view(torch.int16)
    replay.experts = values.to(tokens.token_ids_T.device).long().unflatten(1, (replay.num_layers, replay.num_chosen))


def _problem(routers: Sequence[Any], config: Any) -> str:
    """Return the reason why routers cannot replay, found by one call of the first; empty if they can."""
    if not routers:
        return "has no experts, or none whose routers are known"
    router = routers[0]
    try:
        device = next(router.parameters()).device
        chosen_TK = torch.arange(config.num_experts_per_tok, device=device).expand(2, -1)
        mode = _Chosen(chosen_TK, router.num_experts)
        with torch.no_grad(), mode:
            router(torch.zeros(2, config.hidden_size, device=device))
    except _FAILURES as error:
        return f"has a router that cannot be tried: {type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return "" if mode.num_choices == 1 else "has routers that do not choose by one `topk` over all experts"


def _route(
    forward: Callable[..., Any], num_experts: int, replay: _Replay, layer: int, *args: Any, **kwargs: Any
) -> Any:
    if replay.experts is None:
        return forward(*args, **kwargs)
    with _Chosen(replay.experts[:, layer], num_experts):
        return forward(*args, **kwargs)


class _Chosen(TorchFunctionMode):
    """Mode in which `topk` over all experts returns the given ones."""

    def __init__(self, experts_TK: Tensor, num_experts: int) -> None:
        super().__init__()
        self._experts_TK = experts_TK
        self._num_experts = num_experts
        self.num_choices = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.topk, Tensor.topk):
            scores, num_chosen = args[0], args[1] if len(args) > 1 else kwargs["k"]
            if scores.ndim == 2 and (scores.shape[1], num_chosen) == (self._num_experts, self._experts_TK.shape[1]):
                self.num_choices += 1
                return torch.return_types.topk((scores.gather(1, self._experts_TK), self._experts_TK))
        return func(*args, **kwargs)
