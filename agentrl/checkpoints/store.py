"""The folder of a run's checkpoints, on disk or in any store that fsspec knows; `contents.py` shows what is in it.

An object store has no folders to rename, so the last file decides everywhere. It has no locks either, so a second run on the
same folder takes it over, and the older one is refused at its next write.
"""

import functools
import os
import re
import uuid
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson
from fsspec.implementations.local import LocalFileSystem

from agentrl.checkpoints.contents import INPUTS, OWNER, STATE, WRITER, RunState, by_accuracy
from agentrl.checkpoints.object_store import make_folder, open_store
from agentrl.errors import UNDECODABLE, CheckpointError, DamagedCheckpointError

_KEY = "checkpoint.dir"
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
_FOLDER_NAME = re.compile(r"step_(\d{6,})")


def _store_errors(
    method: Callable[Concatenate[Any, ParamsT], ResultT],
) -> Callable[Concatenate[Any, ParamsT], ResultT]:
    """Convert errors of the store into a `CheckpointError` that names it."""

    @functools.wraps(method)
    def wrapper(self: "CheckpointStore", *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            # Packages of stores raise classes of their own beside these two; any other built-in one is a bug.
            is_own = type(error).__module__.partition(".")[0] in ("builtins", "agentrl")
            if is_own and not isinstance(error, OSError | NotImplementedError):
                raise
            raise CheckpointError(
                f"{_KEY}: {self.url} cannot be used: {type(error).__name__}: {' '.join(str(error).split())}. Check the "
                "address, the keys, the permissions and the room there; the same command resumes from its last checkpoint"
            ) from error

    return wrapper


class CheckpointStore:
    """The folder of the checkpoints of one run.

    A checkpoint is `absent -> partial -> complete -> partial -> absent`; it is complete while it has `state.json`. The next
    start deletes what a kill has left partial.

    Every method that reaches it raises CheckpointError if it cannot be reached, read or written, or if another store has taken
    over and this one writes; and DamagedCheckpointError if a complete checkpoint is damaged, since skipping it would silently
    lose its steps.
    """

    def __init__(self, url: str) -> None:
        """Open the store at a path or a URL such as `s3://bucket/runs/demo` (see `open_store`); nothing is read yet."""
        self._files, self._root = open_store(url, key=_KEY)
        self.url = url.rstrip("/")
        self._on_disk = isinstance(self._files, LocalFileSystem)
        self._id = b""
        """Content of `writer` since `take_over`; a store that only reads has none."""

    @_store_errors
    def owner(self) -> bytes | None:
        """Return the config that `claim` wrote."""
        return self._content(f"{self._root}/{OWNER}")

    @_store_errors
    def inputs(self) -> bytes | None:
        """Return the digests that `claim` wrote."""
        return self._content(f"{self._root}/{INPUTS}")

    @_store_errors
    def claim(self, config: bytes, inputs: bytes) -> None:
        """Record the run whose checkpoints these are, with the digests of its inputs."""
        make_folder(self._files, self._root)
        self._write(f"{self._root}/{INPUTS}", inputs)
        self._write(f"{self._root}/{OWNER}", config)

    @_store_errors
    def take_over(self) -> None:
        """Make this store the only writer; that of another live run is refused at its next write."""
        make_folder(self._files, self._root)
        self._id = uuid.uuid4().hex.encode()
        self._write(f"{self._root}/{WRITER}", self._id)

    def url_of(self, step: int) -> str:
        """Return the URL of the checkpoint of `step`, which need not exist."""
        return f"{self.url}/step_{step:06d}"

    def latest(self) -> RunState | None:
        """Return the state of the newest complete checkpoint."""
        states = self.states()
        return states[-1] if states else None

    @_store_errors
    def states(self) -> list[RunState]:
        """Return the states of all complete checkpoints, oldest first."""
        states = (self.state(step) for step in self._steps())
        return [state for state in states if state is not None]

    @_store_errors
    def state(self, step: int) -> RunState | None:
        """Return the state of the checkpoint of `step`; None if there is no complete one."""
        content = self._content(f"{self._path(step)}/{STATE}")
        if content is None:
            return None
        with self._damage(step, STATE, *UNDECODABLE):
            saved = orjson.loads(content)
            return RunState(**{item.name: saved[item.name] for item in fields(RunState)})

    @_store_errors
    def begin(self, step: int) -> str:
        """Return the URL of an empty folder to write a checkpoint into; `commit` completes it."""
        self._refuse_if_taken_over()
        self._remove(step)
        if self._on_disk:
            self._files.makedirs(self._path(step))
        return self.url_of(step)

    @_store_errors
    def put(self, step: int, name: str, content: bytes) -> None:
        """Write a file into the folder of a checkpoint, whole or not at all."""
        self._refuse_if_taken_over()
        self._write(f"{self._path(step)}/{name}", content)

    @_store_errors
    def read(self, step: int, name: str, decode: Callable[[bytes], ResultT]) -> ResultT:
        """Return a decoded file of a complete checkpoint.

        Raises:
            DamagedCheckpointError: it does not exist, or `decode` cannot read it.
        """
        with self._damage(step, name, FileNotFoundError):
            content = self._files.cat_file(f"{self._path(step)}/{name}")
        with self._damage(step, name, *UNDECODABLE):
            return decode(content)

    @_store_errors
    def put_folder(self, step: int, name: str, source: Path) -> None:
        """Copy the files of a local folder into the folder of a checkpoint."""
        self._refuse_if_taken_over()
        make_folder(self._files, f"{self._path(step)}/{name}")
        for file in source.iterdir():
            self._files.put_file(str(file), f"{self._path(step)}/{name}/{file.name}")

    @_store_errors
    def fetch_folder(self, step: int, name: str, target: Path) -> None:
        """Copy a folder that `put_folder` wrote into a new local folder."""
        target.mkdir(parents=True)
        with self._damage(step, name, FileNotFoundError):
            for path in self._files.ls(f"{self._path(step)}/{name}", detail=False):
                self._files.get_file(path, str(target / path.rpartition("/")[2]))

    @_store_errors
    def commit(self, state: RunState) -> None:
        """Complete the checkpoint of `state.step`, after everything else in its folder is on the disk."""
        self._refuse_if_taken_over()
        folder = self._path(state.step)
        if self._on_disk:
            for file in [*Path(folder).rglob("*"), Path(folder), Path(self._root)]:
                sync(file)
        self._refuse_if_taken_over()  # the synchronisation may have taken minutes
        self._write(f"{folder}/{STATE}", orjson.dumps(asdict(state)))

    @_store_errors
    def prune(self, *, keep_last: int, keep_best: int, pinned: Set[int] = frozenset()) -> None:
        """Delete all checkpoints but the newest, those with the highest accuracy (the newer of equals), and `pinned` steps."""
        self._refuse_if_taken_over()
        states = self.states()
        best = by_accuracy(states)[-keep_best:] if keep_best else []
        kept = {state.step for state in [*states[-keep_last:], *best]} | pinned
        for state in states:
            if state.step not in kept:
                self._remove(state.step)

    @_store_errors
    def clear_leftovers(self) -> None:
        """Delete partial checkpoints, which a killed run was writing or deleting."""
        for step in self._steps():
            if self.state(step) is None:
                self._remove(step)

    def _remove(self, step: int) -> None:
        """Delete the checkpoint of a step, whole or partial."""
        self._files.invalidate_cache()
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path(step)}/{STATE}")  # first: half of a checkpoint must not stay complete
        with suppress(FileNotFoundError):  # an object store's folder disappears with its last file
            self._files.rm(self._path(step), recursive=True)

    def _steps(self) -> list[int]:
        """Return the steps of all folders in order, partial ones too."""
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        matches = [_FOLDER_NAME.fullmatch(path.rstrip("/").rpartition("/")[2]) for path in paths]
        return sorted(int(match[1]) for match in matches if match)

    @contextmanager
    def _damage(self, step: int, name: str, *errors: type[Exception]) -> Iterator[None]:
        """Convert `errors` into a `DamagedCheckpointError` that names the file."""
        try:
            yield
        except errors as error:
            raise DamagedCheckpointError.of(self.url_of(step), name, error) from error

    def _refuse_if_taken_over(self) -> None:
        writer = self._content(f"{self._root}/{WRITER}")
        if writer is None and self._id:
            raise CheckpointError(f"{_KEY}: {self.url} has been removed or emptied while this run was going on")
        if (writer or b"") != self._id:
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
            self._files.pipe_file(path, content)  # atomic in object stores

    def _path(self, step: int) -> str:
        return f"{self._root}/step_{step:06d}"


def write_whole(file: Path, content: bytes) -> None:
    """Write a local file atomically, and flush it to the disk."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    sync(partial)
    partial.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
