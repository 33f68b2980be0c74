"""Folder of a run on disk, from which the same command resumes.

runs/demo/
├── config.yaml             the resolved config; a run resumes only with the same one, except keys of `resume_rules`
├── inputs.json             digests of data, tool files, models, code and MCP tools, which must stay the same too
├── metrics.jsonl           one object per step
├── run_id                  the id of the run in trackers; some of them write folders of their own
├── tensorboard/  run.log  reward_curve.png  report.html
├── trajectories/           every trajectory, one file per step
├── checkpoints/            `agentrl.checkpoints.store`; elsewhere with `checkpoint.dir`
├── last_checkpoint.json    the step of the last one that counted: a run whose checkpoints are gone does not begin again
├── in_hand/                on its way from or to a checkpoint
├── policy/                 the trained policy as a Hugging Face folder
├── exported/               policies of checkpoints, likewise (`agentrl.runners.export`)
└── result.json             written last: the run is finished

An evaluation leaves the same less checkpoints, policy and curve, and `report.md` and `report.html`; its figures are in
`result.json` too. It resumes from its trajectories.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.observability.metrics_file import describe_survived
from agentrl.observability.reports.text_curve import text_curve
from agentrl.pages.run_report import REPORT
from agentrl.run.fingerprints import EDITABLE, Content, digest_of
from agentrl.run.resumable_folder import EXPORTED, ResumableFolder, content_of, refuse_other_inputs
from agentrl.run.resume_rules import (
    EVALUATION_KEYS,
    Changes,
    changes_of_keys,
    changes_of_stages,
    refuse_changes,
    stages_begun,
)
from agentrl.trajectories.store import TrajectoryStore


class RunDirectory(ResumableFolder):
    """The folder of one run."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, num_steps=config.run.num_steps)
        self.in_hand = self.path / "in_hand"
        """Folder for groups that are rolled out and not yet trained on, as files on their way from or to a checkpoint."""
        self.trajectories = TrajectoryStore(self.path)
        self.reward_curve = self.path / "reward_curve.png"
        self._config = config
        self._evaluated = False
        """True if it is opened by an evaluation, and has trajectories to go on from."""

    def open(self, inputs: Mapping[str, Content], *, trains: bool) -> None:
        """Do what the base class says, and remove what a killed run was carrying."""
        if self.policy.path.is_mount():
            raise ConfigError(
                f"{self.policy.path}: a disk is mounted there, which cannot be replaced; mount a folder above it"
            )
        self._evaluated = not trains and any((self.path / "trajectories").glob("*"))
        if not trains and (self._last_checkpoint.exists() or self.policy.path.exists()):
            raise ConfigError(f"run.dir: {self.path} holds a training run. Name another folder for the evaluation.")
        super().open(inputs, trains=trains)
        shutil.rmtree(self.in_hand, ignore_errors=True)

    @property
    def finished(self) -> bool:
        """See the base class; an evaluation that lost trajectories to the infrastructure tries them again."""
        return super().finished and not self.result().get("num_lost")

    def open_for_service(self) -> None:
        """Lock the folder and write the config down: a service resumes nothing, so its last one may have had another config.

        Raises:
            ConfigError: the folder holds results or checkpoints of a run, or something else, or is in use.
        """
        self._lock_folder()
        if self._result.exists() or self._last_checkpoint.exists():
            raise ConfigError(
                f"run.dir: {self.path} holds a run, whose config would be overwritten. Name another folder."
            )
        self._write_down()

    def refuse_other_policy(self) -> None:
        """Check that the weights in the checkpoints mean what they meant in the run; nothing is locked or written.

        Raises:
            ConfigError: the run had other LoRA settings, or another model that LoRA's factors are added to, be it only
                another content of the same folder.
        """
        owner, inputs = self.checkpoints.owner(), self.checkpoints.inputs()
        if owner is None:
            owner, inputs = content_of(self._saved_config), content_of(self._saved_digests)
        if owner is None:
            return
        where, base = f"{self.checkpoints.url} holds checkpoints of", Path(self._config.model.path)
        adds_to_base = self._config.actor.lora.rank > 0
        keys = ("actor.lora.", "model.path") if adds_to_base else ("actor.lora.",)
        changes = changes_of_keys(owner, self._config).items()
        refuse_changes({name: change for name, change in changes if name.startswith(keys)}, where=where, key="run.dir")
        if adds_to_base and base.is_dir():
            now = {"model.path": (base, digest_of(base, key="model.path"))}
            refuse_other_inputs(now, inputs, where=where, key="run.dir")

    def exported(self, step: int) -> Path:
        """Return where the policy of a checkpoint is exported to."""
        return self.path / EXPORTED / f"step_{step:06d}"

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run as finished, with what came of it as plain data."""
        shutil.rmtree(self.in_hand, ignore_errors=True)
        super().finish(result)

    def describe_result(self) -> str:
        """Return what a person wants to see at the end: the curve, where everything is, and what was lost on the way."""
        survived = describe_survived(self.result().get("survived", {}))
        text = (
            f"{text_curve(self.metrics)}\n"
            f"reward curve:   {self.reward_curve}\n"
            f"report:         {self.path / REPORT}\n"
            f"trained policy: {self.policy.path}\n"
            f"metrics:        {self.metrics}\n"
            f"dashboard:      python -m agentrl.dashboard {self.path}"
        )
        return f"{text}\nsurvived:       {survived}" if survived else text

    def _changes(self, saved: bytes, *, num_steps_done: int) -> Changes:
        of_stages = changes_of_stages(saved, self._config, num_steps_done=num_steps_done)
        more = EVALUATION_KEYS if self._evaluated else ()
        return changes_of_keys(saved, self._config, more=more) | of_stages

    def _inputs_in_use(self, saved: bytes, *, num_steps_done: int) -> dict[str, tuple[Content, str]]:
        num_begun = len(stages_begun(saved, num_steps_done=num_steps_done))
        later = tuple(f"stages[{index}]." for index in range(num_begun, len(self._config.stages)))
        in_use = {name: entry for name, entry in self._inputs.items() if not name.startswith(later)}
        # Without a result, a checkpoint or a trajectory of an evaluation the run starts over, with the new code alone.
        if (self.finished or num_steps_done or self._evaluated) and not self._config.run.accept_code_changes:
            return in_use
        return {name: entry for name, entry in in_use.items() if not name.startswith(EDITABLE)}
