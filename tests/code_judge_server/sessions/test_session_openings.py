"""Sessions that are opened while parts of the judge die: they open late, or are refused for now; no place is lost."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from jail_tiers import NAMESPACE_TIERS
from judge_process import JudgeProcess, wait_until
from session_client import Session
from session_judge import TIERS_AND_USERS, session_judge

from code_judge_server.app import create_app
from code_judge_server.jail.launch.plan import make_plan
from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.jail_executor.private_slot import PrivateSlot
from code_judge_server.sandbox import process_tree
from code_judge_server.schemas import IsolationTier, Rejection
from code_judge_server.sessions import manager, session, session_job
from code_judge_server.settings import Settings

MAX_SESSIONS = 2
DEPTHS = {"launcher": 1, "first process": 2, "zygote": 3}
"""Depth of each part below the server."""


@pytest.fixture(scope="module", params=TIERS_AND_USERS)
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    folder = tmp_path_factory.mktemp("openings")
    with session_judge(request.param, folder, "--max-sessions", str(MAX_SESSIONS)) as server:
        yield server


def parts(judge: JudgeProcess, name: str) -> list[int]:
    """Return the live processes of a part."""
    pids = [judge.process.pid]
    for _ in range(DEPTHS[name]):
        pids = [child for parent in pids for child in process_tree.children(parent)]
    return pids


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def open_one(judge: JudgeProcess, client: str = "one") -> httpx.Response:
    return judge.http.post("/v1/sessions", json={}, headers={"Judge-Client": client})


def open_when_there_is_room(judge: JudgeProcess) -> httpx.Response:
    """Open a session like `open_one`; the previous test's sessions may take some milliseconds to close."""
    replies: list[httpx.Response] = []
    wait_until(lambda: replies.append(open_one(judge)) or replies[-1].status_code != 429)
    return replies[-1]


def num_places(judge: JudgeProcess) -> int:
    """Open as many sessions as possible, close them, and return their number."""
    replies = [open_one(judge, client=f"client {number}") for number in range(MAX_SESSIONS + 1)]
    opened = [reply.json()["session_id"] for reply in replies if reply.status_code == 200]
    for session_id in opened:
        judge.http.delete(f"/v1/sessions/{session_id}")
    return len(opened)


def assert_refused_for_now(reply: httpx.Response) -> None:
    assert (reply.status_code, int(reply.headers["Retry-After"])) == (503, 2), reply.text
    assert "`Retry-After`" in Rejection.model_validate(reply.json()).detail


@pytest.mark.slow
@pytest.mark.parametrize("part", DEPTHS)
def test_a_session_opens_although_a_part_is_killed_meanwhile(judge: JudgeProcess, part: str) -> None:
    stopped = parts(judge, part)
    signal_all(parts(judge, "zygote"), signal.SIGSTOP)  # no slot starts before the kill
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(Session, judge)
        time.sleep(0.2)
        assert not opening.done()
        signal_all(stopped, signal.SIGKILL)
        opened = opening.result(100)
    assert opened.value("6 * 7") == "42"
    opened.close()
    wait_until(lambda: num_places(judge) == MAX_SESSIONS)


def test_a_session_is_refused_while_the_launcher_is_killed_repeatedly(judge: JudgeProcess) -> None:
    signal_all(parts(judge, "launcher"), signal.SIGSTOP)  # the session does not open before the first kill
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(open_when_there_is_room, judge)
        wait_until(lambda: signal_all(parts(judge, "launcher"), signal.SIGKILL) or opening.done())
        refused = opening.result()
    assert_refused_for_now(refused)
    wait_until(lambda: num_places(judge) == MAX_SESSIONS)


def test_a_client_that_disconnects_during_a_restart_leaves_its_place_free(judge: JudgeProcess) -> None:
    stopped = parts(judge, "zygote")
    signal_all(stopped, signal.SIGSTOP)

    def open_and_go_away() -> bool:
        with contextlib.suppress(httpx.ReadTimeout):
            assert judge.http.post("/v1/sessions", json={}, timeout=0.2).status_code == 429  # see above
            return False
        return True

    wait_until(open_and_go_away)
    signal_all(stopped, signal.SIGKILL)
    wait_until(lambda: num_places(judge) == MAX_SESSIONS)


class FragileJail(JailExecutor):
    """A jail whose session slots get a signal before a session starts in them, as long as there are signals."""

    signals: list[int]

    async def open_private_slot(self, index: int, preload: str) -> PrivateSlot:
        """Start one, and send it the next signal."""
        slot = await super().open_private_slot(index, preload)
        if self.signals:
            signal.pidfd_send_signal(slot.pidfd, self.signals.pop())
        return slot


class Fragile:
    """A judge of this process, and its jail."""

    def __init__(self, jail: FragileJail, http: httpx.AsyncClient) -> None:
        self.jail = jail
        self.http = http

    async def open_one(self, client: str = "one") -> httpx.Response:
        return await self.http.post("/v1/sessions", json={}, headers={"Judge-Client": client})

    async def wait_for_all_places(self) -> None:
        """Wait until as many sessions can be opened as there are places; close them."""
        deadline = time.monotonic() + 60
        opened: list[str] = []
        while len(opened) < MAX_SESSIONS:
            assert time.monotonic() < deadline, opened
            await asyncio.sleep(0.05)
            reply = await self.open_one(client=f"client {len(opened)}")
            opened += [reply.json()["session_id"]] if reply.status_code == 200 else []
        assert (await self.open_one("last")).status_code == 429
        for session_id in opened:
            await self.http.delete(f"/v1/sessions/{session_id}")


@asynccontextmanager
async def fragile(folder: Path, tier: IsolationTier) -> AsyncIterator[Fragile]:
    plan = make_plan(tier, num_slots=1 + MAX_SESSIONS, preloads={"bare": ()})
    jail = FragileJail(plan, canaries=(), num_private_slots=MAX_SESSIONS)
    jail.signals = []
    settings = Settings(work_dir=folder, num_slots=1, spare_slots=0, max_sessions=MAX_SESSIONS, max_memory_mb=256)
    app = create_app(settings, jail)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=100) as http,
    ):
        yield Fragile(jail, http)


@pytest.fixture(params=NAMESPACE_TIERS)
async def broken(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fragile]:
    async with fragile(tmp_path, request.param) as judge:
        yield judge


async def test_a_session_whose_slot_dies_starts_in_another(broken: Fragile) -> None:
    broken.jail.signals = [signal.SIGKILL]
    reply = await broken.open_one()
    assert (reply.status_code, broken.jail.signals) == (200, []), reply.text
    path = f"/v1/sessions/{reply.json()['session_id']}"
    assert (await broken.http.post(f"{path}/cells", json={"code": "1"})).json()["status"] == "accepted"
    await broken.http.delete(path)
    await broken.wait_for_all_places()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_session_whose_slots_die_or_stop_is_refused(
    broken: Fragile, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.jail.signals = [number] * 2
    with monkeypatch.context() as patch:
        patch.setattr(session, "_START_TIMEOUT_S", 0.3)
        patch.setattr(session_job, "_END_TIMEOUT_S", 0.1)
        assert_refused_for_now(await broken.open_one())
    assert broken.jail.signals == []
    await broken.wait_for_all_places()


async def test_a_session_that_opens_too_late_is_refused_and_closed(
    broken: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = [pid for child in process_tree.children(os.getpid()) for pid in process_tree.children(child)]
    signal_all(stopped, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(manager, "_OPEN_TIMEOUT_S", 0.3)
        replies = [await broken.open_one(client) for client in ("one", "two", "three")]
    for reply in replies[:2]:
        assert_refused_for_now(reply)
        assert "0.3 s" in reply.json()["detail"]
    assert replies[2].status_code == 429  # sessions that are still opening hold their places
    signal_all(stopped, signal.SIGCONT)
    await broken.wait_for_all_places()
