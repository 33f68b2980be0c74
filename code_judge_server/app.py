"""The HTTP application: its parts, their start and their end."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from code_judge_server import __version__
from code_judge_server.api.docs_page import add_docs_page, document_refusals
from code_judge_server.api.http_errors import install_error_handlers
from code_judge_server.api.http_guards import CountRequests, RequireLocalHost, RequireToken
from code_judge_server.api.limits.body_limit import LimitBody
from code_judge_server.api.live_output import live_router
from code_judge_server.api.native_api import state_router, submission_router
from code_judge_server.compatible.code_judge_api import code_judge_router
from code_judge_server.compatible.sandbox_fusion_api import sandbox_fusion_router
from code_judge_server.judging.judge import Judge, create_judge
from code_judge_server.judging.language_probe import first_usable, unusable_languages
from code_judge_server.languages import LanguageRules, offered_languages, replacements
from code_judge_server.metrics import Metrics
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.queueing.shared_capacity import SharedCapacity
from code_judge_server.sandbox.executor import Executor, ExecutorError
from code_judge_server.schemas import Health, Submission, VerdictStatus
from code_judge_server.sessions.api import install_session_errors, session_router
from code_judge_server.sessions.manager import SessionManager
from code_judge_server.settings import MIB, Settings

logger = logging.getLogger(__name__)

_CANARY_OUTPUT = "the judge works"


def create_app(settings: Settings, executor: Executor) -> FastAPI:
    """Return the application; it starts the executor, and closes it when the server stops.

    Its `state.queue` is the `SubmissionQueue`, through which the server drains; its `state.metrics` is the `Metrics`.
    """
    metrics = Metrics()
    languages = offered_languages(settings.languages)
    judge = create_judge(settings, executor, languages)
    queue = SubmissionQueue(judge, executor, settings, metrics)

    sessions = SessionManager(executor, queue, settings)

    def health_of(client: str) -> Health:
        return _health(client, settings, executor, queue, languages)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await executor.start()
        try:
            await _judge_canary(judge)
            await _drop_unusable_languages(executor, languages, settings)
            yield
        finally:
            sessions.close_all()
            await executor.aclose()

    app = FastAPI(title="code judge", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.queue = queue
    app.state.metrics = metrics
    app.routes.extend(submission_router(settings, queue, languages).routes)  # faster than `include_router`
    app.include_router(live_router(judge, queue, languages))
    app.include_router(state_router(queue, health_of, metrics))
    app.include_router(code_judge_router(settings, queue, languages))
    app.include_router(sandbox_fusion_router(settings, queue, languages, executor.tier))
    app.include_router(session_router(sessions))
    document_refusals(app)
    add_docs_page(app)
    install_error_handlers(app)
    install_session_errors(app)
    metrics.watch(lambda: health_of(""), executor)
    memory = SharedCapacity(settings.request_memory_mb * MIB)
    app.add_middleware(LimitBody, max_bytes=settings.max_body_bytes, memory=memory)
    if settings.token is not None:
        app.add_middleware(RequireToken, token=settings.token.get_secret_value())
    else:
        app.add_middleware(RequireLocalHost)
    app.add_middleware(CountRequests, metrics=metrics)
    return app


def _health(
    client: str, settings: Settings, executor: Executor, queue: SubmissionQueue, languages: Mapping[str, LanguageRules]
) -> Health:
    return Health(
        status="draining" if queue.is_draining else "ok",
        version=__version__,
        isolation=executor.tier,
        memory_enforcement=executor.memory_enforcement,
        canaries=list(executor.canaries),
        preloads=list(executor.preloads),
        num_slots=queue.num_slots,
        num_running=queue.num_running,
        queue_length=queue.num_waiting,
        queue_capacity=settings.queue_capacity,
        estimated_wait_s=queue.estimated_wait_s(client),
        languages=list(languages),
        max_batch_items=settings.max_batch_items,
        default_limits=settings.default_limits,
        max_limits=settings.max_limits,
    )


async def _drop_unusable_languages(executor: Executor, languages: dict[str, LanguageRules], settings: Settings) -> None:
    limits = settings.limit_policy.effective(settings.default_limits)
    for name, reason in (await unusable_languages(executor, languages, limits=limits)).items():
        replacement = await first_usable(executor, replacements(name, languages[name]), limits=limits)
        if replacement is not None:
            languages[name] = replacement
            continue
        level = logging.WARNING if name in settings.languages else logging.INFO  # nobody asked for a built-in language
        logger.log(level, "language `%s`: not offered: %s", name, reason)
        del languages[name]


async def _judge_canary(judge: Judge) -> None:
    """Judge a program whose verdict is known.

    Raises:
        ExecutorError: the verdict is wrong, so this machine cannot judge.
    """
    program = Submission(
        id="canary",
        language="python",
        code="print(input())",
        stdin=_CANARY_OUTPUT,
        expected_output=_CANARY_OUTPUT,
    )
    verdict = await judge.judge(program, queue_time_s=0.0)
    if verdict.status is not VerdictStatus.ACCEPTED:
        raise ExecutorError(f"canary: a program that echoes its input was judged `{verdict.status}`: {verdict.stderr}")
