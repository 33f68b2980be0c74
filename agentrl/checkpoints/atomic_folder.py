"""Model folders that appear complete or not at all: the trained policy of a run, and the target of an export."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from agentrl.checkpoints.object_store import make_folder, open_store
from agentrl.config.schema.paths import is_url, refuse_half_a_url
from agentrl.errors import CheckpointError, ConfigError

_KEY = "--to"
_LAST = "config.json"
"""The file without which no loader takes a folder for a model."""


class PolicyFolder:
    """Folder of a run's trained policy, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        """Take the path; it need not exist."""
        self.path = path
        self._partial = path.with_name(f"{path.name}.partial")

    def begin(self) -> Path:
        """Return the path to write the content to; the old content stays until `take`."""
        shutil.rmtree(self._partial, ignore_errors=True)  # left by a killed run
        return self._partial

    def take(self) -> None:
        """Replace the old content by what was written.

        Raises:
            CheckpointError: nothing was written, or the old content cannot be replaced.
        """
        parent = self.path.parent
        # Listed instead of checked: a shared file system may cache that it did not exist.
        if self._partial.name not in os.listdir(parent):
            raise CheckpointError(
                f"{self._partial} is not there: the actor, on another node, sees another `run.dir`. Let the nodes share "
                "it; the same command resumes from the last checkpoint"
            )
        try:
            with tempfile.TemporaryDirectory(prefix=f"{self.path.name}.replaced-", dir=parent) as old:
                if os.path.lexists(self.path):
                    self.path.replace(Path(old, self.path.name))
                self._partial.replace(self.path)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be replaced: {error.strerror}. Move it away; the same command resumes from the last "
                "checkpoint, and writes the policy again"
            ) from error


@contextmanager
def written_whole(place: str) -> Iterator[Path]:
    """Give an empty folder to write into, which becomes `place` at the end.

    Args:
        place: path or URL of an empty or new folder. A local folder is renamed to it. Files go into a store one by one,
            `config.json` last.

    Raises:
        ConfigError: it cannot be used, or is not empty.
    """
    try:
        refuse_half_a_url(place)
    except ValueError as error:
        raise ConfigError(f"{_KEY} {error}") from error
    if not is_url(place):
        with _local_folder(Path(place)) as folder:
            yield folder
        return
    files, root = open_store(place, key=_KEY)
    with _store_errors(place):
        used = files.find(root)
    if used:
        raise ConfigError(f"{_KEY}: {place} exists and is not empty; remove it, or name another place")
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-export-") as temporary,
        _write_errors(f"files on their way to {place}", "let `TMPDIR` name a folder with room"),
    ):
        yield Path(temporary)
        with _store_errors(place):
            _put(files, Path(temporary), root.rstrip("/"))


@contextmanager
def _local_folder(target: Path) -> Iterator[Path]:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not empty; remove it, or name another folder with `--to`")
    with _write_errors(str(target), "make room there, or name another folder with `--to`"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.partial-", dir=target.parent) as temporary:
            folder = Path(temporary, "policy")  # has the umask's permissions, unlike a temporary folder
            folder.mkdir()
            yield folder
            folder.replace(target)


@contextmanager
def _write_errors(what: str, way_out: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{what} cannot be written: {' '.join(str(error).split())}; {way_out}") from error


@contextmanager
def _store_errors(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # packages of stores raise any class
        raise ConfigError(
            f"{_KEY}: {url} cannot be used: {type(error).__name__}: {' '.join(str(error).split())}. Check the address, the "
            "keys, the permissions and the room there; remove what was written"
        ) from error


def _put(files: Any, folder: Path, root: str) -> None:
    sources = [file for file in folder.rglob("*") if file.is_file()]
    for source in sorted(sources, key=lambda file: file.name == _LAST):
        target = f"{root}/{source.relative_to(folder).as_posix()}"
        make_folder(files, target.rpartition("/")[0])
        files.put_file(str(source), target)
