"""The reward model on one rank: a sequence classifier that reads whole trajectories."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from agentrl.training.model.scalar_model import classifier_model, whole_sequence
from agentrl.training.model.sharded_model import open_classifier, shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import empty_tokens, fill_up, plan_rows
from agentrl.training.role import RoleContext
from agentrl.types import Trajectory

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig


class RewardModel:
    """Frozen weights of `reward.model.path`; all ranks score in step."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        """Take the settings; `setup` loads the model.

        Raises:
            ValueError: no model is named.
        """
        self._config = config.reward.model
        if self._config.path is None:
            raise ValueError(f"{role}: there is no reward model; name one in `reward.model.path`")
        self._path = self._config.path
        self._actor = config.actor
        # The scored token is the last one, so only equal sequences would share a prefix.
        self._packing = Packing(max_tokens=self._config.max_tokens_per_micro_batch, share_prefixes=False)
        self._dtype: torch.dtype = getattr(torch, config.model.dtype)

    def setup(self, context: RoleContext) -> None:
        """Load the model and shard it.

        Raises:
            ConfigError: the folder holds no trained sequence classifier of one label.
        """
        self._parallel = context.parallel
        opened = open_classifier(self._path)
        self._model = classifier_model(opened.model).requires_grad_(False)
        shard_model(self._model, opened.files, context.parallel, self._actor, dtype=self._dtype)

    @torch.no_grad()
    def score(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Return a score for each of this rank's trajectories, from the state at its last token."""
        sequences = [whole_sequence(trajectory.token_ids) for trajectory in trajectories]
        plan = plan_rows(sequences, self._packing)
        [num_rows] = self._parallel.max([len(plan.rows)])
        rows = fill_up([plan.pack(row, sequences) for row in range(len(plan.rows))], empty_tokens(), int(num_rows))
        outputs = [self._model(row.to(self._parallel.device, self._parallel.sequence)) for row in rows]
        if self._config.activation == "sigmoid":
            outputs = [output.sigmoid() for output in outputs]
        score_of = {
            index: score
            for members, output in zip(plan.members, outputs, strict=False)  # the rest are empty rows
            for index, score in zip(members, output.tolist(), strict=True)
        }
        return [score_of[index] for index in range(len(trajectories))]
