"""New weights for the service's engines, from folders that a trainer writes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.ray.polling import watching
from agentrl.config.schema.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError, EngineError
from agentrl.serve.requests import BadRequestError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.transports.folder import fingerprint, folder_source

logger = logging.getLogger(__name__)


class PolicyWeights:
    """Weights that all engines have; running trajectories go on with new ones, and each token carries its version."""

    def __init__(self, config: RunConfig, engines: EngineFleet) -> None:
        """Take engines that have loaded `model.path`, which is version 0."""
        self._takes_weights = config.rollout.engine != "openai"
        self._engines = engines
        self._lock = asyncio.Lock()
        self._source: WeightSource | None = None
        if Path(config.model.path).is_dir():
            with contextlib.suppress(ConfigError):  # weights in another format, of which engines keep their own
                self._source = folder_source(Path(config.model.path), version=0)
        self.version = 0
        """Version of the last load that every engine confirmed."""
        self._last_number = 0
        self._loading: set[asyncio.Task[int]] = set()

    async def load(self, path: str) -> int:
        """Load a Hugging Face folder into every engine as the next version, and return that; a load goes on if cancelled.

        Raises:
            BadRequestError: the folder cannot be read, or an engine refuses it. Others may have loaded it, so that number
                is not used for other weights.
        """
        if not self._takes_weights:
            raise BadRequestError(
                "`rollout.engine` is `openai`, whose servers take no new weights; update them yourself"
            )
        folder = Path(path)
        if not folder.is_absolute():
            raise BadRequestError(f"`path` is {path!r}, and must be absolute: the service has another working folder")
        loading = asyncio.create_task(self._load(folder))
        self._loading.add(loading)
        loading.add_done_callback(self._loading.discard)
        return await asyncio.shield(loading)

    async def _load(self, folder: Path) -> int:
        async with self._lock:
            try:
                source = await asyncio.to_thread(folder_source, folder, version=self._last_number + 1)
                self._last_number = source.version
                await self._engines.load(source)
            except (ConfigError, EngineError) as error:
                logger.warning("weights: not loaded: %s", error)  # the client may have left
                raise BadRequestError(str(error)) from error
            self._source, self.version = source, source.version
        logger.info("weights: version %d from %s", self.version, folder)
        return self.version

    @contextlib.asynccontextmanager
    async def serving_late_engines(self) -> AsyncIterator[None]:
        """Load the current weights into engines that come late, after a restart, as long as the context lasts.

        Its end cancels open loads too: an engine that ends with the service must not look dead to them.
        """
        try:
            async with watching(self._serve_late_engines(), what="engines that wait for weights"):
                yield
        finally:
            for loading in self._loading:
                loading.cancel()
            await asyncio.gather(*self._loading, return_exceptions=True)

    async def _serve_late_engines(self) -> None:
        while True:
            await self._engines.came_late.wait()
            self._engines.came_late.clear()
            async with self._lock:
                source = self._source
                if source is None or fingerprint(Path(source.address)) != source.publisher:
                    error = EngineError(
                        f"weights: a restarted engine needs version {self.version}, whose folder is gone or was changed. "
                        "Keep a folder until the next version is loaded"
                    )
                    if self._engines.takes_work:
                        logger.error("%s; it waits for that", error)
                    else:  # requests would wait for ever, and the trainer for them
                        self._engines.fail(error)
                    continue
                try:
                    await self._engines.load(source)
                except AgentRLError as error:
                    self._engines.fail(error)
