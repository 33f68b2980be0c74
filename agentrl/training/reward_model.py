"""The reward model on one rank: a sequence classifier that reads whole trajectories."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from agentrl.training.model.scalar_model import classifier_model, whole_sequence
from agentrl.training.model.sharded_model import open_classifier, shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.sequences import rows_of
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_sequences
from agentrl.types import Trajectory

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig


class RewardModel:
    """Frozen weights of `reward.model.path`; all ranks score in step."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        self._config = config.reward.model
        assert self._config.path is not None, "the role exists for this path only"
        self._path = self._config.path
        self._actor = config.actor
        # The scored token is the last one, so only equal sequences would share a prefix.
        self._packing = Packing(max_tokens=self._actor.max_tokens_per_micro_batch, share_prefixes=False)
        self._dtype: torch.dtype = getattr(torch, config.model.dtype)

    def setup(self, parallel: Parallel) -> None:
        """Load the model and shard it; raises ConfigError if it is no trained sequence classifier of one label."""
        self._parallel = parallel
        opened = open_classifier(self._path)
        self._model = classifier_model(opened.model).requires_grad_(False)
        shard_model(self._model, opened.files, parallel, self._actor, dtype=self._dtype)

    def score(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Return a score for each of this rank's trajectories, from the state at its last token; of several rows, the last."""
        last_rows = [trajectory.token_ids[rows_of(trajectory)[-1].start :] for trajectory in trajectories]
        sequences = [whole_sequence(token_ids) for token_ids in last_rows]
        return [float(score) for [score] in score_sequences(self._output, sequences, self._parallel, self._packing)]

    def _output(self, tokens: PackedTokens) -> torch.Tensor:
        output_N: torch.Tensor = self._model(tokens)
        return output_N.sigmoid() if self._config.activation == "sigmoid" else output_N
