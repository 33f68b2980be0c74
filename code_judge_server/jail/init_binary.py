"""The compiled init: built once per server, in a tenth of a second, and kept as a memfd that slots execute from."""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("namespace_init.c")
_COMPILE_TIMEOUT_S = 30.0


class NoInitBinaryError(Exception):
    """There is no compiled init on this machine; `python_init` stands in for it."""


def open_init_binary() -> int:
    """Return a memfd of the compiled init.

    Raises:
        NoInitBinaryError: no C compiler works here.
    """
    content = _compiled()
    descriptor = os.memfd_create("init")
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
    return descriptor


@functools.cache
def _compiled() -> bytes:
    """Compile the init; nothing of it stays on the disk, where another user could put something in its place."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoInitBinaryError("no C compiler: none of cc, gcc and clang is on the PATH")
    said = ""
    with tempfile.TemporaryDirectory(prefix="code-judge-") as folder:
        target = Path(folder, "init")
        for linking in (("-static",), ()):  # a static one starts with fewer page faults; not every machine has libc.a
            command = [compiler, "-O2", *linking, "-o", str(target), str(_SOURCE)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NoInitBinaryError(f"{compiler}: {error}") from error
            if done.returncode == 0:
                return target.read_bytes()
            said = done.stderr
    raise NoInitBinaryError(f"{compiler} {_SOURCE.name}: {said[-500:].strip()}")
