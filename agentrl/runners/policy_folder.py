"""The trained policy of a run: a folder that is whole wherever it is, also where it is a link to a place with more room."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from agentrl.errors import CheckpointError, ConfigError


class PolicyFolder:
    """A folder whose content is exchanged as a whole. A link stays, and what it names is exchanged."""

    def __init__(self, path: Path) -> None:
        """Name the folder; it need not be there."""
        self.path = path

    def refuse_mount(self) -> None:
        """Check that nothing is mounted where the folder is, for a mount cannot be exchanged.

        Raises:
            ConfigError: a disk is mounted there.
        """
        if self._target.is_mount():
            raise ConfigError(
                f"run.dir: a disk is mounted on {self._target}, so that the trained policy could not take its place. Unmount "
                "it, or name another `run.dir`, such as one on that disk"
            )

    def begin(self) -> Path:
        """Return where the content is to be written; what was there before stays until `take`.

        Raises:
            CheckpointError: what a killed run has left there cannot be removed.
        """
        with self._telling():
            _remove(self._partial)
        return self._partial

    def take(self) -> None:
        """Put what has been written in the place of what was there before.

        Raises:
            CheckpointError: it is not there, or cannot take that place.
        """
        with self._telling():
            # Listed, and not asked for: a shared disk may remember that it was not there.
            is_there = self._target.parent.is_dir() and self._partial.name in os.listdir(self._target.parent)
        if not is_there:
            raise CheckpointError(
                f"{self._partial} is not there: the actor, on another node, sees another `run.dir`. Let the nodes share it; "
                "the same command goes on from the last checkpoint"
            )
        replaced = self._beside("replaced")
        with self._telling():
            _remove(replaced)  # of a run that was killed there
            if os.path.lexists(self._target):
                self._target.replace(replaced)  # rather than removed: some of it may be in use
            self._partial.replace(self._target)
        with suppress(OSError):
            _remove(replaced)

    @property
    def _target(self) -> Path:
        return Path(os.path.realpath(self.path)) if self.path.is_symlink() else self.path

    @property
    def _partial(self) -> Path:
        return self._beside("partial")

    def _beside(self, kind: str) -> Path:
        return self._target.with_name(f"{self._target.name}{self._word()}.{kind}")

    def _word(self) -> str:
        """Return what tells this run's files beside that which a link names: others may be there, of other runs too."""
        if not self.path.is_symlink():
            return ""
        place = os.path.realpath(self.path.parent)
        return f".{blake2b(os.fsencode(place), digest_size=8).hexdigest()}"

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            way_out = "Unmount it" if error.errno == errno.EBUSY else "Move it away"
            raise CheckpointError(
                f"{self.path} cannot be replaced: {error.strerror}. {way_out}; the same command goes on from the last "
                "checkpoint, and writes the policy again"
            ) from error


def _remove(path: Path) -> None:
    """Remove a folder, a file or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
