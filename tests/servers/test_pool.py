"""Selection, back-off and return of hosts, with a scripted probe; both clients test the rest over HTTP."""

import asyncio
import time

import pytest

from agentrl.errors import EngineError
from agentrl.servers.back_off import Host
from agentrl.servers.pool import HostPool
from agentrl.servers.session import BrokenError, BusyError, NotAnsweredError, RefusedError, ServerSession


class Pool(HostPool[Host]):
    """Hosts `a`, `b`, ...; a probe raises the first of `outcomes` until there is none left."""

    def __init__(self, names: str, *outcomes: Exception) -> None:
        super().__init__([Host(url=name) for name in names], ServerSession(token=None), name="test")
        self.outcomes = list(outcomes)
        self.probed_at: list[float] = []

    async def probe(self, host: Host) -> None:
        self.probed_at.append(time.monotonic())
        if self.outcomes:
            raise self.outcomes.pop(0)


def fail(pool: Pool, host: Host, error: Exception) -> None:
    with pytest.raises(type(error)), pool.attempt(host):
        raise error


async def test_the_least_loaded_host_is_picked() -> None:
    pool = Pool("abc")
    for host, num_in_flight in zip(pool.hosts, (2, 0, 1), strict=True):
        host.num_in_flight = num_in_flight
    assert (await pool.pick()).url == "b"


async def test_a_broken_host_is_dropped_once_and_returns_after_a_passed_probe(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool("ab", BrokenError("still away"), EngineError("another program"))
    first, second = pool.hosts
    fail(pool, first, BrokenError("gone"))
    fail(pool, first, BrokenError("gone"))
    assert (first.is_down, pool.num_drops) == (True, 1)
    assert await pool.pick() is second
    second.num_in_flight = 1
    async with asyncio.timeout(60):
        while await pool.pick() is second:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    first_pause_s, second_pause_s = (
        after - before for before, after in zip(pool.probed_at, pool.probed_at[1:], strict=False)
    )
    assert first_pause_s >= 0.1, "half of 0.2 s"
    assert second_pause_s >= 0.2, "half of 0.4 s"
    assert "unsuitable, still dropped: another program" in caplog.text
    await pool.aclose()


async def test_a_full_host_is_skipped_for_as_long_as_it_asks() -> None:
    pool, started_at = Pool("a"), time.monotonic()
    fail(pool, pool.hosts[0], BusyError("full", retry_after_s=0.3))
    await pool.pick()
    assert time.monotonic() - started_at >= 0.3
    assert pool.probed_at == []


async def test_who_waits_gets_a_host_as_soon_as_it_is_back() -> None:
    pool = Pool("a")
    fail(pool, pool.hosts[0], BrokenError("gone"))
    async with asyncio.timeout(60):
        assert await pool.pick() is pool.hosts[0]
    assert len(pool.probed_at) == 1


async def test_one_answer_is_enough_and_the_others_are_dropped() -> None:
    pool = Pool("ab", BrokenError("gone"))
    await pool.require_one(pool.probe)
    assert [host.is_down for host in pool.hosts] == [True, False]
    await pool.aclose()
    pool.outcomes = [BrokenError("one"), BusyError("two")]
    with pytest.raises(NotAnsweredError, match="one; two"):
        await pool.require_one(pool.probe)
    pool.outcomes = [BrokenError("gone"), EngineError("unsuitable")]
    with pytest.raises(EngineError, match="unsuitable"):
        await pool.require_one(pool.probe)


def test_errors_are_named_by_their_status_and_show_no_token() -> None:
    session = ServerSession(token="s3cret", busy_status=503)
    named = {
        status: type(session.failure("u", status, b"", retry_after_s=1.0)) for status in (429, 503, 500, 408, 404, 307)
    }
    assert named == {
        429: BusyError,
        503: BusyError,
        500: BrokenError,
        408: BrokenError,
        404: RefusedError,
        307: RefusedError,
    }
    assert isinstance(session.failure("u", 503, b""), BrokenError), "it does not ask for a pause"
    assert isinstance(ServerSession(token=None).failure("u", 503, b"", retry_after_s=1.0), BrokenError)
    assert str(session.failure("u", 401, b"no s3cret")) == "u: HTTP 401: no ***"
