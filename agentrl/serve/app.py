"""HTTP of the rollout service: routes, who may call, and errors as JSON."""

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.config.schema.addresses import is_loopback
from agentrl.errors import AgentRLError, ConfigError
from agentrl.serve.metrics import ServiceMetrics
from agentrl.serve.requests import BadRequestError, PromptReader, RolloutBody, WeightsBody, read_body
from agentrl.serve.rollouts import BusyError, RolloutService
from agentrl.serve.weights import PolicyWeights

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEALTH = "/health"
_MAX_BODY_BYTES = 256 << 20
_NDJSON = "application/x-ndjson"
_BACKLOG = 1024
"""Connections that may wait to be accepted."""
_CLOSE_S = 1.0
"""Time that open requests get when the service ends; then they are cancelled."""
_SEND_S = 600.0
"""Time that a client may take to read a line; then it is treated as gone, since its trajectories take the room of others."""


class ServiceApp:
    """The routes."""

    def __init__(
        self, rollouts: RolloutService, weights: PolicyWeights, engines: EngineFleet, reader: PromptReader
    ) -> None:
        self._rollouts = rollouts
        self._weights = weights
        self._engines = engines
        self._reader = reader
        self._metrics = ServiceMetrics(rollouts, weights)

    def build(self, *, token: str | None) -> web.Application:
        """Return the application, which wants the bearer `token` if there is one."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_guard(token), _errors_as_json])
        app.router.add_post("/v1/rollouts", self.roll_out)
        app.router.add_post("/v1/weights", self.load_weights)
        app.router.add_get("/v1/status", self.status)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get(HEALTH, self.health)
        return app

    async def roll_out(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1/rollouts`: a line for each trajectory when it has ended, then their summary."""
        received_at = time.monotonic()
        wanted = self._reader.read(read_body(await request.read(), RolloutBody))
        with self._rollouts.reserved(wanted) as opened:
            prompt_tokens = await self._rollouts.measure(wanted)
            response = web.StreamResponse(headers={"Content-Type": _NDJSON})
            await response.prepare(request)

            async def send(line: bytes) -> None:
                if not opened.sent:
                    self._metrics.note_first_line(time.monotonic() - received_at)
                async with asyncio.timeout(_SEND_S):
                    await response.write(line)

            try:
                await self._rollouts.roll_out(opened, prompt_tokens, send)
                await send(_line(opened.summary()))
            except AgentRLError as error:
                logger.error("request %d: ended after %d trajectories: %s", opened.number, len(opened.sent), error)
                await response.write(_line({"kind": "error", "message": str(error)}))
            except TimeoutError:
                logger.warning("request %d: its client has read nothing for %g s, cancelled", opened.number, _SEND_S)
                assert request.transport is not None, "it is connected"
                request.transport.abort()
            except ConnectionResetError:
                pass  # the client has left, and everything is cancelled
        with contextlib.suppress(ConnectionResetError):
            await response.write_eof()
        return response

    async def load_weights(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/weights` when all engines have them."""
        body = read_body(await request.read(), WeightsBody)
        return _json({"policy_version": await self._weights.load(body.path)})

    async def status(self, _: web.Request) -> web.Response:
        """Answer `GET /v1/status`: the load, and the version of the policy."""
        service = self._rollouts
        return _json(
            {
                "policy_version": self._weights.version,
                "num_requests": service.num_requests,
                "num_open_trajectories": service.num_open,
                "max_open_trajectories": service.max_open,
                "num_finished_trajectories": service.finished.total(),
                "engines": await self._engines.loads(),
            }
        )

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer `GET /metrics` for Prometheus."""
        return web.Response(body=self._metrics.render(), headers={"Content-Type": self._metrics.content_type})

    async def health(self, _: web.Request) -> web.Response:
        """Answer `GET /health`; the process ends when it can roll out nothing more."""
        return _json({"status": "ok"})


@contextlib.asynccontextmanager
async def listening(app: web.Application, socket: Any) -> AsyncIterator[None]:
    """Answer requests at a bound socket as long as the context lasts; a request whose client leaves is cancelled."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_CLOSE_S, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, socket, backlog=_BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


def _guard(token: str | None) -> Any:
    """Return a middleware that refuses who may not call; without a token, that is who names another host.

    A web page can let its own name resolve to this machine (DNS rebinding), or post a form here, which is no JSON.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None:
            host = urlsplit(f"//{request.host}").hostname or ""
            if not is_loopback(host):
                return _error(HTTPStatus.FORBIDDEN, f"host: `{host}` is not this machine; set `service.token_env`")
        elif request.path != HEALTH:
            given = request.headers.get("Authorization", "").encode(errors="replace")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                return _error(HTTPStatus.UNAUTHORIZED, "authorization: the bearer token is missing or wrong")
        if request.method == "POST" and request.content_type != "application/json":
            return _error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content-type: send `application/json`")
        return await handler(request)

    return guard


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BusyError as error:
        response = _error(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        response.headers["Retry-After"] = str(error.retry_after_s)
        return response
    except BadRequestError as error:
        rows = [{"row": index, "message": message} for index, message in error.rows.items()]
        return _json({"error": str(error), "rows": rows}, status=HTTPStatus.BAD_REQUEST)
    except ConfigError as error:
        return _error(HTTPStatus.BAD_REQUEST, str(error))
    except AgentRLError as error:
        logger.error("%s %s: %s", request.method, request.path, error)
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason}")


def _line(values: dict[str, Any]) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def _json(values: dict[str, Any], *, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=_line(values), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status=status)
