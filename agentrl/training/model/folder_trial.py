"""Trial load of a model by transformers from the headers of its files, on the device `meta`, to find missing weights.

Takes neither values nor memory. Renamed, tied and optional weights are left to transformers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from agentrl.config.schema.run import ModelSection
from agentrl.models.loading import refuse_incomplete, require_weights
from agentrl.training.architecture_trial import require_packable
from agentrl.training.model.decoder import decoder_layers, outline_classifier, outline_model
from agentrl.training.model.router_balance import require_router_loss
from agentrl.training.model.router_replay import replay_routing


def try_folder(path: str, shapes: Mapping[str, Sequence[int]], *, key: str) -> None:
    """Refuse a folder whose files do not hold the whole model.

    Args:
        path: folder of the model.
        shapes: shapes of all tensors in its files, by name.
        key: config key, which tells the model's use: `model.path`, `critic.path` or `reward.model.path`.

    Raises:
        ConfigError: weights are missing or have another shape, or the model is of another kind.
    """
    outline: Any = _outline(path, key=key)
    if getattr(outline.config, "quantization_config", None) is not None:
        return  # loading may need a worker's GPU; the worker checks it
    weights = {name: torch.empty(tuple(shape), device="meta") for name, shape in shapes.items()}
    try:
        with _silence():
            model, loading_info = type(outline).from_pretrained(
                None,
                config=outline.config,
                state_dict=weights,
                dtype=torch.float32,
                device_map="meta",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (RuntimeError, ValueError, LookupError) as error:
        refuse_incomplete(error, f"{key}: {path}")
        return  # the conversion may need values; the workers check then
    require_weights(model, loading_info, f"{key}: {path}", needs_head=key != "critic.path")


def try_architecture(path: str, *, key: str) -> None:
    """Refuse a folder whose architecture packed training would compute wrongly (`require_packable`).

    Raises:
        ConfigError: it would, or the model is of another kind.
    """
    with _silence():
        require_packable(_outline(path, key=key).config, f"`{key}`: {path}")


def _outline(path: str, *, key: str) -> PreTrainedModel:
    return outline_classifier(path) if key == "reward.model.path" else outline_model(ModelSection(path=path), key=key)


def try_router_loss(path: str) -> None:
    """Refuse a policy without the routers' auxiliary loss (`require_router_loss`).

    Raises:
        ConfigError: it has no such loss, or is no causal LM.
    """
    with _silence():
        require_router_loss(_outline(path, key="model.path"), f"`model.path`: {path}")


def try_routing_replay(path: str) -> None:
    """Refuse a policy whose routing cannot be replayed (`replay_routing`).

    Raises:
        ConfigError: it cannot, or the policy is no causal LM.
    """
    with _silence():
        outline = _outline(path, key="model.path")
        replay_routing(outline, decoder_layers(outline), f"`model.path`: {path}")


@contextmanager
def _silence() -> Iterator[None]:
    """Silence transformers' progress bars and warnings."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
