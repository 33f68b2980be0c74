"""Checkpoints of a sharded model and its optimiser, which load on any number of ranks.

Every rank writes its part into one folder (`torch.distributed.checkpoint`). The folder is complete when all ranks have
returned; giving it its final name then is the caller's part. Learning rates are a function of the step and are not here.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def save_checkpoint(path: str, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Write weights, optimiser state and the state of torch's generator; every rank must call it."""
    state_dict_saver.save(_state(model, optimiser), checkpoint_id=path)


def load_checkpoint(path: str, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Read what `save_checkpoint` wrote into a model and an optimiser of the same kind; every rank must call it."""
    state = _state(model, optimiser)
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])
    torch.set_rng_state(state["generator"])


def _state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimiser)
    return {"model": weights, "optimiser": moments, "generator": torch.get_rng_state()}
