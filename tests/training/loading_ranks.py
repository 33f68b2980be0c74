"""Processes of `test_sharded_loading`."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentrl.config.schema.run import ActorSection, ModelSection
from agentrl.models.weight_files import ModelFolder
from agentrl.training.model.sharded_model import open_model, shard_model
from agentrl.training.parallel import Parallel, full_tensors
from tests.training.allocations import peak_allocated_bytes
from tests.training.two_ranks import context_at


@dataclass
class Loaded:
    peak_bytes: int
    """Peak of the allocations while the model was loaded, without the mapped files."""
    weights: dict[str, Tensor]


def load_rank(rank: int, world_size: int, port: int, policy: str, folder: str) -> None:
    """Load a policy, and write its weights and the peak memory to `folder`."""
    parallel = Parallel(context_at(port, rank, world_size))
    models = []

    def load() -> None:
        opened = open_model(ModelSection(path=policy))
        shard_model(opened.model, opened.files, parallel, ActorSection(), dtype=torch.float32)
        models.append(opened.model)

    # PyTorch counts mapped files, whose pages the system can drop.
    mapped_bytes = peak_allocated_bytes(lambda: ModelFolder(policy))
    peak_bytes = peak_allocated_bytes(load) - mapped_bytes
    [model] = models
    weights = dict(full_tensors(model, torch.float32))
    torch.save(Loaded(peak_bytes=peak_bytes, weights=weights), Path(folder) / f"loaded{rank}.pt")
    parallel.close()
