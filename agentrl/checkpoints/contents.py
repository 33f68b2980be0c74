"""Contents of a checkpoint.

The folder `checkpoint.dir` of a run:

    config.yaml             config of the run whose checkpoints these are
    inputs.json             digests of the data and tool files and of the models of that run
    writer                  id of the start that may write here; each start writes its own
    step_000010/
    ├── actor/              a sharded checkpoint (`agentrl.training.checkpoint`)
    ├── rollouts/           what was rolled out and not yet trained on
    ├── pass_rates.json     share solved of each prompt
    └── state.json          written last and deleted first: with it the checkpoint is complete
"""

from collections.abc import Sequence
from dataclasses import dataclass

STATE = "state.json"
OWNER = "config.yaml"
INPUTS = "inputs.json"
WRITER = "writer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The driver's part of a checkpoint. `step` counts the actor's updates."""

    step: int = 0
    prompts_taken: int = 0
    """Prompts started since the beginning: the position in the data set."""
    stage_position: int = 0
    """Position in the data at which the current stage began."""
    accuracy: float | None = None
    """Accuracy on the held-out prompts after update `step`; None if not measured."""


def by_accuracy(states: Sequence[RunState]) -> list[RunState]:
    """Return the states with a measured accuracy, the highest last; of equal ones the newer one later."""
    measured = [state for state in states if state.accuracy is not None]
    return sorted(measured, key=lambda state: (state.accuracy, state.step))
