"""The compiled parts of the jail: built once per server, in 0.2 s, and kept as memfds."""

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent
_COMPILE_TIMEOUT_S = 30.0
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_SOURCES = {"init": ("namespace_init.c",), "job_start": ("job_start.c", "snapshot.c")}
_LINKING = {
    "init": (("-static",), ()),  # a static binary starts with fewer page faults; some machines have no libc.a
    "job_start": (("-shared", "-fPIC"),),
}
"""Linker options to try for each part, the best first."""


class NotCompiledError(Exception):
    """This machine has no working C compiler; Python code replaces the compiled parts."""


def open_init() -> int:
    """Return a memfd of the compiled `namespace_init.c`, which slots execute.

    Raises:
        NotCompiledError: no C compiler works here; `python_init` replaces it.
    """
    return _memfd("init", _compiled("init"))


def open_job_start() -> int:
    """Return a memfd of the compiled `job_start.c` with `snapshot.c`, which zygotes load.

    Raises:
        NotCompiledError: no C compiler works here; `slot` replaces it.
    """
    return _memfd("job_start", _compiled("job_start"))


def _memfd(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


@functools.cache
def _compiled(part: str) -> bytes:
    """Compile a part; no file stays on the disk, where another user could replace it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotCompiledError("no C compiler: none of cc, gcc and clang is on the PATH")
    output = ""
    with tempfile.TemporaryDirectory(prefix="code-judge-") as folder:
        target = Path(folder, "compiled")
        for linking in _LINKING[part]:
            sources = [str(_FOLDER / source) for source in _SOURCES[part]]
            command = [compiler, "-O2", *linking, "-o", str(target), *sources]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NotCompiledError(f"{compiler}: {error}") from error
            if done.returncode == 0:
                return target.read_bytes()
            output = done.stderr
    raise NotCompiledError(f"{compiler} {part}: {output[-500:].strip()}")
