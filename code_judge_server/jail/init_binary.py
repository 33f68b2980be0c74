"""The compiled init: built once at the server's start, kept as a memfd that launchers execute from."""

import hashlib
import os
import shutil
import stat
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
    source = _SOURCE.read_bytes()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoInitBinaryError("no C compiler: none of cc, gcc and clang is on the PATH")
    key = hashlib.sha256(source + compiler.encode()).hexdigest()[:32]
    cached = _private_folder() / f"init-{key}"
    if not cached.exists():
        _compile(compiler, cached)
    return _memfd(cached.read_bytes())


def _private_folder() -> Path:
    """Return a folder that this user alone may enter.

    Raises:
        NoInitBinaryError: something else is in its place.
    """
    folder = Path(tempfile.gettempdir()) / f"code-judge-{os.geteuid()}"
    folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
        raise NoInitBinaryError(f"{folder}: not a folder of this user's with mode 0700. Remove it")
    return folder


def _compile(compiler: str, target: Path) -> None:
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    said = ""
    for linking in (("-static",), ()):  # a static one starts with fewer page faults; not every machine has libc.a
        command = [compiler, "-O2", *linking, "-o", str(unfinished), str(_SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoInitBinaryError(f"{compiler}: {error}") from error
        if done.returncode == 0:
            unfinished.rename(target)
            return
        said = done.stderr
    raise NoInitBinaryError(f"{compiler} {_SOURCE.name}: {said[-500:].strip()}")


def _memfd(content: bytes) -> int:
    descriptor = os.memfd_create("init")
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
    return descriptor
