"""Background watches, and questions to Ray."""

import asyncio
import threading

import pytest

from agentrl.cluster.ray import polling as module
from agentrl.cluster.ray.polling import ask_ray, watching


async def watch_with_a_bug() -> None:
    raise ZeroDivisionError


async def test_a_bug_in_a_watch_is_logged_at_once_and_what_goes_on_beside_it_goes_on(caplog: pytest.LogCaptureFixture):
    async with watching(watch_with_a_bug(), what="nodes"):
        await asyncio.sleep(0.01)
        [warning] = [record for record in caplog.records if record.name == module.__name__]
        assert warning.message == "nodes: no longer watched, which is a bug"
        assert warning.exc_info is not None
        assert warning.exc_info[0] is ZeroDivisionError


async def test_the_end_of_a_watch_with_its_context_is_no_error(caplog: pytest.LogCaptureFixture):
    async with watching(asyncio.sleep(1000), what="nodes"):
        await asyncio.sleep(0.01)
    assert not caplog.records


async def test_a_cancelled_question_ends_when_ray_has_answered():
    loop, is_asked = asyncio.get_running_loop(), asyncio.Event()
    may_answer, has_answered = threading.Event(), threading.Event()

    def look() -> None:
        loop.call_soon_threadsafe(is_asked.set)
        may_answer.wait(60)
        has_answered.set()

    question = asyncio.create_task(ask_ray(look))
    await is_asked.wait()
    question.cancel()
    loop.call_later(0.01, may_answer.set)
    await asyncio.wait({question})
    assert question.cancelled()
    assert has_answered.is_set()
