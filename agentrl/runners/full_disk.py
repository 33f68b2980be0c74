"""A disk without room left, told in one line wherever in a run something was to be written."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import NO_ROOM, CheckpointError, ConfigError, DiskFullError

_PROBE_BYTES = 1 << 20


@contextmanager
def telling_full_disk(folder: Path) -> Iterator[None]:
    """Let what is raised because `folder` has no room left come out as that, whoever was to write there.

    Raises:
        DiskFullError: that was the reason.
    """
    try:
        yield
    except (CheckpointError, ConfigError):
        raise  # which say where
    except Exception as error:
        if not (is_full(error) and _has_no_room(folder)):
            raise
        raise DiskFullError(
            f"run.dir: {folder}: no space left on its disk. Make room there; the same command goes on from the last checkpoint"
        ) from error


def is_full(error: BaseException) -> bool:
    """Return whether no room was the reason; libraries wrap it, and other processes send only its words."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_full(member) for member in error.exceptions)
    full = isinstance(error, OSError) and error.errno in NO_ROOM
    words = any(text in str(error).lower() for text in ("no space left", "quota exceeded"))
    return full or words or (error.__cause__ is not None and is_full(error.__cause__))


def _has_no_room(folder: Path) -> bool:
    """Return whether that disk is the full one; written to, because neither quotas nor entries are seen otherwise."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return error.errno in NO_ROOM
    return False
