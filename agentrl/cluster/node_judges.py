"""One code judge on each Ray node, for as long as a run lasts."""

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import ray

from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.cluster.spawn import ResourcePool, spawn
from agentrl.config.schema import JudgeSection
from agentrl.errors import WorkerDiedError
from agentrl.judge.local import LocalJudge

logger = logging.getLogger(__name__)


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
        self._judge = LocalJudge(config.section, host=config.host, token=config.token)
        self._running = contextlib.ExitStack()

    def start(self) -> str:
        """Start the judge and return its URL.

        Raises:
            ConfigError: it refuses to start, for instance because the node cannot give `judge.min_isolation`.
            JudgeUnavailableError: it does not come up in time.
        """
        return self._running.enter_context(self._judge).url

    def stop(self) -> None:
        """Stop the judge and every program in it."""
        self._running.close()


@contextlib.asynccontextmanager
async def node_judges(section: JudgeSection) -> AsyncIterator[NodeJudges]:
    """Run a judge on each node that Ray has now.

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
        urls = await all_of(worker.start() for worker in workers)
        logger.info("judges: one on each of %d nodes: %s", len(urls), ", ".join(urls))
        yield NodeJudges(urls=tuple(urls), token=token)
    finally:
        # The process of a node that was lost cannot be asked, and nothing of it is left to stop.
        await all_of(_stop(worker) for worker in workers)


def _place(section: JudgeSection, *, node_id: str, host: str, token: str) -> WorkerHandle:
    config = NodeJudgeConfig(section=section, host=host, token=token)
    # It computes nothing itself; the judge takes the cores that the policy leaves.
    pool = ResourcePool(num_processes=1, num_cpus=0, node_id=node_id)
    [worker] = spawn(NodeJudge, pool, config, f"judge on {host}", max_concurrency=1)
    return worker


async def _stop(worker: WorkerHandle) -> None:
    with contextlib.suppress(WorkerDiedError):
        await worker.stop()
