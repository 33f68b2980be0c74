"""One code judge on each Ray node, as long as a run lasts.

A judge dies with the worker that holds it. Ray restarts a dead worker, without a judge and without reporting it; so each worker
is polled, and restarts its judge at the same address.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import ray

from agentrl.cluster.ray.handles import WorkerHandle, all_of
from agentrl.cluster.ray.polling import watching
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.config.schema.judge import JudgeSection
from agentrl.errors import AgentRLError, WorkerDiedError
from agentrl.judge.connection import JudgeAddress
from agentrl.judge.local import LocalJudge

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_MAX_PAUSE_S = 32.0
"""Longest pause between two attempts to start a judge."""
_STOP_TIMEOUT_S = 10.0
"""Twice a judge's own limit for stopping."""


class NodeJudge:
    """Worker that holds the judge of its node; the judge dies with it."""

    def __init__(self, config: Mapping[str, Any], role: str) -> None:
        """Take the arguments of `LocalJudge`, without the port; `start` starts the judge."""
        self._config = config
        self._url = ""
        self._running = contextlib.ExitStack()

    def start(self, port: int) -> str:
        """Start the judge unless it runs, and return its URL.

        Args:
            port: port to listen on; 0: any free one.

        Raises:
            ConfigError: it refuses to start, for instance because the node cannot give `judge.min_isolation`.
            JudgeUnavailableError: it does not come up in time.
        """
        if not self._url:
            self._url = self._running.enter_context(LocalJudge(**self._config, port=port)).url
        return self._url

    def stop(self) -> None:
        """Stop the judge and every program in it."""
        self._running.close()


@contextlib.asynccontextmanager
async def node_judges(section: JudgeSection, *, max_sessions: int = 0) -> AsyncIterator[JudgeAddress]:
    """Run a judge, with so many Python sessions, on each current node, and restart it there as long as the node lives.

    Raises:
        ConfigError, JudgeUnavailableError: as `NodeJudge.start`.
    """
    token = secrets.token_urlsafe(32)
    config = {"section": section, "max_sessions": max_sessions, "token": token}
    workers = [
        _place(config, node_id=node["NodeID"], host=node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]
    ]
    try:
        urls = await all_of(worker.start(0) for worker in workers)
        logger.info("judges: one on each of %d nodes: %s", len(urls), ", ".join(urls))
        async with watching(_keep_all(workers, urls), what="judges of nodes"):
            yield JudgeAddress(urls=tuple(urls), token=token)
    finally:
        await all_of(_stop(worker) for worker in workers)


def _place(config: dict[str, Any], *, node_id: str, host: str) -> WorkerHandle:
    # It computes nothing itself; the judge takes the cores that the policy leaves.
    pool = ResourcePool(num_processes=1, num_cpus=0, node_id=node_id)
    [worker] = spawn(NodeJudge, pool, config | {"host": host}, f"judge on {host}", max_concurrency=1, restart=True)
    return worker


async def _keep_all(workers: list[WorkerHandle], urls: list[str]) -> None:
    await all_of(_keep(worker, url) for worker, url in zip(workers, urls, strict=True))


async def _keep(worker: WorkerHandle, url: str) -> None:
    """Start the judge at its address again whenever its worker was restarted."""
    port, pause_s = urlsplit(url).port or 0, _LOOK_EVERY_S
    while True:
        await asyncio.sleep(pause_s)
        try:
            await worker.start(port)  # does nothing while it runs
            pause_s = _LOOK_EVERY_S
        except AgentRLError as error:  # its worker died, and maybe its node; or the last judge still holds the port
            if pause_s == _LOOK_EVERY_S:
                logger.warning("%s; restarting at %s, unless its node is gone", error, url)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)


async def _stop(worker: WorkerHandle) -> None:
    try:
        # A judge that is still starting would delay this for a minute; it dies with its worker.
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await worker.stop()
    except (WorkerDiedError, TimeoutError):
        pass
    finally:
        worker.kill()  # Ray restarts it as long as a handle exists
