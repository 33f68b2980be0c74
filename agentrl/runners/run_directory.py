"""What a run leaves on disk, and how the same command goes on from it.

runs/demo/
├── config.yaml             the resolved config; a run goes on only with the same one
├── inputs.json             digests of the data and tool files, which must stay the same too
├── metrics.jsonl           one object per step
├── tensorboard/  run.log  reward_curve.png
├── trajectories/           every trajectory, one file per step
├── checkpoints/step_000010/   written beside, then renamed: it is there whole, or not at all
├── policy/                 the trained policy as a Hugging Face folder
└── result.json             written last: the run is finished

An evaluation leaves the same less checkpoints, policy and curve; its figures are in `result.json` too.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson
import yaml

from agentrl.config.flatten import flatten
from agentrl.config.schema import RunConfig
from agentrl.errors import ConfigError
from agentrl.observability.text_curve import text_curve
from agentrl.trajectories.store import TrajectoryStore

_BEFORE_CONFIG = {".lock", "inputs.json", "inputs.json.partial", "config.yaml.partial"}
"""What a start that died early may have left; the config is written after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where the driver is, beside what the actor keeps itself. `step` counts the actor's updates."""

    step: int = 0
    prompts_taken: int = 0
    """Prompts started since the beginning: the position in the data set."""
    empty_batches: int = 0
    """Batches without a learning signal so far; they count as no step."""


class RunDirectory:
    """The folder of one run."""

    def __init__(self, config: RunConfig) -> None:
        """Name the folder; `open` looks at it."""
        assert config.run.dir is not None  # `load_run_config` has filled it
        self.path = Path(config.run.dir)
        self._config = config

    def open(self, inputs: Mapping[str, Path]) -> None:
        """Start a new run here, or check that the run that is here may go on.

        Args:
            inputs: the files that the run reads, by the key that names them; their content must not change in mid-run.

        Raises:
            ConfigError: the folder holds a run of another config or of other inputs (the keys are named), or something
                else, or a run that is alive.
        """
        saved = self.path / "config.yaml"
        try:
            if (
                not saved.is_file()
                and self.path.exists()
                and any(e.name not in _BEFORE_CONFIG for e in self.path.iterdir())
            ):
                raise ConfigError(f"run.dir: {self.path} is not empty and holds no run. Name another folder.")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run.dir: {self.path} cannot be used: {error.strerror}. Name another folder.") from error
        self._lock()
        if saved.is_file():
            self._refuse_changes(saved)
            self._refuse_other_inputs(inputs)
        digests = {key: _digest(file) for key, file in inputs.items()}
        _write_whole(self.path / "inputs.json", orjson.dumps(digests))
        _write_whole(saved, yaml.safe_dump(asdict(self._config), sort_keys=False, allow_unicode=True).encode())
        for leftover in self._checkpoints.glob("*.partial"):
            shutil.rmtree(leftover)

    def close(self) -> None:
        """Leave the folder to another process."""
        self._lock_file.close()

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self._result.is_file()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run as finished, with what came of it as plain data."""
        _write_whole(self._result, orjson.dumps(result, option=orjson.OPT_INDENT_2))

    def result(self) -> dict[str, Any]:
        """Return what came of the finished run."""
        return orjson.loads(self._result.read_bytes())

    def describe_result(self) -> str:
        """Return what a person wants to see at the end: the curve, and where everything is."""
        return (
            f"{text_curve(self.metrics)}\n"
            f"reward curve:   {self.reward_curve}\n"
            f"trained policy: {self.policy}\n"
            f"metrics:        {self.metrics}"
        )

    def latest_checkpoint(self) -> tuple[Path, RunState] | None:
        """Return the newest whole checkpoint: its folder for the actor, and the driver's state."""
        folders = self._whole_checkpoints()
        if not folders:
            return None
        state = orjson.loads((folders[-1] / "state.json").read_bytes())
        return folders[-1], RunState(**{item.name: state[item.name] for item in fields(RunState)})

    def begin_checkpoint(self, step: int) -> Path:
        """Return a folder to write a checkpoint into; `commit_checkpoint` makes it count."""
        folder = self._checkpoints / f"step_{step:06d}.partial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def commit_checkpoint(self, state: RunState, *, keep_last: int) -> None:
        """Make the checkpoint of `state.step` the newest, at one stroke, and delete old ones."""
        partial = self._checkpoints / f"step_{state.step:06d}.partial"
        _write_whole(partial / "state.json", orjson.dumps(asdict(state)))
        for file in partial.rglob("*"):
            _sync(file)
        whole = partial.with_suffix("")
        shutil.rmtree(whole, ignore_errors=True)  # the same step again, after a resume from an older one
        partial.rename(whole)
        _sync(self._checkpoints)
        for old in self._whole_checkpoints()[:-keep_last]:
            shutil.rmtree(old)

    @property
    def trajectories(self) -> TrajectoryStore:
        """The record of every trajectory."""
        return TrajectoryStore(self.path)

    @property
    def metrics(self) -> Path:
        """One JSON object per step."""
        return self.path / "metrics.jsonl"

    @property
    def reward_curve(self) -> Path:
        """The picture of the run."""
        return self.path / "reward_curve.png"

    @property
    def policy(self) -> Path:
        """The trained policy, once the run is finished."""
        return self.path / "policy"

    @property
    def _result(self) -> Path:
        return self.path / "result.json"

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _whole_checkpoints(self) -> list[Path]:
        return sorted(folder for folder in self._checkpoints.glob("step_*") if folder.suffix != ".partial")

    def _lock(self) -> None:
        """Take the folder for this process; the kernel gives it back however the process ends."""
        try:
            self._lock_file = (self.path / ".lock").open("w")
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"run.dir: another process is running in {self.path}. Wait for it, or name another."
            ) from error
        except OSError as error:
            raise ConfigError(f"run.dir: {self.path} cannot be used: {error.strerror}. Name another folder.") from error

    def _refuse_other_inputs(self, inputs: Mapping[str, Path]) -> None:
        now = {key: _digest(file) for key, file in inputs.items()}
        saved = self.path / "inputs.json"
        before = orjson.loads(saved.read_bytes()) if saved.is_file() else now
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            files = ", ".join(f"`{key}` ({inputs[key]})" for key in changed)
            raise ConfigError(
                f"run.dir: {self.path} holds a run that read other content from {files}, so its place in the data means "
                "nothing here. Put the old files back, or name another `run.dir`."
            )

    def _refuse_changes(self, saved: Path) -> None:
        # Read as plain YAML: what the user escaped, such as `\\${x}` in a prompt, is a literal by now.
        before, now = flatten(yaml.safe_load(saved.read_text(encoding="utf-8"))), flatten(asdict(self._config))
        changed = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
        if changed:
            details = ", ".join(f"`{key}` was {before.get(key)!r} and is {now.get(key)!r}" for key in changed)
            raise ConfigError(
                f"run.dir: {self.path} holds a run of another config: {details}. "
                "Go on with the old values, or name another `run.dir`."
            )


def _write_whole(file: Path, content: bytes) -> None:
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    _sync(partial)
    partial.replace(file)
    _sync(file.parent)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
