"""What a submission asks for, and what it gets: defaults where it is silent, the server's maxima where it asks for more."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import PurePosixPath

from code_judge_server.sandbox import JobLimits
from code_judge_server.schemas import Limits

_PAGE_BYTES = 4096
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
        wanted = self.defaults.model_dump() | asked.model_dump(exclude_none=True)
        return JobLimits(**{name: min(wanted[name], getattr(self.maxima, name)) for name in _JOB_LIMITS})


def with_room_for(limits: JobLimits, files: Mapping[str, bytes]) -> JobLimits:
    """Return limits whose disk holds these files beside what the program may write itself."""
    num_folders = len({folder for path in files for folder in PurePosixPath(path).parents})
    num_pages = num_folders + sum(max(1, -(-len(content) // _PAGE_BYTES)) for content in files.values())
    return replace(limits, disk_bytes=limits.disk_bytes + num_pages * _PAGE_BYTES)


def as_limits(limits: JobLimits) -> Limits:
    """Return the limits of a job in the words of the native format."""
    return Limits(**{name: getattr(limits, name) for name in _JOB_LIMITS})
