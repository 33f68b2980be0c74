"""The runs that the dashboard shows: their files, read by threads of their own so that requests never wait for a disk.

Each run has a thread that brings its index up to date, which takes seconds for a large run that has none, and a thread that
reads metrics and answers requests.
"""

import asyncio
import fcntl
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import orjson
import yaml

from agentrl.dashboard.metric_table import MetricTable
from agentrl.dashboard.records import TokenTexts
from agentrl.errors import UNDECODABLE, ConfigError
from agentrl.trajectories.index import RunIndex

T = TypeVar("T")

_LOG_TAIL_BYTES = 24_000
_LOG_TAIL_LINES = 120


class RunStatus(StrEnum):
    """State of a run: RUNNING -> FINISHED or STOPPED; a resume makes it RUNNING once more."""

    RUNNING = "running"
    """A process holds the lock of its folder."""
    FINISHED = "finished"
    """`result.json` is there."""
    STOPPED = "stopped"
    """Neither: it crashed, was killed or was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Facts about a run that pages show and that change while it runs."""

    status: RunStatus
    last_step: int | None
    num_rows: int
    """Metrics rows."""
    num_trajectories: int
    problem: str
    """Reason why files could not be read; empty if they were."""


class Run:
    """One run folder; opened with `start`, ended with `close`."""

    def __init__(self, key: str, path: Path) -> None:
        """Look at the folder.

        Raises:
            ConfigError: it holds no run.
        """
        if not (path / "config.yaml").is_file() and not (path / "metrics.jsonl").is_file():
            raise ConfigError(
                f"{path}: holds no run: neither config.yaml nor metrics.jsonl. Name the `run.dir` of a run"
            )
        self.key, self.path = key, path
        self.metrics = MetricTable(path)
        self.state = RunState(status=RunStatus.STOPPED, last_step=None, num_rows=0, num_trajectories=0, problem="")
        self._indexer = ThreadPoolExecutor(1, thread_name_prefix=f"index of {key}")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"pages of {key}")
        self._indexes: dict[str, RunIndex] = {}
        self._first_update: asyncio.Task[None] | None = None
        self._texts: tuple[TokenTexts | None] | None = None

    @property
    def num_steps(self) -> int | None:
        """Steps that its config plans."""
        return (self.config().get("run") or {}).get("num_steps")

    def config(self) -> dict[str, Any]:
        """Return the config of the run; empty if there is none."""
        try:
            return yaml.load((self.path / "config.yaml").read_bytes(), Loader=yaml.CSafeLoader) or {}
        except (OSError, yaml.YAMLError):
            return {}

    def start(self) -> None:
        """Begin to read the files; for the event loop that answers requests."""
        self._first_update = asyncio.ensure_future(self.update())

    async def update(self) -> None:
        """Read what is new in the files, and set `state`."""
        loop = asyncio.get_running_loop()
        self.state = await loop.run_in_executor(self._reader, self._read_metrics, self.state)
        self.state = await loop.run_in_executor(self._indexer, self._index_trajectories, self.state)

    @property
    def is_indexing(self) -> bool:
        """True until the trajectories that were there at the start are indexed."""
        return self._first_update is not None and not self._first_update.done()

    async def query(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return `function(connection, *arguments)`, once the trajectories are indexed."""
        if self._first_update is not None:
            await asyncio.shield(self._first_update)
        return await self.read(lambda: function(self._index("reader").connection, *arguments))

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return `function(*arguments)` of the thread that reads metrics."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, function, *arguments)

    async def query_records(self, function: Callable[..., T]) -> T:
        """Return `function(connection, texts)`; `texts` are those of the tokens, None without a tokenizer."""
        return await self.query(lambda connection: function(connection, self._token_texts()))

    def close(self) -> None:
        """End the threads."""
        for thread in (self._indexer, self._reader):
            thread.shutdown(wait=False, cancel_futures=True)

    def log_tail(self) -> list[str]:
        """Return the last lines of `run.log`."""
        try:
            with (self.path / "run.log").open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _LOG_TAIL_BYTES))
                return file.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        except OSError:
            return []

    def _token_texts(self) -> TokenTexts | None:
        if self._texts is None:
            model_path = (self.config().get("model") or {}).get("path")
            self._texts = (TokenTexts.of_run(self.path, str(model_path)),)
        return self._texts[0]

    def _index(self, user: str) -> RunIndex:
        if user not in self._indexes:
            self._indexes[user] = RunIndex(self.path)
        return self._indexes[user]

    def _read_metrics(self, state: RunState) -> RunState:
        problem = ""
        try:
            self.metrics.update()
        except (*UNDECODABLE, OSError) as error:
            problem = f"metrics: {error}"
        steps = self.metrics.steps
        last_step = steps[-1] if steps else None
        return replace(state, status=_status_of(self.path), last_step=last_step, num_rows=len(steps), problem=problem)

    def _index_trajectories(self, state: RunState) -> RunState:
        try:
            index = self._index("indexer")
            if index.update() or not state.num_trajectories:
                count = index.connection.execute("SELECT count(*) FROM trajectories").fetchone()[0]
                return replace(state, num_trajectories=count)
        except (*UNDECODABLE, OSError, sqlite3.Error) as error:
            return replace(state, problem=f"trajectories: {error}")
        return state


def read_result(path: Path) -> dict[str, Any]:
    """Return what the run left at its end; empty before."""
    try:
        return orjson.loads((path / "result.json").read_bytes())
    except (OSError, ValueError):
        return {}


def open_runs(paths: list[Path]) -> dict[str, Run]:
    """Return the runs of some folders by key, which is the folder's name, numbered where it is not unique.

    Raises:
        ConfigError: a folder holds no run.
    """
    runs: dict[str, Run] = {}
    for path in paths:
        name = path.resolve().name
        number = 1
        key = name
        while key in runs:
            number += 1
            key = f"{name}-{number}"
        runs[key] = Run(key, path)
    return runs


def _status_of(path: Path) -> RunStatus:
    if (path / "result.json").is_file():
        return RunStatus.FINISHED
    try:
        with (path / ".lock").open("rb") as file:
            # Held for an instant: a run that starts at this moment would be refused its folder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return RunStatus.RUNNING
    except OSError:
        pass
    return RunStatus.STOPPED
