"""Landlock rules: they keep a job from other processes everywhere, and from files and the network where it has no
namespaces.
"""

import os

from code_judge_server.jail.kernel import syscalls

_ABI_NETWORK = 4
_ABI_SCOPES = 6
_NETWORK = 0b11  # bind and connect of TCP
_SCOPES = 0b11  # abstract unix sockets, signals

_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ACCESSES_BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
_ALL_ACCESSES = 0xFFFF
_WRITE_FILE = 1 << 1
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
_READ_ONLY_DEVICES = ("/dev/zero",)
"""Readable only: a writable mapping of it would be memory that nothing counts."""


def scopes() -> int | None:
    """Return a ruleset that isolates signals and abstract sockets, or None if the kernel has none."""
    try:
        abi = syscalls.landlock_abi()
    except OSError:
        return None
    return syscalls.landlock_create((0, 0, _SCOPES)) if abi >= _ABI_SCOPES else None


def files_and_scopes(writable: str, readable: list[str]) -> int:
    """Return a ruleset for this process: scopes, no TCP, and only these files, the harmless devices and its own /proc.

    Args:
        writable: Folder that is readable and writable.
        readable: Other paths that may be read and executed.

    Raises:
        OSError: the kernel has no Landlock.
    """
    abi = syscalls.landlock_abi()
    accesses = _ACCESSES_BY_ABI.get(abi, _ALL_ACCESSES)
    network = _NETWORK if abi >= _ABI_NETWORK else 0
    ruleset = syscalls.landlock_create((accesses, network, _SCOPES if abi >= _ABI_SCOPES else 0))
    allowed = dict.fromkeys([*readable, f"/proc/{os.getpid()}"], _READ)
    allowed.update(dict.fromkeys(_DEVICES, _READ_FILE | _WRITE_FILE))
    allowed.update(dict.fromkeys(_READ_ONLY_DEVICES, _READ_FILE))
    allowed[writable] = accesses
    for path, rights in allowed.items():
        if os.path.exists(path):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            syscalls.landlock_allow_beneath(ruleset, opened, rights if os.path.isdir(path) else rights & ~_READ_DIR)
            os.close(opened)
    return ruleset
