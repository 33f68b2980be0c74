"""The folder of a resumable run: its lock, its config and inputs, its checkpoints, its result.

`agentrl.run.directory` shows its files.
"""

import contextlib
import fcntl
import math
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import orjson
import yaml

from agentrl.checkpoints.atomic_folder import PolicyFolder
from agentrl.checkpoints.store import CheckpointStore, write_whole
from agentrl.config.schema.run import RunConfig
from agentrl.config.schema.sft import SftConfig
from agentrl.errors import ConfigError
from agentrl.run.fingerprints import EDITABLE, Content, digest_of
from agentrl.run.resume_rules import Changes, refuse_changes

EXPORTED = "exported"
_PROBE_BYTES = 1 << 20
_LOCK_TRIES, _LOCK_PAUSE_S = 10, 0.05
_BEFORE_CONFIG = {".lock", "inputs.json", "inputs.json.partial", "config.yaml.partial", EXPORTED}
"""Files that a start which died before it wrote the config may have left, or an export of checkpoints elsewhere."""


class ResumableFolder(ABC):
    """Base of every kind of run's folder; a subclass says which changes of the config prevent resuming."""

    def __init__(self, config: RunConfig | SftConfig, *, num_steps: int) -> None:
        """Name the folder of a resolved config, finished after `num_steps` updates; `open` looks at it."""
        assert config.run.dir is not None  # the loader of the config has filled it
        self.path = Path(config.run.dir)
        self.checkpoints = CheckpointStore(config.checkpoint.dir or str(self.path / "checkpoints"))
        self.policy = PolicyFolder(self.path / "policy")
        """The trained policy, once the run is finished."""
        self.metrics = self.path / "metrics.jsonl"
        self._saved_config = self.path / "config.yaml"
        self._saved_digests = self.path / "inputs.json"
        self._last_checkpoint = self.path / "last_checkpoint.json"
        self._result = self.path / "result.json"
        self._settings = config
        self._num_steps = num_steps
        self._inputs: dict[str, tuple[Content, str]] = {}

    @abstractmethod
    def _changes(self, saved: bytes, *, num_steps_done: int) -> Changes:
        """Return what differs from a saved config after so many steps, and must not."""

    def _inputs_in_use(self, saved: bytes, *, num_steps_done: int) -> dict[str, tuple[Content, str]]:
        """Return the inputs that a run with that saved config has read by then."""
        return self._inputs

    @property
    def _is_new(self) -> bool:
        return not self._saved_config.is_file()

    @property
    def finished(self) -> bool:
        """True if `result.json` holds all steps of the config, which may have been given more since."""
        if self._is_new or not self._result.is_file():  # without a config the result may be of anything
            return False
        return self.result().get("num_steps", math.inf) >= self._num_steps

    def open(self, inputs: Mapping[str, Content], *, trains: bool) -> None:
        """Start a new run in the folder, or check that the existing run may resume; a training claims its checkpoints.

        An existing run is changed only after all checks have passed. The next start can handle the state that a killed start
        leaves: `result.json` contains its number of steps.

        Args:
            inputs: what the run reads, by the key that names it; its content must not change during the run.
            trains: whether the run resumes from its checkpoints, which must then exist unless all steps are done.

        Raises:
            ConfigError: the folder holds a run with another config or other inputs (the keys are named), something else, or a
                running run; its checkpoints are missing; or `checkpoint.dir` holds another run's. The existing run is then
                unchanged.
            CheckpointError: `checkpoint.dir` cannot be used, or a committed checkpoint is damaged.
        """
        self._lock_folder()
        self._refuse_other_run_here(inputs, trains=trains)
        if trains and not self.finished:
            self.refuse_lost_checkpoints()
            if self._is_new:
                self._write_down()  # first: a folder with checkpoints but without a config is not recognised as a run's
            self._claim_checkpoints()
        self._write_down()
        if not self.finished:
            self._result.unlink(missing_ok=True)  # the run gets more steps

    def try_out(self, inputs: Mapping[str, Content]) -> str:
        """Test whether the folder can be written, and leave it unchanged; arguments and errors as in `open` for a training.

        Returns:
            A line for the user: whether a run would start or resume in the folder.
        """
        existing = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=existing) as probe:
                probe.write(bytes(_PROBE_BYTES))
        except OSError as error:
            raise ConfigError(
                f"run.dir: {existing} cannot be written: {error.strerror}. Name another folder."
            ) from error
        if self.path.exists():
            self._refuse_foreign()
        num_steps_done = self._refuse_other_run_here(inputs, trains=True)
        if self.finished:
            return f"run.dir: {self.path} holds this run, finished; the command would print its result"
        outlook = "begin there" if self._is_new else f"go on after step {num_steps_done}"
        return f"run.dir: {self.path} can be written; a run would {outlook}"

    def _refuse_other_run_here(self, inputs: Mapping[str, Content], *, trains: bool) -> int:
        """Compute the inputs' digests, and refuse to resume a run with other inputs or another config; returns its steps."""
        self._inputs = {key: (path, digest_of(path, key=key)) for key, path in inputs.items()}
        if self._is_new:
            return 0
        num_steps_done = self._num_steps_done() if trains else 0
        self._refuse_other_run(
            self._saved_config.read_bytes(),
            content_of(self._saved_digests),
            where=f"run.dir: {self.path} holds",
            key="run.dir",
            num_steps_done=num_steps_done,
        )
        return num_steps_done

    def _lock_folder(self) -> None:
        """Make the folder and lock it for this process; the kernel releases the lock when the process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign()
            self._lock_file = (self.path / ".lock").open("w")
            _lock(self._lock_file)
        except BlockingIOError as error:
            raise ConfigError(
                f"run.dir: another process is running in {self.path}. Wait for it, or name another."
            ) from error
        except OSError as error:
            raise ConfigError(f"run.dir: {self.path} cannot be used: {error.strerror}. Name another folder.") from error

    def _refuse_foreign(self) -> None:
        if self._is_new and any(entry.name not in _BEFORE_CONFIG for entry in self.path.iterdir()):
            raise ConfigError(f"run.dir: {self.path} is not empty and holds no run. Name another folder.")

    def close(self) -> None:
        """Leave the folder to another process."""
        self._lock_file.close()

    def _write_down(self) -> None:
        write_whole(self._saved_digests, self._encoded_inputs())
        write_whole(self._saved_config, self._encoded_config())

    def _claim_checkpoints(self) -> None:
        """Take the folder of the checkpoints, if it is this run's own, and remove what a killed one left half written.

        It may be that of a run whose `run.dir` was elsewhere. An older run that is still alive may write no more there.
        """
        if self._settings.checkpoint.dir is not None:
            owner = self.checkpoints.owner()
            if owner is not None:
                self._refuse_other_run(
                    owner,
                    self.checkpoints.inputs(),
                    where=f"checkpoint.dir: {self._settings.checkpoint.dir} holds the checkpoints of",
                    key="checkpoint.dir",
                    num_steps_done=self._num_steps_saved(),
                )
            self.checkpoints.claim(self._encoded_config(), self._encoded_inputs())
        self.checkpoints.take_over()  # before anything is cleared: an older run that lives may be writing it
        self.checkpoints.clear_leftovers()
        latest = self.checkpoints.latest()
        if latest is not None:
            self.note_checkpoint(latest.step)  # of a run whose `run.dir` was elsewhere

    def note_checkpoint(self, step: int) -> None:
        """Write down that the checkpoint of `step` is committed."""
        write_whole(self._last_checkpoint, orjson.dumps({"step": step}))

    def refuse_lost_checkpoints(self) -> None:
        """Check that existing checkpoints are not missing: without them the run would erase its results and restart.

        Raises:
            ConfigError: there are none.
            CheckpointError: `checkpoint.dir` cannot be used.
        """
        if not self._last_checkpoint.is_file():
            return
        if self.checkpoints.latest() is None:
            step = orjson.loads(self._last_checkpoint.read_bytes())["step"]
            raise ConfigError(
                f"checkpoint.dir: {self.checkpoints.url} has no checkpoint, but the run in {self.path} had written that of "
                f"step {step} there. Mount it or put it back, so that the run goes on; or begin anew in another `run.dir`."
            )

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run as finished, with its result as plain data."""
        write_whole(self._result, orjson.dumps(result, option=orjson.OPT_INDENT_2))

    def result(self) -> dict[str, Any]:
        """Return the result of the finished run."""
        return orjson.loads(self._result.read_bytes())

    def _encoded_inputs(self) -> bytes:
        # A finished run does not ask its MCP servers, and may be given more steps.
        saved = content_of(self._saved_digests) if self.finished else None
        return orjson.dumps(orjson.loads(saved or b"{}") | {name: digest for name, (_, digest) in self._inputs.items()})

    def _encoded_config(self) -> bytes:
        return yaml.safe_dump(self._settings.model_dump(), sort_keys=False, allow_unicode=True).encode()

    def _num_steps_done(self) -> int:
        """Return the number of committed steps; a finished run need not have its checkpoints."""
        if self._result.is_file():
            return self.result().get("num_steps", 0)
        return self._num_steps_saved()

    def _num_steps_saved(self) -> int:
        latest = self.checkpoints.latest()
        return 0 if latest is None else latest.step

    def _refuse_other_run(
        self, config: bytes, inputs: bytes | None, *, where: str, key: str, num_steps_done: int
    ) -> None:
        """Refuse to resume a run whose config or input digests differ from those of this run."""
        refuse_changes(self._changes(config, num_steps_done=num_steps_done), where=where, key=key)
        read = self._inputs_in_use(config, num_steps_done=num_steps_done)
        refuse_other_inputs(read, inputs, where=where, key=key)


def refuse_other_inputs(
    inputs: Mapping[str, tuple[Content, str]], saved: bytes | None, *, where: str, key: str
) -> None:
    """Refuse inputs whose digests differ from the saved ones; inputs without a saved digest are accepted."""
    before = {} if saved is None else orjson.loads(saved)
    changed = [name for name, (_, digest) in inputs.items() if before.get(name, digest) != digest]
    if changed:
        named = ", ".join(_named(name, inputs[name][0]) for name in changed)
        is_editable = all(name.startswith(EDITABLE) for name in changed)
        accept = ", or go on with the new content by `run.accept_code_changes=true`" if is_editable else ""
        raise ConfigError(
            f"{where} a run that read other content from {named}, so what it has made does not go with what is there now. "
            f"Put the old content back, or name another `{key}`{accept}."
        )


def _named(name: str, content: Content) -> str:
    return f"`{name}` ({content})" if isinstance(content, Path) else f"`{name}`"


def content_of(file: Path) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    return file.read_bytes() if file.is_file() else None


def _lock(file: IO[str]) -> None:
    """Lock a file; a dashboard that looks whether the run lives holds it for an instant."""
    for _ in range(_LOCK_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_S)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
