"""Trial of a model folder on the device `meta`, without values or memory: can it be trained, and is it complete?

Renamed, tied and optional weights are left to transformers' own report of missing, unexpected and mismatched keys.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.utils import logging

from agentrl.models.attention_support import TESTED
from agentrl.models.loading import require_weights
from agentrl.training.architecture_trial import require_packable
from agentrl.training.model.decoder import decoder_layers, outline_model
from agentrl.training.model.router_balance import require_router_loss
from agentrl.training.model.router_replay import replay_routing
from agentrl.training.model.scalar_model import classifier_model


def try_model(
    path: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    key: str,
    router_loss: bool = False,
    replays_routing: bool = False,
) -> None:
    """Refuse a folder whose model cannot be trained, or whose files do not hold all of it.

    `shapes` are those of all tensors in its files; with None the weights are not checked. The config key `key` tells the
    model's use. `router_loss` and `replays_routing`: the routers' auxiliary loss and replay are used.

    Raises:
        ConfigError: weights are missing or have another shape, the model is of another kind, or packed training would
            compute it wrongly.
    """
    where = f"`{key}`: {path}"
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    outline = outline_model(path, key=key)
    if outline.config.model_type not in TESTED:
        require_packable(outline.config, where)
    if router_loss:
        require_router_loss(outline, where)
    if replays_routing:
        replay_routing(outline, decoder_layers(outline), where)
    if shapes is not None:
        kind = " is no trained sequence classifier: it" if key == "reward.model.path" else ""
        _require_whole(outline, shapes, f"{where}{kind}", needs_head=key != "critic.path")
    if key == "reward.model.path":
        classifier_model(outline)


def _require_whole(outline: Any, shapes: Mapping[str, tuple[int, ...]], where: str, *, needs_head: bool) -> None:
    try:
        model, loading_info = type(outline).from_pretrained(
            None,
            config=outline.config,
            state_dict={name: torch.empty(shape, device="meta") for name, shape in shapes.items()},
            dtype=torch.float32,
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError, LookupError):
        return  # the conversion of the files may need values; the workers check then
    require_weights(model, loading_info, where, needs_head=needs_head)
