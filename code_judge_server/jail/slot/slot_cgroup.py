"""A slot's own control group: limits before a job, its use and the kernel's refusals after it."""

import os

_MIB = 1024 * 1024
_FILES = {
    1: {
        "limit": "memory.limit_in_bytes",
        "swap": "memory.memsw.limit_in_bytes",
        "usage": "memory.usage_in_bytes",
        "peak": "memory.max_usage_in_bytes",
        "events": "memory.oom_control",
    },
    2: {
        "limit": "memory.max",
        "swap": "memory.swap.max",
        "usage": "memory.current",
        "peak": "memory.peak",
        "events": "memory.events",
    },
}


class SlotCgroup:
    """The group of this process and everything it starts, of version 1 or 2.

    The slot itself is in the group, so no job is ever moved (which is slow, and serialized over the machine). The slot's own
    memory is added to a job's limit and subtracted from its peak.
    """

    def __init__(self, version: int, folders: dict[str, int]) -> None:
        """Enter the group, given by one open folder per controller."""
        self._version = version
        unified = folders.get("", -1)
        memory, pids = folders.get("memory", unified), folders.get("pids", unified)
        for folder in folders.values():
            entrance = _open("cgroup.procs", folder, os.O_WRONLY)
            _write(entrance, "0")
            os.close(entrance)
        names = _FILES[version]
        self._limit = _open(names["limit"], memory, os.O_RDWR)
        self._swap = _open_if_there(names["swap"], memory, os.O_RDWR)
        self._usage = _open(names["usage"], memory, os.O_RDONLY)
        self._peak = _open_if_there(names["peak"], memory, os.O_RDWR)
        self._events = _open(names["events"], memory, os.O_RDONLY)
        self._tasks_max = _open("pids.max", pids, os.O_RDWR)
        self._tasks_now = _open("pids.current", pids, os.O_RDONLY)
        self._tasks_refused = _open("pids.events", pids, os.O_RDONLY)
        if version == 2 and self._swap is not None:
            _write(self._swap, "0")
        self._before = (0, 0, 0)

    def start_job(self, memory_bytes: int, max_tasks: int) -> None:
        """Set the limits of the next job; an unchanged limit is not written again."""
        held = _read_int(self._usage)
        # In steps, so that small variations of the slot's own memory do not count as a change.
        wanted = memory_bytes + (held // (4 * _MIB) + 1) * 4 * _MIB
        limit = _read_int(self._limit)  # read, because the slots of other preload sets are in this group too
        if wanted != limit:
            self._set_memory_limit(wanted, raised=wanted > limit > 0)
        tasks = max_tasks + _read_int(self._tasks_now) + 1  # the init
        if tasks != _read_int(self._tasks_max):
            _write(self._tasks_max, str(tasks))
        if self._peak is not None:
            _write(self._peak, "0")
        self._before = (held, _counter(self._events, b"oom_kill"), _counter(self._tasks_refused, b"max"))

    def end_job(self) -> dict[str, int | None]:
        """Return the resources of the job, keyed as in `protocol`."""
        held, kills, refusals = self._before
        return {
            "oom_kills": _counter(self._events, b"oom_kill") - kills,
            "peak_memory_bytes": None if self._peak is None else max(0, _read_int(self._peak) - held),
            "tasks_refused": _counter(self._tasks_refused, b"max") - refusals,
        }

    def _set_memory_limit(self, wanted: int, *, raised: bool) -> None:
        # Version 1: the limit of memory and swap together may never be less than that of memory alone.
        files = [self._limit, self._swap] if self._version == 1 else [self._limit]
        for file in reversed(files) if raised else files:
            if file is not None:
                _write(file, str(wanted))


def _open(name: str, folder: int, flags: int) -> int:
    return os.open(name, flags | os.O_CLOEXEC, dir_fd=folder)


def _open_if_there(name: str, folder: int, flags: int) -> int | None:
    try:
        return _open(name, folder, flags)
    except (FileNotFoundError, PermissionError):  # no swap accounting; a peak that cannot be reset (before Linux 6.12)
        return None


def _write(file: int, text: str) -> None:
    os.pwrite(file, text.encode(), 0)


def _read_int(file: int) -> int:
    """Return the number in a file, 0 for `max`."""
    text = os.pread(file, 64, 0)
    return 0 if text.startswith(b"max") else int(text)


def _counter(file: int, name: bytes) -> int:
    """Return the number after `name` in a file of lines such as `oom_kill 3`, 0 if it is missing."""
    lines = b"\n" + os.pread(file, 4096, 0)
    _, separator, rest = lines.partition(b"\n" + name + b" ")
    return int(rest.partition(b"\n")[0]) if separator else 0
