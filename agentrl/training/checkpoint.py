"""Checkpoints of a sharded model and its optimiser, which load on any number of ranks.

Every rank writes its part into one folder (`torch.distributed.checkpoint`), on disk or in any store that fsspec knows. A
`CheckpointWriter` copies the state, which is quick, and writes the copy while training goes on. The folder is complete when
the writers of all ranks are done; committing it is the caller's task.
"""

import io
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecReader, FsspecWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from agentrl.errors import CheckpointError, DamagedCheckpointError

StorageT = TypeVar("StorageT", FsspecReader, FsspecWriter)


class CheckpointWriter:
    """Background writer of this rank's part of checkpoints, one at a time; every rank must make the same calls."""

    def __init__(self) -> None:
        """Form a group of all ranks, separate from that of the update's collectives."""
        self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        self._url = ""
        self._written: Future[Any] | None = None

    def begin(
        self, url: str, model: nn.Module, optimiser: torch.optim.Optimizer, *, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Copy trained weights, the optimiser's state and torch's generators, and start writing; training may then change them.

        `url` is an empty or new folder: a path, or a URL such as `s3://bucket/run/step_000010/actor`. `extra` is further state
        that `load_checkpoint` returns.

        Raises:
            CheckpointError: the previous checkpoint could not be written.
        """
        self.wait()
        state = _state(model, optimiser) | {
            "generator": {str(dist.get_rank()): _generators()},
            "extra": dict(extra or {}),
        }
        on_disk = isinstance(url_to_fs(url)[0], LocalFileSystem)
        writer = _with_diagnosis(FsspecWriter(url, sync_files=on_disk), url)
        self._url = url
        written = state_dict_saver.async_save(state, storage_writer=writer, process_group=self._group)
        self._written = cast(Future[Any], written)

    def is_done(self) -> bool:
        """Return True once the checkpoint is written; does not wait.

        Raises:
            CheckpointError: this rank or another one could not write it.
        """
        if self._written is not None and not self._written.done():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Wait until the checkpoint is written; raises as `is_done` does."""
        written, self._written = self._written, None
        if written is None:
            return
        if (error := written.exception()) is not None:
            raise CheckpointError(
                f"checkpoint {self._url}: not written: {_one_line(error)}. The previous one stays valid; check free "
                "space and permissions there"
            ) from error


def load_checkpoint(url: str, model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Load a checkpoint into a model and an optimiser of the same kind, and return its `extra`; every rank must call it.

    A rank beyond those that wrote it keeps its generators.

    Raises:
        DamagedCheckpointError: a file of it is missing or damaged.
        CheckpointError: it cannot be read, or is that of another model.
    """
    reader, rank = _with_diagnosis(FsspecReader(url), url), str(dist.get_rank())
    keys = _contents(reader, url)
    state = _state(model, optimiser)
    state["extra"] = {key.removeprefix("extra."): None for key in keys if key.startswith("extra.")}
    if any(key.startswith(f"generator.{rank}.") for key in keys):
        state["generator"] = {rank: _generators()}
    _load(state, reader, url)
    # Frozen weights are not in it, and stay as they are.
    options = StateDictOptions(strict=all(weight.requires_grad for weight in model.parameters()))
    set_state_dict(
        model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"], options=options
    )
    if "generator" in state:
        torch.set_rng_state(state["generator"][rank]["cpu"])
        if "cuda" in state["generator"][rank]:
            torch.cuda.set_rng_state(state["generator"][rank]["cuda"])
    return state["extra"]


def load_weights(url: str, model: nn.Module, *, trained_only: bool = False) -> None:
    """Load only the weights of a checkpoint, as `load_checkpoint` does; without a process group this process reads all of them.

    `trained_only` leaves frozen weights as they are, which a checkpoint does not hold.
    """
    reader = _with_diagnosis(FsspecReader(url), url)
    _contents(reader, url)
    weights = get_model_state_dict(model)
    if trained_only:
        weights = _trained(weights, model)
    _load({"model": weights}, reader, url)
    set_model_state_dict(model, weights, options=StateDictOptions(strict=not trained_only))


def first_difference(left: str, right: str) -> str | None:
    """Return the name of the first entry in which two checkpoints differ, torch's generators apart; None if none does."""
    entries, others = _entries(left), _entries(right)
    for name in sorted(entries.keys() | others.keys()):
        if name not in entries or name not in others or not _equal(entries[name], others[name]):
            return name
    return None


def _entries(url: str) -> dict[str, Any]:
    reader = _with_diagnosis(FsspecReader(url), url)
    contents = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else None
        for name, entry in contents.items()
        if not name.startswith("generator.")
    }
    _load(state, reader, url)
    return state


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return left == right


def _state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimiser)
    return {"model": _trained(weights, model), "optimiser": moments}


def _trained(weights: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return the weights that are not frozen."""
    parameters = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in parameters if not parameter.requires_grad}
    return {name: weight for name, weight in weights.items() if name not in frozen}


def _contents(reader: FsspecReader, url: str) -> list[str]:
    """Return the names of a checkpoint's entries; of a damaged one torch's loading would print the traceback."""
    try:
        return list(reader.read_metadata().state_dict_metadata)
    except OSError as error:
        raise CheckpointError(f"checkpoint {url}: cannot be read: {type(error).__name__}: {error}") from error


def _load(state: dict[str, Any], reader: FsspecReader, url: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is")  # one process is enough to read
            state_dict_loader.load(state, storage_reader=reader)
    except CheckpointException as error:  # not a subclass of `Exception`
        for failure, _ in error.failures.values():
            if isinstance(failure, DamagedCheckpointError):
                raise failure from error
        raise CheckpointError(f"checkpoint {url}: cannot be read: {_one_line(error)}") from error


class _DiagnosingFiles(FileSystem):
    """Files of a checkpoint, on disk or in a store; reading a missing or damaged one raises DamagedCheckpointError."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        url, _, name = os.fspath(path).rpartition("/")
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except Exception as error:
            if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
                # After a failed write torch closes its archive, and that error hides the cause, such as a full disk.
                raise error.__context__ from None
            if "r" not in mode or not _means_damage(name, error):
                raise
            # `.metadata` pickles classes of torch, which another version may have elsewhere.
            written_by = "torch" if isinstance(error, AttributeError | ImportError) else ""
            raise DamagedCheckpointError.of(url, name, error, written_by=written_by) from error


def _means_damage(name: str, error: Exception) -> bool:
    """Return True if reading a damaged file raises this; a store that is out of reach raises other exceptions."""
    if isinstance(error, RuntimeError):
        return "PytorchStreamReader" in str(error)
    if name == ".metadata":  # a damaged pickle may raise anything
        return isinstance(error, FileNotFoundError) or not isinstance(error, OSError | MemoryError)
    return isinstance(error, FileNotFoundError | EOFError | pickle.UnpicklingError | UnicodeDecodeError)


def _with_diagnosis(storage: StorageT, url: str) -> StorageT:
    storage.fs = _DiagnosingFiles()
    storage.path = storage.fs.init_path(url)
    return storage


def _generators() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _one_line(error: BaseException) -> str:
    """Return the cause, without the tracebacks that torch adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
