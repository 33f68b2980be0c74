"""The limits of a submission: requested limits, the server's defaults where absent, and its maxima."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from code_judge_server.sandbox.executor import JobLimits
from code_judge_server.schemas import Limits

_PAGE_BYTES = 4096
_NUM_REMEMBERED = 64
"""Cache size; most submissions ask for the same few limits."""
_JOB_LIMITS = [limit.name for limit in fields(JobLimits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPolicy:
    """The server's defaults and maxima for every limit of a program; all are set."""

    defaults: Limits
    """Limits that a submission does not name."""
    maxima: Limits
    """Upper bounds on the limits of a submission."""

    def effective(self, requested: Limits) -> JobLimits:
        """Return the limits that apply when a submission asks for these."""
        return JobLimits(**{name: self._effective(requested, name) for name in _JOB_LIMITS})

    def effective_limits(self, requested: Limits) -> Limits:
        """Return the limits that apply when a submission asks for these, compiler limit included, for its verdict."""
        return as_limits(self.effective(requested), compile_time_s=self._effective(requested, "compile_time_s"))

    def _effective(self, requested: Limits, name: str) -> Any:
        wanted = getattr(requested, name)
        return min(getattr(self.defaults, name) if wanted is None else wanted, getattr(self.maxima, name))


def with_room_for(limits: JobLimits, files: Mapping[str, bytes]) -> JobLimits:
    """Return the limits with disk space for these files besides what the program may write."""
    num_pages = (1 + _num_folders(files) if files else 0) + sum(
        max(1, -(-len(content) // _PAGE_BYTES)) for content in files.values()
    )
    return replace(limits, disk_bytes=limits.disk_bytes + num_pages * _PAGE_BYTES)


def _num_folders(paths: Iterable[str]) -> int:
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:  # the parents of a known folder are known
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return len(folders)


@lru_cache(maxsize=_NUM_REMEMBERED)
def as_limits(limits: JobLimits, *, compile_time_s: float | None = None) -> Limits:
    """Return the limits of a job in the native format; a session has no compiler limit."""
    return Limits(**{name: getattr(limits, name) for name in _JOB_LIMITS}, compile_time_s=compile_time_s)
