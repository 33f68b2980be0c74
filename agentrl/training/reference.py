"""The frozen starting policy, for the KL term."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.training.attention.merged import can_share_prefixes
from agentrl.training.checkpoint import load_weights
from agentrl.training.model.sharded_model import open_model, shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_sequences, score_tokens
from agentrl.types import Trajectory

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig


class Reference:
    """Frozen weights of `model.path`, or of a checkpoint; all ranks score in step."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        self._source = config.model
        self._temperature = config.rollout.temperature
        self._actor = config.actor

    def setup(self, parallel: Parallel) -> None:
        """Load the model and shard it."""
        self._parallel = parallel
        opened = open_model(self._source)
        self._model = opened.model.requires_grad_(False)
        dtype: torch.dtype = getattr(torch, self._source.dtype)
        self._packing = Packing(
            max_tokens=self._actor.max_tokens_per_micro_batch,
            share_prefixes=can_share_prefixes(parallel.device, dtype),
        )
        shard_model(self._model, opened.files, parallel, self._actor, dtype=dtype)

    def load(self, url: str) -> None:
        """Load the policy of the checkpoint in the folder `url`; every rank must call it."""
        load_weights(url, self._model)

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return the log-probabilities of the scored tokens of each of this rank's trajectories."""
        return score_sequences(
            lambda tokens: score_tokens(self._model, tokens, temperature=self._temperature).logprobs_N,
            trajectories,
            self._parallel,
            self._packing,
        )
