"""The checkpoints of a run: folders on disk, or in any store that fsspec knows.

    config.yaml             whose checkpoints these are
    inputs.json             digests of the data and tool files and of the models of that run
    writer                  a word of the start that may write here; each start writes its own
    step_000010/
    ├── writer              the word of the start that began it; removed first, and without it the folder is a leftover
    ├── actor/              a sharded checkpoint (`agentrl.training.checkpoint`)
    ├── rollouts/           what was rolled out and not yet trained on
    ├── pass_rates.json     how often each prompt was solved
    └── state.json          written last, at one stroke, with the same word: with it the folder counts, else it is a leftover

A store of objects has no folders that could be renamed, so the last file decides everywhere. Nor has it locks, so a second run
on the same folder takes it over: the older one is refused, and a last file of it that comes late names the wrong word.
"""

import functools
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson
from fsspec.implementations.local import LocalFileSystem

from agentrl.checkpoints.object_store import open_store, refuse_missing_bucket
from agentrl.errors import UNDECODABLE, CheckpointError, DamagedCheckpointError

_KEY = "checkpoint.dir"
_STATE = "state.json"
_OWNER = "config.yaml"
_INPUTS = "inputs.json"
_WRITER = "writer"
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
_FOLDER_NAME = re.compile(r"step_(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The driver's part of a checkpoint. `step` counts the actor's updates."""

    step: int = 0
    prompts_taken: int = 0
    """Prompts started since the beginning: the position in the data set."""
    stage_position: int = 0
    """Position in the data at which the current stage began."""
    empty_batches: int = 0
    """Batches without a learning signal so far; they count as no step."""
    accuracy: float | None = None
    """Accuracy on the held-out prompts after update `step`; None if not measured."""


def by_accuracy(states: Sequence[RunState]) -> list[RunState]:
    """Return the states with a measured accuracy, the highest last; of equal ones the newer one later."""
    measured = [state for state in states if state.accuracy is not None]
    return sorted(measured, key=lambda state: (state.accuracy, state.step))


def lost_reference(url: str, problem: str) -> DamagedCheckpointError:
    """Return the error for a missing or damaged checkpoint that is a reference; removing it does not help."""
    reason = f"{problem}, and holds the reference of this stage and of those after it (`stages`, `update_reference`)"
    return DamagedCheckpointError(
        f"checkpoint {url} {reason}. Put the whole folder back, or begin anew in another `run.dir`", reason=reason
    )


def _store_errors(
    method: Callable[Concatenate[Any, ParamsT], ResultT],
) -> Callable[Concatenate[Any, ParamsT], ResultT]:
    """Convert errors of the store into a `CheckpointError` that names it."""

    @functools.wraps(method)
    def wrapper(self: "CheckpointStore", *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            # The packages of stores raise classes of their own beside these two (the second where one can only read); any other
            # built-in one is a bug.
            is_own = type(error).__module__.partition(".")[0] in ("builtins", "agentrl")
            if is_own and not isinstance(error, OSError | NotImplementedError):
                raise
            raise CheckpointError(
                f"{_KEY}: {self.url} cannot be used: {type(error).__name__}: {' '.join(str(error).split())}. Look at "
                "the address, the keys, the permissions and the room there; the same command resumes from its last checkpoint"
            ) from error

    return wrapper


class CheckpointStore:
    """The folder of the checkpoints of one run.

    Every method that reaches it raises CheckpointError where it cannot be reached, read or written, and
    DamagedCheckpointError where a folder that counts is not whole: to pass it over would lose its steps unnoticed.
    """

    def __init__(self, url: str, *, references: Mapping[int, float] | None = None) -> None:
        """Name the folder; nothing is looked at yet.

        Args:
            url: a path, or a URL such as `s3://bucket/runs/demo`; addresses and keys of a store come from the environment.
            references: see `references_of`.

        Raises:
            ConfigError: see `open_store`.
        """
        self._files, self._root = open_store(url, key=_KEY)
        self.url = url.rstrip("/")
        """Path or URL of the folder."""
        self._references = references or {}
        self._on_disk = isinstance(self._files, LocalFileSystem)
        self._word = b""  # until this store takes the folder over, which one that only reads never does

    @_store_errors
    def owner(self) -> bytes | None:
        """Return what `claim` wrote: the config of the run whose checkpoints these are."""
        return self._content(f"{self._root}/{_OWNER}")

    @_store_errors
    def inputs(self) -> bytes | None:
        """Return what `claim` wrote: the digests of what that run reads."""
        return self._content(f"{self._root}/{_INPUTS}")

    @_store_errors
    def claim(self, config: bytes, inputs: bytes) -> None:
        """Write down whose checkpoints these are, and what that run reads.

        Raises:
            ConfigError: there is no such bucket.
        """
        self._make_root()
        self._write(f"{self._root}/{_INPUTS}", inputs)
        self._write(f"{self._root}/{_OWNER}", config)

    @_store_errors
    def take_over(self) -> None:
        """Let this store alone write here from now on: one that another run still has is refused at its next checkpoint.

        Raises:
            ConfigError: there is no such bucket.
        """
        self._make_root()
        self._word = uuid.uuid4().hex.encode()
        self._write(f"{self._root}/{_WRITER}", self._word)

    def url_of(self, step: int) -> str:
        """Return the URL of the checkpoint of `step`, which need not exist."""
        return f"{self.url}/{_name(step)}"

    def latest(self) -> RunState | None:
        """Return the state of the newest checkpoint that counts."""
        states = self.states()
        return states[-1] if states else None

    @_store_errors
    def states(self) -> list[RunState]:
        """Return the states of all checkpoints that count, oldest first."""
        states = (self._state(step) for step in self._steps())
        return [state for state in states if state is not None]

    @_store_errors
    def state(self, step: int) -> RunState | None:
        """Return the state of the checkpoint of `step`; None where there is none that counts."""
        self._files.invalidate_cache()
        return self._state(step)

    @_store_errors
    def begin(self, step: int) -> str:
        """Return the URL of an empty folder to write a checkpoint into; `commit` makes it count.

        Raises:
            CheckpointError: another store has taken over.
        """
        self._refuse_if_taken_over()
        self._remove(step)
        if self._on_disk:
            self._files.makedirs(self._path(step))
        self.put(step, _WRITER, self._word)
        return self.url_of(step)

    @_store_errors
    def put(self, step: int, name: str, content: bytes) -> None:
        """Write a file into the folder of a checkpoint, whole or not at all; refused as `begin` is."""
        self._refuse_if_taken_over()
        self._write(f"{self._path(step)}/{name}", content)

    @_store_errors
    def read(self, step: int, name: str, decode: Callable[[bytes], ResultT]) -> ResultT:
        """Return what `decode` makes of a file of a checkpoint that counts.

        Raises:
            DamagedCheckpointError: it is not there, or `decode` cannot read it.
        """
        with self._whole(step, name, FileNotFoundError):
            content = self._files.cat_file(f"{self._path(step)}/{name}")
        with self._whole(step, name, *UNDECODABLE):
            return decode(content)

    @_store_errors
    def put_folder(self, step: int, name: str, source: Path) -> None:
        """Copy the files of a folder of this machine into the folder of a checkpoint; refused as `begin` is."""
        self._refuse_if_taken_over()
        self._files.makedirs(f"{self._path(step)}/{name}", exist_ok=True)
        for file in source.iterdir():
            self._files.put_file(str(file), f"{self._path(step)}/{name}/{file.name}")

    @_store_errors
    def fetch_folder(self, step: int, name: str, target: Path) -> None:
        """Copy what `put_folder` put into a folder of this machine."""
        target.mkdir(parents=True)
        with self._whole(step, name, FileNotFoundError):
            for path in self._files.ls(f"{self._path(step)}/{name}", detail=False):
                self._files.get_file(path, str(target / path.rpartition("/")[2]))

    @_store_errors
    def commit(self, state: RunState) -> None:
        """Make the checkpoint of `state.step` count, after everything else in its folder is on the disk.

        Raises:
            CheckpointError: another store has taken over.
        """
        self._refuse_if_taken_over()
        if self._on_disk:
            for file in [*Path(self._path(state.step)).rglob("*"), Path(self._path(state.step)), Path(self._root)]:
                sync(file)
        self.put(state.step, _STATE, orjson.dumps(asdict(state) | {_WRITER: self._word.decode()}))

    @_store_errors
    def prune(self, *, keep_last: int, keep_best: int, pinned: Set[int] = frozenset()) -> None:
        """Delete all checkpoints but the newest, those with the highest accuracy (the newer of equals), and `pinned` steps.

        Raises:
            CheckpointError: another store has taken over.
        """
        self._refuse_if_taken_over()
        states = self.states()
        best = by_accuracy(states)[-keep_best:] if keep_best else []
        kept = {state.step for state in [*states[-keep_last:], *best]} | pinned
        for state in states:
            if state.step not in kept:
                self._remove(state.step)

    @_store_errors
    def clear_leftovers(self) -> None:
        """Delete the folders that do not count: what a killed run was writing or deleting."""
        for step in self._steps():
            if self._state(step) is None:
                self._remove(step)

    def _make_root(self) -> None:
        refuse_missing_bucket(self._files, self._root, url=self.url, key=_KEY)
        self._files.makedirs(self._root, exist_ok=True)

    def _steps(self) -> list[int]:
        """Return the steps of all folders in order, whether they count or not."""
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        matches = [_FOLDER_NAME.fullmatch(path.rstrip("/").rpartition("/")[2]) for path in paths]
        return sorted(int(match[1]) for match in matches if match)

    def _state(self, step: int) -> RunState | None:
        """Return what the last file of a folder says; None where it does not count, or is gone by now."""
        content = self._content(f"{self._path(step)}/{_STATE}")
        begun_by = self._content(f"{self._path(step)}/{_WRITER}")
        if content is None or begun_by is None:
            return None
        with self._whole(step, _STATE, *UNDECODABLE):
            saved = orjson.loads(content)
            word = str(saved[_WRITER]).encode()
            state = RunState(**{item.name: saved[item.name] for item in fields(RunState)})
        if word == begun_by:
            return state
        with self._whole(step, _WRITER, *UNDECODABLE):
            uuid.UUID(begun_by.decode())  # else it is not even the word of another start, whose last file came late
        return None

    @contextmanager
    def _whole(self, step: int, name: str, *errors: type[Exception]) -> Iterator[None]:
        """Take `errors` for what a file of a checkpoint that counts raises when it is not what was written."""
        try:
            yield
        except errors as error:
            damaged = DamagedCheckpointError.of(self.url_of(step), name, error)
            if self._is_missed(step):
                damaged = lost_reference(self.url_of(step), damaged.reason)
            raise damaged from error

    def _is_missed(self, step: int) -> bool:
        """Return whether a run that goes on from its newest checkpoint needs that of `step` besides."""
        newer = [later for later in self._steps() if later > step and self._state(later) is not None]
        return bool(newer) and newer[-1] < self._references.get(step, 0)

    def _remove(self, step: int) -> None:
        folder = self._path(step)
        self._files.invalidate_cache()
        if self._files.exists(folder):
            if self._files.exists(f"{folder}/{_WRITER}"):
                # First: neither a kill from here on nor the last file of an older run may leave half that counts.
                self._files.rm_file(f"{folder}/{_WRITER}")
            with suppress(FileNotFoundError):  # a folder of an object store is gone with the last file in it
                self._files.rm(folder, recursive=True)

    def _refuse_if_taken_over(self) -> None:
        word = self._content(f"{self._root}/{_WRITER}")
        if word is None and self._word:
            raise CheckpointError(f"{_KEY}: {self.url} has been removed or emptied while this run was going on")
        if (word or b"") != self._word:
            raise CheckpointError(
                f"{_KEY}: another run has taken over {self.url}; this one stops writing, as two cannot share it. "
                "Let one of the two end, and start the other with a `checkpoint.dir` of its own if both shall go on"
            )

    def _content(self, path: str) -> bytes | None:
        try:
            return self._files.cat_file(path)
        except FileNotFoundError:
            return None

    def _write(self, path: str, content: bytes) -> None:
        if self._on_disk:
            write_whole(Path(path), content)
        else:
            self._files.pipe_file(path, content)  # stores of objects put one at one stroke

    def _path(self, step: int) -> str:
        return f"{self._root}/{_name(step)}"


def write_whole(file: Path, content: bytes) -> None:
    """Write a file of this machine at one stroke, and see that it is on the disk."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    sync(partial)
    partial.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """See that a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(step: int) -> str:
    return f"step_{step:06d}"
