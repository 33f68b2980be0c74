"""The frozen starting policy, for the KL term."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentrl.training.batch import PackedTokens
from agentrl.training.model import decoder_layers, load_model
from agentrl.training.parallel import Parallel
from agentrl.training.scoring import score_tokens

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection


class Reference:
    """Holds the weights of `model.path` and never changes them; all ranks score in step."""

    def __init__(self, model: "ModelSection", parallel: Parallel, *, temperature: float) -> None:
        """Load the model and shard it."""
        dtype: torch.dtype = getattr(torch, model.dtype)
        self._temperature = temperature
        self._model = load_model(model).requires_grad_(False)
        parallel.shard(self._model, decoder_layers(self._model), dtype=dtype)

    @torch.no_grad()
    def logprobs(self, tokens: PackedTokens) -> Tensor:
        """Return `[N]` float32 log-probabilities of the scored tokens."""
        return score_tokens(self._model, tokens, temperature=self._temperature).logprobs_N
