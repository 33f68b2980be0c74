"""The endpoints of SandboxFusion: `/run_code`, `/run_jupyter` and `/v1/ping`.

Overload is a 504, the only answer that verl's client retries.
"""

import json
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request

from code_judge_server.api.http_errors import DOCUMENTED_REFUSALS, RejectedError
from code_judge_server.api.http_guards import StrictJsonRoute, cancel_on_disconnect, client_of
from code_judge_server.api.limits.sent_replies import until_sent
from code_judge_server.compatible import notebook_driver
from code_judge_server.compatible.sandbox_fusion_results import (
    compile_result,
    encoded_files,
    failed_compile_result,
    read_cell_results,
    run_result,
    run_status,
)
from code_judge_server.compatible.sandbox_fusion_schemas import (
    RunCodeRequest,
    RunCodeResponse,
    RunJupyterRequest,
    RunJupyterResponse,
    RunStatus,
)
from code_judge_server.jail.kernel import jail_root
from code_judge_server.jail.launch.plan import path_in_alias
from code_judge_server.jail.python import notebook, notebook_display
from code_judge_server.languages import LanguageRules, paths_to_show, wrong_fields
from code_judge_server.limits import as_limits
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.sandbox.executor import JobLimits
from code_judge_server.schemas import IsolationTier, Limits, Rejection, Submission, Verdict, VerdictStatus
from code_judge_server.settings import Settings

_OUR_NAMES = {"nodejs": "javascript", "js": "javascript", "ts": "typescript", "R": "r", "D_ut": "d_ut"}
"""Languages whose name differs in SandboxFusion."""
_REFUSALS: dict[int | str, dict[str, Any]] = {
    **{status: answer for status, answer in DOCUMENTED_REFUSALS.items() if status != 429},
    504: {"model": Rejection, "description": "No slot was free in time"},
}


_TIERS_WITH_OWN_ROOT = (IsolationTier.A, IsolationTier.B)
_WITHOUT_GIVEN_FILES = "import sys; del sys.path[0]\n"
"""First line of the driver, so that it does not import a `random.py` among the cells' files."""
_GRACE_S = 0.25
"""Time between a notebook's limits and those of its job, in which the driver ends it and keeps the results so far."""


class _SandboxFusion:
    """Runs SandboxFusion's requests through the queue."""

    def __init__(
        self, settings: Settings, queue: SubmissionQueue, languages: Mapping[str, LanguageRules], tier: IsolationTier
    ) -> None:
        self._tier = tier
        self._settings = settings
        self._queue = queue
        self._languages = languages
        self._path_in_alias = path_in_alias([*map(str, settings.read_only_paths), *paths_to_show(languages)])
        self._notebook_driver = _WITHOUT_GIVEN_FILES + Path(notebook_driver.__file__).read_text()
        self._notebook_modules = {
            f"{notebook_driver.CELL_FOLDER}/{module.__name__.replace('.', '/')}.py": Path(
                str(module.__file__)
            ).read_bytes()
            for module in (notebook, notebook_display)
        }

    async def run_code(self, body: RunCodeRequest, request: Request) -> RunCodeResponse:
        """Run one program."""
        language = _OUR_NAMES.get(body.language, body.language)
        rules = self._languages.get(language)
        if rules is None:
            message = f"language: `{body.language}` is not among this server's: {', '.join(self._languages)}"
            return RunCodeResponse(status=RunStatus.SANDBOX_ERROR, message=message)
        self._refuse_absolute_paths(body)
        verdict = await self._verdict(_program(body, language), request)
        status = run_status(verdict)
        if status is RunStatus.SANDBOX_ERROR:
            return RunCodeResponse(status=status, message=verdict.stderr or verdict.status)
        if verdict.status is VerdictStatus.COMPILE_ERROR:
            time_limit_s = min(body.compile_timeout, self._settings.compile_time_s)
            failure = failed_compile_result(verdict, time_limit_s=time_limit_s)
            return RunCodeResponse(status=status, compile_result=failure)
        return RunCodeResponse(
            status=status,
            compile_result=None if rules.compile is None else compile_result(verdict),
            run_result=run_result(verdict),
            files=encoded_files(body.fetch_files, verdict.files),
        )

    async def run_jupyter(self, body: RunJupyterRequest, request: Request) -> RunJupyterResponse:
        """Run the cells of one notebook in one interpreter."""
        self._refuse_absolute_paths(body)
        limits = self._notebook_limits(body)
        verdict = await self._verdict(self._notebook(body, limits), request)
        status = run_status(verdict)
        if status is RunStatus.SANDBOX_ERROR:
            return RunJupyterResponse(status=status, message=verdict.stderr or verdict.status)
        driver = run_result(verdict, too_late=_has_killed_itself(verdict, limits))
        results = verdict.files.get(notebook_driver.RESULT_FILE, b"")
        cells = read_cell_results(results, num_cells=len(body.cells), max_chars=self._settings.max_reply_chars)
        if cells is None:
            return RunJupyterResponse(status=RunStatus.FAILED, driver=driver)
        if len(cells) < len(body.cells):  # it ended before the last cell, whatever its exit code
            status = RunStatus.FAILED
        files = encoded_files(body.fetch_files, verdict.files)
        return RunJupyterResponse(status=status, driver=driver, cells=cells, files=files)

    def _refuse_absolute_paths(self, body: RunCodeRequest | RunJupyterRequest) -> None:
        path = body.absolute_path
        if path is not None and self._tier not in _TIERS_WITH_OWN_ROOT:
            raise RejectedError(
                f"files: `{path}`: programs have a root folder of their own in tiers A and B only, and this server reaches "
                f"{self._tier}. Use relative paths"
            )
        if path is not None and self._path_in_alias is not None and body.uses(jail_root.ALIAS):
            raise RejectedError(
                f"files: `{jail_root.ALIAS}` is not the program's folder here: this server shows `{self._path_in_alias}` to "
                "programs. Use relative paths"
            )

    def _notebook_limits(self, body: RunJupyterRequest) -> JobLimits:
        time_s = body.total_timeout + _GRACE_S
        limits = Limits(cpu_time_s=time_s, wall_time_s=time_s, memory_bytes=body.memory_bytes)
        return self._settings.limit_policy.effective(limits)

    def _notebook(self, body: RunJupyterRequest, limits: JobLimits) -> Submission:
        numbered = enumerate(body.cells, start=1)
        cells = {notebook_driver.CELL_FILE.format(number=number): cell.encode() for number, cell in numbered}
        task = {
            "num_cells": len(cells),
            "cell_timeout": min(body.cell_timeout, body.total_timeout),  # timers have an upper bound
            "total_timeout": _without_grace(limits.wall_time_s),
            "cpu_time": _without_grace(limits.cpu_time_s),
            "max_chars": self._settings.max_reply_chars,
        }
        return Submission(
            id=str(uuid.uuid4()),
            language="python",
            code=self._notebook_driver,
            stdin=json.dumps(task),
            limits=as_limits(limits),
            files=body.given_files | cells | self._notebook_modules,
            collect=[notebook_driver.RESULT_FILE, *body.wanted_files],
        )

    async def _verdict(self, submission: Submission, request: Request) -> Verdict:
        if errors := wrong_fields(submission, self._languages):
            raise RejectedError(f"wrong fields: `{errors[0].field}`: {errors[0].message}", errors=errors)
        max_queue_time_s = self._settings.max_queue_time_s
        work = self._queue.judge_all(
            [submission],
            client=client_of(request.scope),
            max_queue_time_s=max_queue_time_s,
            room=until_sent(request),
        )
        (verdict,) = await cancel_on_disconnect(request, work)
        if verdict.status is VerdictStatus.QUEUE_TIMEOUT:
            raise RejectedError(f"queue: no slot within {max_queue_time_s:g} s (max_queue_time_s)", status_code=504)
        return verdict


def sandbox_fusion_router(
    settings: Settings, queue: SubmissionQueue, languages: Mapping[str, LanguageRules], tier: IsolationTier
) -> APIRouter:
    """Return the routes; their formats are documented in `sandbox_fusion_schemas`."""
    router = APIRouter(route_class=StrictJsonRoute, responses=_REFUSALS)
    runner = _SandboxFusion(settings, queue, languages, tier)

    @router.get("/v1/ping")
    async def ping() -> str:
        """Answer a probe."""
        return "pong"

    @router.post("/run_code")
    async def run_code(body: RunCodeRequest, request: Request) -> RunCodeResponse:
        """Run one program, and return its compiler's result too, if it has one."""
        return await runner.run_code(body, request)

    @router.post("/run_jupyter")
    async def run_jupyter(body: RunJupyterRequest, request: Request) -> RunJupyterResponse:
        """Run the cells of one notebook."""
        return await runner.run_jupyter(body, request)

    return router


def _without_grace(limit_s: float) -> float:
    return max(limit_s - _GRACE_S, limit_s / 2)


def _has_killed_itself(verdict: Verdict, limits: JobLimits) -> bool:
    """Return whether the notebook's driver ended the cells at one of these limits."""
    used = ((verdict.wall_time_s, limits.wall_time_s), (verdict.cpu_time_s, limits.cpu_time_s))
    return verdict.signal == signal.SIGKILL and any(time_s > _without_grace(limit) for time_s, limit in used)


def _program(body: RunCodeRequest, language: str) -> Submission:
    return Submission(
        id=str(uuid.uuid4()),
        language=language,
        code=body.code,
        stdin=body.stdin or "",
        limits=Limits(
            cpu_time_s=body.run_timeout,
            wall_time_s=body.run_timeout,
            memory_bytes=body.memory_bytes,
            compile_time_s=body.compile_timeout,
        ),
        files=body.given_files,
        collect=body.wanted_files,
    )
