"""Files of `/proc` for jobs of tiers A and B besides those of their processes: the processors and memory they may use."""

import os
from functools import lru_cache

CPUINFO = "/run/cpuinfo"
"""Path in the jail root of the file that each job sees as `/proc/cpuinfo`."""
MEMINFO_MAX_BYTES = 1024
_ZEROS = (
    "Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Shmem", "Slab", "SReclaimable",
)  # fmt: skip
"""Fields that psutil and `free` read."""
_NUM_REMEMBERED = 16


def cpuinfo() -> str:
    """Return the machine's `/proc/cpuinfo` without the processors that this process may not use."""
    allowed = os.sched_getaffinity(0)
    try:
        with open("/proc/cpuinfo") as file:
            sections = file.read().strip().split("\n\n")
    except OSError:  # a container may hide it
        sections = [f"processor\t: {number}" for number in sorted(allowed)]
    return "".join(f"{section}\n\n" for section in sections if _processor(section) in {None, *allowed})


def _processor(section: str) -> int | None:
    """Return the number of the processor that a section describes; on some machines one section describes all."""
    name, _, number = section.partition("\n")[0].partition(":")
    return int(number) if name.strip() == "processor" else None


@lru_cache(maxsize=_NUM_REMEMBERED)
def meminfo(memory_bytes: int) -> bytes:
    """Return the `/proc/meminfo` of a job with this memory limit, with all of it free."""
    fields = dict.fromkeys(("MemTotal", "MemFree", "MemAvailable"), memory_bytes // 1024) | dict.fromkeys(_ZEROS, 0)
    return "".join(f"{f'{name}:':<15} {size:>8} kB\n" for name, size in fields.items()).encode()
