"""HTTP of the dashboard: its pages, its JSON, and the stream of what is new."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from agentrl.dashboard.access import Guard
from agentrl.dashboard.live import LiveRuns
from agentrl.dashboard.queries import (
    BadQueryError,
    Filter,
    failure_clusters,
    group_places,
    group_rewards,
    prompt_history,
    step_files,
    step_summary,
    trajectory_page,
    trajectory_place,
)
from agentrl.dashboard.records import conversation, group, tokens
from agentrl.dashboard.runs import Run, read_result
from agentrl.dashboard.scans import Scans
from agentrl.observability.json_lines import encode_line

_STATIC = Path(__file__).parent / "static"
_JSON_LINES = "application/x-ndjson"
_MAX_NAMES = 400
"""Metrics that a request may name."""

Names = Annotated[list[str], Query(alias="name", max_length=_MAX_NAMES)]


class JsonResponse(Response):
    """Plain data as JSON; NaN becomes null, and half a surrogate pair of a policy's text is escaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return encode_line(content)


class Dashboard:
    """The routes, over some runs by key."""

    def __init__(self, runs: dict[str, Run]) -> None:
        self._runs = runs
        self.live = LiveRuns(runs)
        self._scans = Scans()

    def build(self, *, token: str | None) -> FastAPI:
        """Return the application, which wants `token` if there is one."""
        guard = Middleware(Guard, token=token)
        # Pages stay within this machine or a local network, where level 1 is faster than no compression at all.
        app = FastAPI(
            lifespan=self._open,
            middleware=[guard, Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)],
            default_response_class=JsonResponse,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
        )
        app.add_exception_handler(BadQueryError, _bad_query)
        app.add_exception_handler(ValueError, _bad_query)
        app.get("/")(self.page)
        app.get("/api/runs")(self.runs)
        app.get("/api/events")(self.events)
        app.get("/api/runs/{run}/about")(self.about)
        app.get("/api/runs/{run}/metrics")(self.metrics)
        app.get("/api/runs/{run}/steps")(self.steps)
        app.get("/api/runs/{run}/summary")(self.summary)
        app.get("/api/runs/{run}/trajectories")(self.trajectories)
        app.get("/api/runs/{run}/trajectory")(self.trajectory)
        app.get("/api/runs/{run}/tokens")(self.tokens)
        app.get("/api/runs/{run}/group")(self.group)
        app.get("/api/runs/{run}/history")(self.history)
        app.get("/api/runs/{run}/failures")(self.failures)
        app.get("/api/runs/{run}/search")(self.search)
        app.get("/api/runs/{run}/failed_calls")(self.failed_calls)
        app.state.runs = self._runs
        app.mount("/static", StaticFiles(directory=_STATIC))
        return app

    @asynccontextmanager
    async def _open(self, _: FastAPI) -> AsyncIterator[None]:
        for run in self._runs.values():
            run.start()
        yield
        for run in self._runs.values():
            run.close()

    async def page(self) -> FileResponse:
        """Answer `/` with the one page; the rest of an address is behind its `#`."""
        return FileResponse(_STATIC / "index.html")

    async def runs(self) -> JsonResponse:
        """List the runs with their state."""
        return JsonResponse(self.live.snapshot())

    async def events(self, request: Request) -> StreamingResponse:
        """Stream the state of the runs as server-sent events, one whenever something is new."""
        return StreamingResponse(self.live.stream(request.is_disconnected), media_type="text/event-stream")

    async def about(self, run: str) -> JsonResponse:
        """Return config, result and the end of the log of a run."""
        opened = self._run(run)
        about = await opened.read(
            lambda: {"config": opened.config(), "result": read_result(opened.path), "log": opened.log_tail()}
        )
        return JsonResponse(about | {"path": str(opened.path)})

    async def metrics(self, run: str, names: Names = []) -> JsonResponse:  # noqa: B006
        """Return the named series, and of all metrics the last values."""
        table = self._run(run).metrics

        def read() -> dict[str, Any]:
            return {"steps": table.steps.tolist(), "latest": table.latest(), "series": table.series(names)}

        return JsonResponse(await self._run(run).read(read))

    async def steps(self, run: str) -> JsonResponse:
        """List the recorded steps."""
        return JsonResponse({"files": await self._run(run).query(step_files)})

    async def summary(self, run: str, file: str) -> JsonResponse:
        """Return groups, histograms and counts of one step."""
        step, is_validation = _step_of(file)
        found = await self._run(run).query(lambda index: step_summary(index, step, is_validation=is_validation))
        return JsonResponse(found)

    async def trajectories(
        self,
        run: str,
        file: str = "",
        sort: str = "started_at",
        descending: bool = False,
        cursor: str = "",
        min_reward: float | None = None,
        max_reward: float | None = None,
        termination: str = "",
        fate: str = "",
        failed_calls: bool = False,
        text: str = "",
        failure_class: str = "",
        failure_cause: str = "",
    ) -> JsonResponse:
        """Return a page of the trajectories of a step, or of all steps if `file` is empty."""
        step, is_validation = _step_of(file) if file else (None, False)
        where = Filter(
            step=step,
            is_validation=is_validation,
            min_reward=min_reward,
            max_reward=max_reward,
            termination=termination,
            fate=fate,
            failed_calls=failed_calls,
            text=text,
            failure=(failure_class, failure_cause) if failure_class else None,
        )
        page = await self._run(run).query(
            lambda index: trajectory_page(index, where, sort=sort, descending=descending, cursor=cursor)
        )
        return JsonResponse(page)

    async def trajectory(self, run: str, file: str, offset: int) -> JsonResponse:
        """Return the conversation at a place, and the rewards of its group."""
        opened = self._run(run)

        def read(index: sqlite3.Connection) -> dict[str, Any]:
            place = trajectory_place(index, file, offset)
            return conversation(opened.path, place) | {"group": group_rewards(index, file, place["prompt_id"])}

        return JsonResponse(await opened.query(read))

    async def tokens(self, run: str, file: str, offset: int) -> JsonResponse:
        """Return the tokens of the trajectory at a place."""
        opened = self._run(run)
        found = await opened.query_records(
            lambda index, texts: tokens(opened.path, trajectory_place(index, file, offset), texts)
        )
        return JsonResponse(found)

    async def group(self, run: str, file: str, prompt_id: str) -> JsonResponse:
        """Return the trajectories of a group with their tokens."""
        opened = self._run(run)
        found = await opened.query_records(
            lambda index, texts: group(opened.path, group_places(index, file, prompt_id), texts)
        )
        return JsonResponse(found)

    async def history(self, run: str, prompt_id: str) -> JsonResponse:
        """Return the rewards of a prompt over the steps."""
        return JsonResponse({"steps": await self._run(run).query(prompt_history, prompt_id)})

    async def failures(self, run: str) -> JsonResponse:
        """Return failed attempts in clusters."""
        return JsonResponse({"clusters": await self._run(run).query(failure_clusters)})

    async def search(self, run: str, pattern: str) -> StreamingResponse:
        """Stream where a regular expression matches, the newest step first."""
        return StreamingResponse(self._scans.lines(self._run(run).path, "search", pattern), media_type=_JSON_LINES)

    async def failed_calls(self, run: str) -> StreamingResponse:
        """Stream clusters of failed tool calls, the newest step first."""
        return StreamingResponse(self._scans.lines(self._run(run).path, "failed_calls"), media_type=_JSON_LINES)

    def _run(self, key: str) -> Run:
        run = self._runs.get(key)
        if run is None:
            raise BadQueryError(f"run: no run `{key}` is open")
        return run


def _step_of(file: str) -> tuple[int, bool]:
    kind, _, number = file.partition("_")
    if kind not in ("step", "validation") or not (number.isascii() and number.isdigit()):
        raise BadQueryError(f"file: `{file}` is no step")
    return int(number), kind == "validation"


async def _bad_query(_: Request, error: Exception) -> Response:
    return Response(orjson.dumps({"error": str(error)}), status_code=404, media_type="application/json")
