"""Search path for the user's own modules: the same order in this process, which tries them, and in the workers.

First come the files beside the config, which every worker gets a copy of; then the folders that this process searches before
Python's own library: the working folder and those of `PYTHONPATH`. Other machines may lack these, so in a cluster the working
folder, which the user has not named, is left out.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

_OWN_PACKAGES = ("agentrl", "code_judge_server", "__main__")
_LIBRARY = os.path.dirname(os.__file__)


def search_like_workers(user_folder: Path, *, on_cluster: bool) -> None:
    """Make this process search `user_folder` first, and no folder that workers on other machines may lack."""
    before, after = _split_path()
    if on_cluster:
        named = os.environ.get("PYTHONPATH")
        everywhere = {os.path.abspath(folder) for folder in named.split(os.pathsep)} if named else set[str]()
        only_here = {os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0]))} - everywhere
        before = [folder for folder in before if os.path.abspath(folder) not in only_here]
    sys.path[:] = [str(user_folder), *(folder for folder in before + after if folder != str(user_folder))]


def worker_path() -> str:
    """Return the `PYTHONPATH` of workers: absolute, since they run in another folder, and without Ray's own."""
    before, _ = _split_path()
    folders = [os.path.abspath(folder) for folder in before]
    packages = sysconfig.get_path("purelib")  # Ray adds a folder of its own there
    return os.pathsep.join(
        folder for folder in folders if os.path.isdir(folder) and not folder.startswith(packages + os.sep)
    )


def imported_user_modules() -> dict[str, Path]:
    """Return the files of modules that this process has imported from the user's folders, keyed by module."""
    before, after = (tuple(os.path.join(os.path.abspath(folder), "") for folder in part) for part in _split_path())
    files: dict[str, Path] = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            file
            and name.partition(".")[0] not in _OWN_PACKAGES
            and file.startswith(before)
            and not file.startswith(after)
        ):
            files[name] = Path(file)
    return files


def _split_path() -> tuple[list[str], list[str]]:
    """Return the folders searched before Python's own library, and the others."""
    first = sys.path.index(_LIBRARY)
    return sys.path[:first], sys.path[first:]


def stage(folder: Path, copy: Path, namespace: str = "") -> None:
    """Copy the Python files and packages of `folder` that workers may import.

    Folders without an `__init__.py` hold data, earlier runs and environments. They are copied only if this process has imported
    from them as namespace packages when it tried the config.
    """
    copy.mkdir()
    for module in folder.glob("*.py"):
        shutil.copy(module, copy)
    for inner in folder.glob("*/"):
        name = f"{namespace}{inner.name}"
        if os.path.exists(inner / "__init__.py"):
            shutil.copytree(inner, copy / inner.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif inner in map(Path, getattr(sys.modules.get(name), "__path__", ())):
            stage(inner, copy / inner.name, f"{name}.")
