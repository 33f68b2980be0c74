"""An environment with the clients that agents are written with; it is made once per machine."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PINS = Path(__file__).parent / "requirements.txt"


@pytest.fixture(scope="session")
def client_python() -> Path:
    """Interpreter of the environment. Skips where the package index cannot be reached; with CI=true that is a failure."""
    key = hashlib.sha256(f"{sys.version}{PINS.read_text()}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "clients"
    cache.mkdir(parents=True, exist_ok=True)
    folder, uv = cache / key, [sys.executable, "-m", "uv", "--quiet"]
    python = folder / "bin" / "python"
    with (cache / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([*uv, "venv", "--python", sys.executable, folder])
            _run([*uv, "pip", "install", "--python", python, "--no-deps", "--requirement", PINS])
            (folder / "complete").touch()
    return python


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        end(f"the clients cannot be installed, the package index must be reachable: {done.stderr[-500:]}")
