"""Report of a full disk in one line, wherever in a run a write failed."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import NO_ROOM, CheckpointError, ConfigError, DiskFullError

_PROBE_BYTES = 1 << 20


@contextmanager
def report_full_disk(folder: Path) -> Iterator[None]:
    """Convert errors caused by a full disk, most often that of the run's `folder`.

    Raises:
        DiskFullError: a disk is full.
    """
    try:
        yield
    except (CheckpointError, ConfigError):
        raise  # they name the place
    except Exception as error:
        if not (is_full(error) and any(map(_has_no_room, (folder, Path(tempfile.gettempdir()))))):
            raise  # its words may be of another quota, such as that of a server
        raise DiskFullError(
            f"run.dir: {folder}: no space left on its disk, or on that of `TMPDIR`. Make room there; the same command resumes "
            "from the last checkpoint"
        ) from error


def is_full(error: BaseException) -> bool:
    """Return True if the cause is a full disk; libraries wrap the error, and other processes send only its text."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_full(member) for member in error.exceptions)
    full = isinstance(error, OSError) and error.errno in NO_ROOM
    words = any(text in str(error).lower() for text in ("no space left", "quota exceeded"))
    return full or words or (error.__cause__ is not None and is_full(error.__cause__))


def _has_no_room(folder: Path) -> bool:
    # A test write also detects quotas and missing inodes.
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return error.errno in NO_ROOM
    return False
