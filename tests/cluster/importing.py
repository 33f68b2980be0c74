"""Imports modules here and in a worker, and prints what each found: `python -m tests.cluster.importing FOLDER MODULE ...`."""

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from agentrl.cluster.ray.runtime import guarded_run, ray_runtime
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.ray.user_modules import search_like_workers


class Importer:
    """A worker that imports."""

    def __init__(self, config: Any, role: str) -> None:
        pass

    async def found(self, modules: list[str]) -> list[str]:
        return found(modules)


def found(modules: list[str]) -> list[str]:
    """Return what each says of the place that it is from."""
    return [importlib.import_module(module).PLACE for module in modules]


def main(temp_dir: Path, user_folder: Path, modules: list[str]) -> None:
    """Look first here, as a run does when it checks its config, then there."""
    search_like_workers(user_folder, on_cluster=False)
    in_driver = found(modules)
    with ray_runtime(num_cpus=1, temp_dir=temp_dir, user_folder=user_folder, keep_logs_in=temp_dir / "logs"):
        [worker] = spawn(Importer, ResourcePool(num_processes=1), None, "importer", max_concurrency=1)
        in_worker = asyncio.run(_asked(worker, modules))
    print(json.dumps([in_driver, in_worker]), flush=True)


async def _asked(worker: Any, modules: list[str]) -> list[str]:
    return await worker.found(modules)


if __name__ == "__main__":
    with guarded_run() as folder:
        main(folder, Path(sys.argv[1]), sys.argv[2:])
