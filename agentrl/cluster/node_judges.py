"""One code judge on each Ray node, for as long as a run lasts.

A judge dies with the worker that holds it. Ray starts a worker that died again, without a judge and without a word to the
run; so each is asked now and then, and told to start its judge where everybody looks for it.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import ray

from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.cluster.spawn import ResourcePool, spawn
from agentrl.cluster.watching import watching
from agentrl.config.schema import JudgeSection
from agentrl.errors import AgentRLError, WorkerDiedError
from agentrl.judge.local import LocalJudge

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_PAUSES_S = (*(0.5,) * 20, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Before each try to start a judge again: often at first, as Ray is quick where the node is there. The last one repeats."""
_STOP_TIMEOUT_S = 10.0
"""Twice what a judge has to end by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJudges:
    """Judges that run."""

    urls: tuple[str, ...]
    """One per node."""
    token: str = field(repr=False)
    """What they all ask for. It is in the memory and the environment of processes, never in a file or a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJudgeConfig:
    """What one judge is told."""

    section: JudgeSection
    host: str
    """Address of its node, by which the other nodes reach it."""
    token: str = field(repr=False)


class NodeJudge:
    """Worker that holds the judge of its node; when it dies, however it does, so does the judge."""

    def __init__(self, config: NodeJudgeConfig, role: str) -> None:
        """Start nothing yet."""
        self._config = config
        self._url = ""
        self._running = contextlib.ExitStack()

    def start(self, port: int) -> str:
        """Start the judge, where there is none yet, and return its URL.

        Args:
            port: that it listens on; 0: any that is free.

        Raises:
            ConfigError: it refuses to start, for instance because the node cannot give `judge.min_isolation`.
            JudgeUnavailableError: it does not come up in time.
        """
        if not self._url:
            config = self._config
            judge = LocalJudge(config.section, host=config.host, port=port, token=config.token)
            self._url = self._running.enter_context(judge).url
        return self._url

    def is_started(self) -> bool:
        """Return whether this process has started its judge, which it then keeps alive."""
        return bool(self._url)

    def stop(self) -> None:
        """Stop the judge and every program in it."""
        self._running.close()


@contextlib.asynccontextmanager
async def node_judges(section: JudgeSection) -> AsyncIterator[NodeJudges]:
    """Run a judge on each node that Ray has now, and start it again at its address for as long as the node is there.

    Raises:
        ConfigError, JudgeUnavailableError: as `NodeJudge.start`.
    """
    token = secrets.token_urlsafe(32)
    workers = [
        _place(section, node_id=node["NodeID"], host=node["NodeManagerAddress"], token=token)
        for node in ray.nodes()
        if node["Alive"]
    ]
    try:
        urls = await all_of(worker.start(0) for worker in workers)
        logger.info("judges: one on each of %d nodes: %s", len(urls), ", ".join(urls))
        async with watching(_keep_all(workers, urls), what="judges of nodes"):
            yield NodeJudges(urls=tuple(urls), token=token)
    finally:
        # A process that died cannot be asked, whether its node was lost or not, and nothing of it is left to stop.
        await all_of(_stop(worker) for worker in workers)


def _place(section: JudgeSection, *, node_id: str, host: str, token: str) -> WorkerHandle:
    config = NodeJudgeConfig(section=section, host=host, token=token)
    # It computes nothing itself; the judge takes the cores that the policy leaves.
    pool = ResourcePool(num_processes=1, num_cpus=0, node_id=node_id)
    [worker] = spawn(NodeJudge, pool, config, f"judge on {host}", max_concurrency=1, restart=True)
    return worker


async def _keep_all(workers: list[WorkerHandle], urls: list[str]) -> None:
    await all_of(_keep(worker, url) for worker, url in zip(workers, urls, strict=True))


async def _keep(worker: WorkerHandle, url: str) -> None:
    """Have the judge started again at its address, whenever the process that held it has died."""
    while True:
        await _until_lost(worker)
        logger.warning("%s: its process died; it is started again at %s, unless its node is gone", worker, url)
        await _start_again(worker, port=urlsplit(url).port or 0)
        logger.info("%s: listening on %s again", worker, url)


async def _until_lost(worker: WorkerHandle) -> None:
    """Return when the process is not the one that started the judge, or does not answer."""
    with contextlib.suppress(AgentRLError):
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if not await worker.is_started():
                return


async def _start_again(worker: WorkerHandle, *, port: int) -> None:
    """Return when the judge is there again; where the node is gone, never."""
    for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
        await asyncio.sleep(pause_s)
        try:
            await worker.start(port)
        except WorkerDiedError:
            pass  # Ray has not started it yet
        except AgentRLError as error:  # such as the port, which the judge before it may still hold for seconds
            logger.warning("%s: %s", worker, error)
        else:
            return


async def _stop(worker: WorkerHandle) -> None:
    try:
        # Behind a judge that is being started it would wait for a minute; such a one dies with its worker.
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await worker.stop()
    except (WorkerDiedError, TimeoutError):
        pass
    finally:
        worker.kill()  # Ray keeps it, and starts it again, for as long as anybody has a handle
