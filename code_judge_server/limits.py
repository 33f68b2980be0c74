"""What a submission asks for, and what it gets: defaults where it is silent, the server's maxima where it asks for more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from code_judge_server.sandbox import JobLimits
from code_judge_server.schemas import Limits

_PAGE_BYTES = 4096
_NUM_REMEMBERED = 64
"""Most submissions of a time ask for the same few limits."""
_JOB_LIMITS = [limit.name for limit in fields(JobLimits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPolicy:
    """The two bounds of every limit of a program; neither leaves one open."""

    defaults: Limits
    """For what a submission does not name."""
    maxima: Limits
    """No submission gets more, whatever it names."""

    def effective(self, asked: Limits) -> JobLimits:
        """Return the limits that hold for a submission that asks for these."""
        return JobLimits(**{name: self._effective(asked, name) for name in _JOB_LIMITS})

    def told(self, asked: Limits) -> Limits:
        """Return the limits that hold for a submission that asks for these, that of its compiler included."""
        return as_limits(self.effective(asked), compile_time_s=self._effective(asked, "compile_time_s"))

    def _effective(self, asked: Limits, name: str) -> Any:
        wanted = getattr(asked, name)
        return min(getattr(self.defaults, name) if wanted is None else wanted, getattr(self.maxima, name))


def with_room_for(limits: JobLimits, files: Mapping[str, bytes]) -> JobLimits:
    """Return limits whose disk holds these files beside what the program may write itself."""
    num_pages = (1 + _num_folders(files) if files else 0) + sum(
        max(1, -(-len(content) // _PAGE_BYTES)) for content in files.values()
    )
    return replace(limits, disk_bytes=limits.disk_bytes + num_pages * _PAGE_BYTES)


def _num_folders(paths: Iterable[str]) -> int:
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:  # those above a folder that is known are known
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return len(folders)


@lru_cache(maxsize=_NUM_REMEMBERED)
def as_limits(limits: JobLimits, *, compile_time_s: float | None = None) -> Limits:
    """Return the limits of a job in the words of the native format; a session has no compiler."""
    return Limits(**{name: getattr(limits, name) for name in _JOB_LIMITS}, compile_time_s=compile_time_s)
