"""The HTTP application: the parts put together, and their start and end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from code_judge_server import __version__
from code_judge_server.code_judge_api import code_judge_router
from code_judge_server.http_errors import install_error_handlers
from code_judge_server.http_guards import LimitBody, RequireToken
from code_judge_server.judging import Judge
from code_judge_server.languages import available_languages
from code_judge_server.native_api import native_router
from code_judge_server.queue import SubmissionQueue
from code_judge_server.sandbox import Executor, ExecutorError
from code_judge_server.schemas import Language, Submission, VerdictStatus
from code_judge_server.settings import Settings

_CANARY_OUTPUT = "the judge works"


def create_app(settings: Settings, executor: Executor) -> FastAPI:
    """Return the application; it starts the executor, and closes it when the server stops."""
    judge = Judge(executor, max_limits=settings.max_limits, max_reply_chars=settings.max_reply_chars)
    queue = SubmissionQueue(judge, num_slots=settings.slot_count, capacity=settings.queue_capacity)
    languages = available_languages()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await executor.start()
        try:
            await _judge_canary(judge)
            yield
        finally:
            await executor.aclose()

    app = FastAPI(title="code judge", version=__version__, lifespan=lifespan)
    app.include_router(native_router(settings, queue, executor, languages))
    app.include_router(code_judge_router(settings, queue, languages))
    install_error_handlers(app)
    app.add_middleware(LimitBody, max_bytes=settings.max_body_bytes)
    if settings.token is not None:
        app.add_middleware(RequireToken, token=settings.token.get_secret_value())
    return app


async def _judge_canary(judge: Judge) -> None:
    """Judge a program whose verdict is known.

    Raises:
        ExecutorError: the verdict is another one: this machine cannot judge.
    """
    program = Submission(
        id="canary",
        language=Language.PYTHON,
        code="print(input())",
        stdin=_CANARY_OUTPUT,
        expected_output=_CANARY_OUTPUT,
    )
    verdict = await judge.judge(program, queue_time_s=0.0)
    if verdict.status is not VerdictStatus.ACCEPTED:
        raise ExecutorError(f"canary: a program that echoes its input was judged `{verdict.status}`: {verdict.stderr}")
