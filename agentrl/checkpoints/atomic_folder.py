"""Target of `agentrl.runners.export`: a local folder, or a store that fsspec knows; written completely or not at all."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from agentrl.checkpoints.object_store import open_store, refuse_missing_bucket
from agentrl.config.places import check_folder_or_url, is_url
from agentrl.errors import NO_ROOM, ConfigError

_KEY = "--to"
_LAST = "config.json"
"""The file without which no loader takes a folder for a model."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
"""Numbers of an `OSError` where a file system has no locks, as Lustre that is mounted without `flock`."""


def place_of(to: str) -> str:
    """Return the absolute path or the URL that `--to` names; `file://` is a path.

    Raises:
        ConfigError: it begins as a URL does, and is none.
    """
    check_folder_or_url(to, key=_KEY)
    path = to.removeprefix("file://").removeprefix("local://")
    return path if is_url(path) else str(Path(path).resolve())


def written_whole(place: str) -> AbstractContextManager[Path]:
    """Give an empty folder to write into, which becomes `place` at the end.

    Args:
        place: an absolute path or a URL of what is empty or not there. A folder appears at one stroke; into a store the files
            are put one by one, `config.json` last, and what has been put is taken back where that fails.

    Raises:
        ConfigError: it cannot be used, or holds something; or another process is writing that folder, which is not known of
            stores, nor of file systems without locks.
    """
    return _put_whole(place) if is_url(place) else _written_whole(Path(place))


@contextmanager
def _written_whole(folder: Path) -> Iterator[Path]:
    partial = folder.with_name(folder.name + ".partial")
    policy = partial / "policy"
    with ExitStack() as stack:
        try:
            _refuse_used(folder)
            stack.enter_context(_held(partial))
            _refuse_used(folder)  # another export may have come to its end in between
            stack.callback(shutil.rmtree, policy, ignore_errors=True)
            shutil.rmtree(policy, ignore_errors=True)  # of an export that was killed
            policy.mkdir()
        except BlockingIOError as error:
            raise ConfigError(
                f"{folder}: another export is writing it; wait for that one, or name another folder with `--to`"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be written: {error.strerror}; name another folder with `--to`"
            ) from error
        with _telling(
            partial, f"{folder} cannot be written: ", "; make room there, or name another folder with `--to`"
        ):
            yield policy
        _take(policy, folder)


def _refuse_used(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; remove it, or name another folder with `--to`")


@contextmanager
def _held(partial: Path) -> Iterator[None]:
    """Lock a folder, if its file system has locks, and remove it at the end if only the lock file is left.

    The kernel releases a lock when its process ends, so leftovers of a killed export can be recognised.

    Raises:
        BlockingIOError: another process has it.
    """
    partial.mkdir(parents=True, exist_ok=True)
    with (partial / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        # One that has just come to its end removed it after it was opened here.
        if os.fstat(lock.fileno()).st_nlink == 0:
            raise BlockingIOError
        try:
            yield
        finally:
            with suppress(OSError):
                (partial / ".lock").unlink()
                partial.rmdir()


def _take(policy: Path, folder: Path) -> None:
    try:
        policy.replace(folder)
    except OSError as error:  # an empty folder on which a disk is mounted
        raise ConfigError(
            f"{folder} cannot be replaced by what was written: {error.strerror}; name a folder below it with `--to`"
        ) from error


@contextmanager
def _put_whole(url: str) -> Iterator[Path]:
    files, root = open_store(url, key=_KEY)
    files.invalidate_cache()
    with _refusing_unusable(url):
        # What ends with a slash is an empty object with which consoles of stores show a folder.
        if files.exists(root) and (files.isfile(root) or any(not name.endswith("/") for name in files.find(root))):
            raise ConfigError(f"{_KEY}: {url} exists and is not empty; remove it, or name another place")
        refuse_missing_bucket(files, root, url=url, key=_KEY)
    with tempfile.TemporaryDirectory(prefix="agentrl-export-") as name:
        folder = Path(name)
        with _telling(
            folder,
            f"{folder} cannot be written, from where it goes to {url}: ",
            "; let `TMPDIR` name a place with room",
        ):
            yield folder
        with _refusing_unusable(url):
            _put(files, folder, root.rstrip("/"))


@contextmanager
def _telling(folder: Path, problem: str, way_out: str) -> Iterator[None]:
    """Convert write errors in `folder` into a `ConfigError`; an error of a file elsewhere concerns the model's files."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # what reads the checkpoint raises none of them
        reason = " ".join(str(error).split())
        if isinstance(error, OSError) and error.errno not in NO_ROOM and _is_elsewhere(error.filename, folder):
            raise ConfigError(f"model.path: a file of it cannot be read: {reason}") from error
        raise ConfigError(f"{problem}{reason}{way_out}") from error


def _is_elsewhere(file: object, folder: Path) -> bool:
    """Return whether a file, as an OSError names it (a descriptor has no name), is outside a folder."""
    return isinstance(file, str | bytes) and folder not in Path(os.fsdecode(file)).parents


def _put(files: Any, folder: Path, root: str) -> None:
    """Put the files of `folder` under `root`; all of them, or none."""
    sources = sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.name == _LAST)
    put: list[str] = []
    try:
        for source in sources:
            target = f"{root}/{source.relative_to(folder).as_posix()}"
            files.makedirs(target.rpartition("/")[0], exist_ok=True)
            put.append(target)
            files.put_file(str(source), target)
    except BaseException:  # Ctrl-C too
        for target in put:
            with suppress(Exception):  # the store may be gone; the first error is the one reported
                files.rm_file(target)
        raise


@contextmanager
def _refusing_unusable(url: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # of any kind: packages of stores raise classes of their own
        raise ConfigError(
            f"{_KEY}: {url} cannot be used: {type(error).__name__}: {' '.join(str(error).split())}. Look at the address, the "
            "keys, the permissions and the room there, or name another place"
        ) from error
