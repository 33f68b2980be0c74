"""Files of `/proc` that jobs of tiers A and B have besides their processes: the processors and the memory that are theirs."""

import os
from functools import lru_cache

CPUINFO = "/run/cpuinfo"
"""Place in the jail root of what each job sees as `/proc/cpuinfo`."""
MEMINFO_MAX_BYTES = 1024
_ZEROS = (
    "Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Shmem", "Slab", "SReclaimable",
)  # fmt: skip
"""Fields that psutil and `free` look for."""
_NUM_REMEMBERED = 16


def cpuinfo() -> str:
    """Return the machine's `/proc/cpuinfo`, less the processors that this process may not run on."""
    allowed = os.sched_getaffinity(0)
    try:
        with open("/proc/cpuinfo") as file:
            sections = file.read().strip().split("\n\n")
    except OSError:  # a container may hide it
        sections = [f"processor\t: {number}" for number in sorted(allowed)]
    return "".join(f"{section}\n\n" for section in sections if _processor(section) in {None, *allowed})


def _processor(section: str) -> int | None:
    """Return the number of the processor that a section describes; some machines have one about all of them."""
    name, _, number = section.partition("\n")[0].partition(":")
    return int(number) if name.strip() == "processor" else None


@lru_cache(maxsize=_NUM_REMEMBERED)
def meminfo(memory_bytes: int) -> bytes:
    """Return the `/proc/meminfo` of a job with this memory limit, as if none of it were used yet."""
    fields = dict.fromkeys(("MemTotal", "MemFree", "MemAvailable"), memory_bytes // 1024) | dict.fromkeys(_ZEROS, 0)
    return "".join(f"{f'{name}:':<15} {size:>8} kB\n" for name, size in fields.items()).encode()
