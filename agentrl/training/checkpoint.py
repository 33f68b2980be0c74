"""Checkpoints of a sharded model and its optimiser, which load on any number of ranks.

Every rank writes its part into one folder (`torch.distributed.checkpoint`), on disk or in any store that fsspec knows. A
`CheckpointWriter` copies the state first, which is quick, and writes the copy while training goes on. The folder is complete
when the writers of all ranks are done; making it count is the caller's part, and so are learning rates, a function of the
step.
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
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from agentrl.errors import CheckpointError, DamagedCheckpointError

_METADATA = ".metadata"
"""Where torch writes which tensors there are."""
StorageT = TypeVar("StorageT", FsspecReader, FsspecWriter)


class CheckpointWriter:
    """Writes this rank's part of one checkpoint after the other, behind the training; every rank must make the same calls."""

    def __init__(self) -> None:
        """Form a group of all ranks: what the writers tell each other must not come between the collectives of an update."""
        self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        self._url = ""
        self._written: Future[Any] | None = None

    def begin(
        self, url: str, model: nn.Module, optimiser: torch.optim.Optimizer, *, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Copy the state and start to write it; returns when training may change it.

        Args:
            url: an empty folder, or one that is not there: a path, or a URL such as `s3://bucket/run/step_000010/actor`.
            model: its weights that are trained are written, sharded as they are.
            optimiser: its state is written likewise, and the state of torch's generators.
            extra: what else belongs to the model, such as a coefficient that adapts; `load_checkpoint` returns it.

        Raises:
            CheckpointError: the checkpoint before this one could not be written.
        """
        self.wait()
        state = _state(model, optimiser) | {
            "generator": {str(dist.get_rank()): _generators()},
            "extra": dict(extra or {}),
        }
        on_disk = isinstance(url_to_fs(url)[0], LocalFileSystem)
        writer = _over_telling_files(FsspecWriter(url, sync_files=on_disk), url)
        self._url = url
        written = state_dict_saver.async_save(state, storage_writer=writer, process_group=self._group)
        self._written = cast(Future[Any], written)

    def is_done(self) -> bool:
        """Return whether all that was begun is written, without waiting for it.

        Raises:
            CheckpointError: it could not be written, by this rank or by another one.
        """
        if self._written is not None and not self._written.done():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Return when all that was begun is written; the errors are those of `is_done`."""
        written, self._written = self._written, None
        if written is None:
            return
        error = written.exception()
        if error is not None:
            raise CheckpointError(
                f"checkpoint {self._url}: not written: {_one_line(error)}. The one before it still counts; look at the "
                "room and the permissions there"
            ) from error


def load_checkpoint(url: str, model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Read what a `CheckpointWriter` wrote into a model and an optimiser of the same kind; every rank must call it.

    A rank that there was not when it was written keeps its generators.

    Returns:
        What was given as `extra`.

    Raises:
        DamagedCheckpointError: a file of it is missing, or is not what was written.
        CheckpointError: it cannot be read, or is that of another model.
    """
    reader, rank = _over_telling_files(FsspecReader(url), url), str(dist.get_rank())
    known = _contents(reader, url)
    state = _state(model, optimiser)
    state["extra"] = {key.removeprefix("extra."): None for key in known if key.startswith("extra.")}
    if any(key.startswith(f"generator.{rank}.") for key in known):
        state["generator"] = {rank: _generators()}
    _load(state, reader, url)
    # What is frozen is not there, and stays as it is.
    options = StateDictOptions(strict=all(weight.requires_grad for weight in model.parameters()))
    set_state_dict(
        model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"], options=options
    )
    if "generator" in state:
        _set_generators(state["generator"][rank])
    return state["extra"]


def load_weights(url: str, model: nn.Module, *, trained_only: bool = False) -> None:
    """Read only the weights of a checkpoint into a model of the same kind; every rank must call it.

    Without a process group it is read by this process alone.

    Args:
        url: folder of the checkpoint.
        model: what is in it may be anything.
        trained_only: leave what is frozen as it is, for a checkpoint holds it only if it was trained there.

    Raises:
        DamagedCheckpointError: a file of it is missing, or is not what was written.
        CheckpointError: it cannot be read, or is that of another model.
    """
    reader = _over_telling_files(FsspecReader(url), url)
    _contents(reader, url)  # torch would show the traceback of a damaged one before it raises
    weights = get_model_state_dict(model)
    if trained_only:
        weights = _trained(weights, model)
    _load({"model": weights}, reader, url)
    set_model_state_dict(model, weights, options=StateDictOptions(strict=not trained_only))


def _state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimiser)
    return {"model": _trained(weights, model), "optimiser": moments}


def _trained(weights: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return those of the weights that are not frozen."""
    frozen = {name for name, one in model.named_parameters(remove_duplicate=False) if not one.requires_grad}
    return {name: weight for name, weight in weights.items() if name not in frozen}


def _contents(reader: FsspecReader, url: str) -> list[str]:
    """Return the names of all that a checkpoint holds."""
    try:
        return list(reader.read_metadata().state_dict_metadata)
    except OSError as error:
        raise CheckpointError(f"checkpoint {url}: cannot be read: {type(error).__name__}: {error}") from error


def _load(state: dict[str, Any], reader: FsspecReader, url: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is")  # one process is enough to read
            state_dict_loader.load(state, storage_reader=reader)
    except CheckpointException as error:  # which is no `Exception`
        for failure, _ in error.failures.values():
            if isinstance(failure, DamagedCheckpointError):
                raise failure from error
        raise CheckpointError(f"checkpoint {url}: cannot be read: {_one_line(error)}") from error


class _TellingFiles(FileSystem):
    """Files of a checkpoint, on disk or in a store, that say what is wrong with them."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file; what is raised while it is open is told as what it means for the file.

        Raises:
            OSError: it cannot be read or written, say because the disk is full.
            DamagedCheckpointError: it is missing, or is not what was written.
        """
        url, _, name = os.fspath(path).rpartition("/")
        try:
            with super().create_stream(path, mode) as stream:
                yield stream
        except Exception as error:
            if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
                # After a write that failed torch ends its archive, which fails in words that do not name the full disk. The
                # room there would tell nobody either: by now what there was of the file is removed.
                raise error.__context__ from None
            if "r" not in mode or not _tells_of_damage(name, error):
                raise
            # What is pickled in `.metadata` are classes of torch, which another version may have elsewhere.
            written_by = "torch" if isinstance(error, AttributeError | ImportError) else ""
            raise DamagedCheckpointError.of(url, name, error, written_by=written_by) from error


def _tells_of_damage(name: str, error: Exception) -> bool:
    """Return whether that is what reading a file raises when it is not what was written."""
    if isinstance(error, RuntimeError):
        return "PytorchStreamReader" in str(error)
    if name == _METADATA:  # a pickle with other bytes in its middle may raise anything
        return isinstance(error, FileNotFoundError) or not isinstance(error, OSError | MemoryError)
    return isinstance(error, FileNotFoundError | EOFError | pickle.UnpicklingError | UnicodeDecodeError)


def _over_telling_files(storage: StorageT, url: str) -> StorageT:
    storage.fs = _TellingFiles()
    storage.path = storage.fs.init_path(url)
    return storage


def _generators() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_generators(states: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _one_line(error: BaseException) -> str:
    """Return what went wrong, without the tracebacks that torch puts around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
