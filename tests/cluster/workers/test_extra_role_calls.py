"""Calls of a method of an extra role that nobody waits for any more, without a cluster."""

import asyncio

import pytest

from agentrl.cluster.workers.extra_roles import _Serving
from agentrl.errors import CallFailedError


class Sleeper(_Serving):
    """Sleeps until it is woken."""

    async def agentrl_process(self) -> str:
        return "here"

    async def sleep(self) -> None:
        await asyncio.sleep(600)

    async def give_up(self) -> None:
        raise asyncio.CancelledError


async def test_a_call_that_is_cancelled_is_cancelled():
    call = asyncio.create_task(Sleeper().agentrl_call("here", "sleep", {}))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()


async def test_a_call_has_no_more_time_than_it_is_given():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Sleeper().agentrl_call("here", "sleep", {})


async def test_a_method_that_raises_what_a_cancelled_call_does_has_failed():
    with pytest.raises(CallFailedError, match="CancelledError"):
        await Sleeper().agentrl_call("here", "give_up", {})
