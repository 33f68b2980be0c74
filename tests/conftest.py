"""Fixtures that several rooms share."""

import gc
import importlib.util
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs vLLM or a browser where it is not installed; `CI=true` promises that it is, so there it fails."""
    missing = {
        "vllm": importlib.util.find_spec("vllm") is None and "vLLM",
        "browser": (importlib.util.find_spec("playwright") is None and "Playwright") or (not CHROMIUM and "Chromium"),
    }
    for marker, name in missing.items():
        if item.get_closest_marker(marker) is None or not name:
            continue
        reason = f"{name} is not installed: `make {marker}` does that, and says why where it cannot"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In several processes, begin with the files whose tests may take longest, so that none of them is left for the end."""
    if not hasattr(config, "workerinput"):
        return
    longest_s: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        longest_s[item.path] = max(longest_s.get(item.path, 0.0), 0.0 if limit is None else limit.args[0])
    items.sort(key=lambda item: -longest_s[item.path])


def pytest_collection_finish() -> None:
    """Take the thousands of tests, which stay, out of the garbage collector's way; it took a twelfth of the CPU time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_compute_thread() -> None:
    """Tiny models compute no faster on two threads, and beside another process of tests these wait for each other."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def no_event_loop_is_left() -> Iterator[None]:
    """A tool's or a reward's event loop that outlives its test warns in the log of later ones that it is late."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 5
    while left := [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("lag of ")]:
        assert time.monotonic() < until, f"left running, and watched still: {left}"
        time.sleep(0.01)


@pytest.fixture
def vllm_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a config that names vLLM pass where it is not installed, as after `make test` alone."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *package: name if name == "vllm" else find_spec(name, *package)
    )


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Take away what a test that calls `configure_logging` has set up: its files and streams are gone later."""
    root, own = logging.getLogger(), logging.getLogger("agentrl")
    handlers, level = list(root.handlers), own.level
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    own.setLevel(level)


@pytest.fixture(scope="session")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One Ray for all tests that need one; gives the folder whose Python files its workers can import."""
    from agentrl.cluster.ray.runtime import guarded_run, ray_runtime

    user_folder = tmp_path_factory.mktemp("user_folder")
    (user_folder / "user_code.py").write_text("def answer():\n    return 42\n")
    with (
        guarded_run() as temp_dir,
        ray_runtime(
            num_cpus=8, temp_dir=temp_dir, user_folder=user_folder, keep_logs_in=tmp_path_factory.mktemp("ray_logs")
        ),
    ):
        yield user_folder
