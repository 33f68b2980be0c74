"""Messages that no part of the judge would send: to a real launcher, to a real slot, and from a false slot to the server."""

import asyncio
import json
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from code_judge_server.jail import protocol
from code_judge_server.jail.launch.plan import Plan, job_environment, make_plan
from code_judge_server.jail_executor.messages import JailDiedError
from code_judge_server.jail_executor.meters import OomKills, TreeMeter
from code_judge_server.jail_executor.sealed_files import seal_input
from code_judge_server.jail_executor.slot import Slot
from code_judge_server.jail_executor.watch import Watch
from code_judge_server.sandbox.executor import Job, JobLimits, Outcome
from code_judge_server.schemas import IsolationTier

_ANSWER_TIMEOUT_S = 60.0
LIMITS = {"cpu_time_s": 2.0, "memory_bytes": 1 << 28, "max_tasks": 16, "disk_bytes": 1 << 20}
JOB = {
    "kind": "job",
    "argv": ["/bin/echo", "it ran"],
    "interpret": False,
    "limits": LIMITS,
    "files": [1],
    "collect": 0,
    "collect_bytes": 0,
}
ENDED = {
    "kind": "ended",
    "exit_code": 0,
    "signal": None,
    "cpu_time_s": 0.0,
    "wall_time_s": 0.25,
    "max_rss_bytes": 0,
    "oom_kills": None,
    "peak_memory_bytes": None,
    "collected": [],
    "error": None,
    "clears": False,
}
CLEARS = json.dumps(ENDED | {"clears": True}).encode()
CLEARED = json.dumps({"kind": "cleared"}).encode()

plain_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=9).map(repr)
)
values = st.recursive(
    plain_values, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner)
)


def damaged(message: dict) -> st.SearchStrategy[bytes]:
    """A message with one field wrong or missing, truncated, or random."""
    keys = st.sampled_from(sorted(message))
    replaced = st.builds(
        lambda key, value: message | {key: value}, keys, values.filter(lambda value: value is not None)
    )
    missing = keys.map(lambda key: {name: value for name, value in message.items() if name != key})
    text = json.dumps(message).encode()
    cut = st.integers(1, len(text) - 1).map(lambda length: text[:length])
    changed = (replaced | missing).filter(lambda other: other != message).map(lambda other: json.dumps(other).encode())
    return changed | cut | st.binary(min_size=1, max_size=400) | st.sampled_from(MONSTERS)


MONSTERS = [
    b"{}",
    b"[" * 100_000,
    b'{"kind": ' * 20_000,
    b'{"kind": "' + b"k" * 200_000 + b'"}',
    b'{"kind": "job"}',
    b'{"kind": null}',
    b"\x00",
    json.dumps(JOB | {"argv": []}).encode(),
    json.dumps(JOB | {"argv": ["/no/such/program"] * 3000, "files": []}).encode(),
    json.dumps(JOB | {"files": [["a", 1]]}).encode(),
    json.dumps(JOB | {"files": [-1]}).encode(),
    json.dumps(JOB | {"files": [1 << 62]}).encode(),
    json.dumps(JOB | {"files": [0] * 50_000}).encode(),
    json.dumps(JOB | {"limits": LIMITS | {"cpu_time_s": -1}}).encode(),
    json.dumps(JOB | {"limits": LIMITS | {"memory_bytes": 1 << 70}}).encode(),
]


class RawJail:
    """A real launcher, without the server's checks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._start()

    def _start(self) -> None:
        self.end, theirs = protocol.socket_pair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            command = self._plan.command(theirs.fileno())
            self.process = subprocess.Popen(command, env=job_environment(), close_fds=False, stdin=subprocess.DEVNULL)
        self.end.settimeout(_ANSWER_TIMEOUT_S)
        protocol.send(self.end, *self._plan.start_message())
        assert self.answer() == {"kind": "ready"}

    def answer(self) -> dict | None:
        """Return the next message of the launcher, None once it has closed."""
        received = protocol.receive(self.end)
        return None if received is None else received[0]

    def restart(self) -> None:
        """Start another launcher in place of one that ended."""
        self.close()
        self._start()

    def open_slot(self) -> socket.socket:
        """Start the slot, in place of the one before."""
        ours, theirs = protocol.socket_pair()
        with theirs:
            protocol.send(self.end, {"kind": "slot", "number": 0, "preload": "bare"}, (theirs.fileno(),))
        answer = self.answer()
        assert answer is not None
        assert answer.get("pid"), answer
        ours.settimeout(_ANSWER_TIMEOUT_S)
        return ours

    def close(self) -> None:
        """End it."""
        self.end.close()
        self.process.wait(_ANSWER_TIMEOUT_S)


@pytest.fixture(scope="module")
def jail() -> Iterator[RawJail]:
    plan = make_plan(IsolationTier.B, num_slots=1, preloads={"bare": []})
    jail = RawJail(plan)
    try:
        yield jail
    finally:
        jail.close()
        plan.close()


def send_raw(end: socket.socket, data: bytes, num_descriptors: int) -> None:
    """Send these bytes with descriptors: a memfd of one byte, an empty one, and the write ends of two pipes."""
    with ExitStack() as stack:
        opened = []
        for index in range(num_descriptors):
            opened.append(os.memfd_create("fuzz") if index % 4 < 2 else _write_end())
            stack.callback(os.close, opened[-1])
        if opened:
            os.write(opened[0], b"x")
        socket.send_fds(end, [data], opened)


def _write_end() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def run_job(slot: socket.socket) -> bytes:
    """Run an honest job and return its output, or nothing if the slot ends instead."""
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as output, ExitStack() as stack:
        given = [os.memfd_create("files"), os.memfd_create("stdin"), write, os.dup(write)]
        for descriptor in given:
            stack.callback(os.close, descriptor)
        os.write(given[0], b'x["a"]')
        with suppress(BrokenPipeError, ConnectionResetError):
            protocol.send(slot, JOB, tuple(given))
        stack.close()
        printed = b""
        while select.select([output], [], [], _ANSWER_TIMEOUT_S)[0]:
            chunk = output.read(100)
            if not chunk:
                return printed
            printed += chunk
    raise AssertionError(f"neither the job nor its slot has ended; it printed {printed!r}")


def until_it_ends(slot: socket.socket) -> list[dict]:
    """Return a slot's messages until its job, or the slot, has ended; fail if neither ends in time."""
    said = []
    while not said or said[-1]["kind"] != "ended":
        try:
            received = protocol.receive(slot)
        except ConnectionResetError:
            break
        if received is None:
            break
        protocol.close_all(received[1])
        said.append(received[0])
    return said


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged(JOB), num_descriptors=st.integers(0, 10))
def test_a_slot_answers_an_invalid_job_or_ends(jail: RawJail, data: bytes, num_descriptors: int) -> None:
    with closing(jail.open_slot()) as slot:
        with suppress(OSError):  # longer than the socket takes
            send_raw(slot, data, num_descriptors)
            protocol.send(slot, {"kind": "kill"})
        assert run_job(slot) in (b"", b"it ran\n")
    with closing(jail.open_slot()) as slot:
        assert run_job(slot) == b"it ran\n"


def test_a_slot_runs_nothing_of_an_invalid_job(jail: RawJail) -> None:
    for missing in ("limits", "argv", "interpret", "files", "collect"):
        message = {name: value for name, value in JOB.items() if name != missing}
        read, write = os.pipe()
        with open(read, "rb") as output, closing(jail.open_slot()) as slot:
            socket.send_fds(
                slot, [json.dumps(message).encode()], [os.memfd_create("x"), os.memfd_create("x"), write, write]
            )
            os.close(write)
            assert all(said.get("exit_code") != 0 for said in until_it_ends(slot)), missing
            assert output.read() == b"", missing


def test_a_kill_out_of_turn_is_ignored(jail: RawJail) -> None:
    with closing(jail.open_slot()) as slot:
        for _ in range(3):
            protocol.send(slot, {"kind": "kill"})
            assert run_job(slot) == b"it ran\n"
            assert until_it_ends(slot)[-1]["exit_code"] == 0


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged({"kind": "slot", "number": 0, "preload": "bare"}), num_descriptors=st.integers(0, 10))
def test_a_launcher_refuses_an_invalid_request_or_ends(jail: RawJail, data: bytes, num_descriptors: int) -> None:
    try:
        send_raw(jail.end, data, num_descriptors)
        with closing(jail.open_slot()) as slot:
            assert run_job(slot) == b"it ran\n"
    except (OSError, AssertionError, protocol.ProtocolError):
        jail.restart()  # it ended, or can no longer match answers to requests
        with closing(jail.open_slot()) as slot:
            assert run_job(slot) == b"it ran\n"


async def judged_by_a_false_slot(messages: list[tuple[bytes, int]]) -> object:
    """Run a job on a false slot; return its outcome or error."""
    loop = asyncio.get_running_loop()
    ours, theirs = protocol.socket_pair()
    theirs.setblocking(False)  # two large messages fill it, and who reads runs on this very thread
    sleeper = subprocess.Popen(["/bin/sleep", "60"])  # noqa: ASYNC220  it starts in a millisecond, and nothing else runs here
    watch, idle = Watch(loop), asyncio.Event()
    slot = Slot(
        ours,
        pid=sleeper.pid,
        meter=TreeMeter(sleeper.pid),
        watch=watch,
        oom_kills=OomKills(lambda: 0),
        on_death=lambda: None,
    )
    try:
        limits = JobLimits(**LIMITS, wall_time_s=5.0, output_bytes=100)  # type: ignore[arg-type]
        job = Job(argv=("x",), limits=limits)
        sealed = await seal_input(job)
        running = slot.begin(job, sealed, interpret=False, on_idle=idle.set)
        sealed.close()
        with theirs:
            for data, num_descriptors in messages:
                with suppress(OSError):  # it has been closed already, or accepts no more
                    send_raw(theirs, data, num_descriptors)
        outcome = (await asyncio.wait_for(asyncio.gather(running.outcome, return_exceptions=True), 60))[0]
        await asyncio.wait_for(idle.wait(), 60)
        return outcome
    finally:
        slot.die("the test is over")
        watch.close()
        sleeper.kill()
        sleeper.wait()


false_messages = damaged(ENDED) | damaged({"kind": "ready"}) | st.sampled_from([CLEARS, CLEARED])


@settings(max_examples=100, deadline=None)
@given(messages=st.lists(st.tuples(false_messages, st.integers(0, 10)), max_size=4))
def test_messages_of_a_false_slot_fail_only_its_job(messages: list[tuple[bytes, int]]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    outcome = asyncio.run(judged_by_a_false_slot(messages))
    assert isinstance(outcome, JailDiedError | Outcome)
    if isinstance(outcome, Outcome):
        assert 0 <= outcome.cpu_time_s < float("inf")
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    "data",
    [*MONSTERS, b"", CLEARED, json.dumps(ENDED | {"collected": [[0, 1]]}).encode()],
    ids=lambda data: repr(data[:20]),
)
def test_a_slot_that_sends_an_invalid_message_is_treated_as_dead(data: bytes) -> None:
    outcome = asyncio.run(judged_by_a_false_slot([(data, 0)]))
    assert isinstance(outcome, JailDiedError)
