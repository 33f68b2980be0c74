"""Program text in private memory: mappings of files make every fork slower.

A fork copies no page table entries of file mappings, so each child faults its text in again: 90 of the 430 faults of a small
program. It copies those of anonymous memory, and a huge page by a single entry.
"""

import ctypes
from collections.abc import Iterator

HUGE_PAGE_BYTES = 2 * 1024 * 1024

_MAX_BYTES = 16 * 1024 * 1024
"""Enough for an interpreter. A program uses little of a larger library, but all of it would count for every job."""
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE_ANONYMOUS = 0x02 | 0x20
_MREMAP_MAYMOVE_FIXED = 1 | 2
_MAP_FAILED = ctypes.c_void_p(-1).value
_FILE_RIGHTS = ("r--p", "r-xp")


def huge_part(start: int, end: int) -> tuple[int, int]:
    """Return the part of a range of addresses that fits huge pages; it is empty if it ends before it starts."""
    return -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES


def make_text_private() -> None:
    """Replace the read-only mappings of programs and libraries by copies, if they have room for a huge page.

    Best effort: if the kernel forbids to execute anonymous memory, or memory is short, nothing changes.
    """
    libc = ctypes.CDLL(None)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for start, end in list(_read_only_parts()):
        first, last = huge_part(start, end)
        if first < last and end - start <= _MAX_BYTES:
            _replace(libc, start, end - start)


def _replace(libc: ctypes.CDLL, start: int, size: int) -> None:
    copy = libc.mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
    if copy == _MAP_FAILED:
        return
    ctypes.memmove(copy, start, size)
    is_executable = libc.mprotect(copy, size, _PROT_READ | _PROT_EXEC) == 0
    # In one call, because this very code is being replaced: the copy continues with the same instructions.
    if not is_executable or libc.mremap(copy, size, size, _MREMAP_MAYMOVE_FIXED, start) != start:
        libc.munmap(copy, size)


def _read_only_parts() -> Iterator[tuple[int, int]]:
    """Yield runs of adjacent mappings of one file each that nobody writes to and that are partly executable."""
    with open("/proc/self/maps") as maps:
        lines = [line.split(None, 5) for line in maps]
    path, start, end, is_executable = "", 0, 0, False
    for addresses, rights, _, _, inode, *rest in [*lines, ("0-0", "", "", "", "0")]:
        first, last = (int(address, 16) for address in addresses.split("-"))
        file = rest[0] if inode != "0" and rights in _FILE_RIGHTS else ""
        if (file, first) != (path, end):
            if path and is_executable:
                yield start, end
            path, start, is_executable = file, first, False
        end = last
        is_executable = is_executable or rights == "r-xp"
