"""The folder of a run's trained policy, replaced as a whole, also if it is a link to another disk."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from agentrl.errors import CheckpointError, ConfigError


class PolicyFolder:
    """A folder whose content is replaced as a whole. If it is a link, the link stays and its target is replaced."""

    def __init__(self, path: Path) -> None:
        """Take the path; it need not exist."""
        self.path = path

    def refuse_mount(self) -> None:
        """Check that the folder is not a mount point, which cannot be replaced.

        Raises:
            ConfigError: a disk is mounted there.
        """
        if self._target.is_mount():
            raise ConfigError(
                f"run.dir: a disk is mounted on {self._target}, so that the trained policy could not take its place. Unmount "
                "it, or name another `run.dir`, such as one on that disk"
            )

    def begin(self) -> Path:
        """Return the path to write the content to; the old content stays until `take`.

        Raises:
            CheckpointError: leftovers of a killed run cannot be removed.
        """
        with self._replace_errors():
            _remove(self._partial)
        return self._partial

    def take(self) -> None:
        """Replace the old content by what was written.

        Raises:
            CheckpointError: nothing was written, or the old content cannot be replaced.
        """
        with self._replace_errors():
            # Listed instead of checked: a shared file system may cache that it did not exist.
            is_there = self._target.parent.is_dir() and self._partial.name in os.listdir(self._target.parent)
        if not is_there:
            raise CheckpointError(
                f"{self._partial} is not there: the actor, on another node, sees another `run.dir`. Let the nodes share it; "
                "the same command resumes from the last checkpoint"
            )
        replaced = self._beside("replaced")
        with self._replace_errors():
            _remove(replaced)  # left by a killed run
            if os.path.lexists(self._target):
                self._target.replace(replaced)  # not removed: some of it may be in use
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
        """Return a suffix that distinguishes this run's files beside a link's target from those of other runs."""
        if not self.path.is_symlink():
            return ""
        place = os.path.realpath(self.path.parent)
        return f".{blake2b(os.fsencode(place), digest_size=8).hexdigest()}"

    @contextmanager
    def _replace_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            way_out = "Unmount it" if error.errno == errno.EBUSY else "Move it away"
            raise CheckpointError(
                f"{self.path} cannot be replaced: {error.strerror}. {way_out}; the same command resumes from the last "
                "checkpoint, and writes the policy again"
            ) from error


def _remove(path: Path) -> None:
    """Remove a folder, a file or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
