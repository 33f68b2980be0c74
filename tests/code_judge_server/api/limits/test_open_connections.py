"""However many peers connect, programs have enough descriptors, and requests are answered."""

import http.client
import json
import socket
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from judge_process import COMMAND, WITHOUT_MODULES, JudgeProcess, wait_until
from prometheus_client.parser import text_string_to_metric_families

from code_judge_server.api.limits.open_connections import OpenConnections
from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.metrics import Metrics
from code_judge_server.schemas import IsolationTier

DESCRIPTORS = 256
SMALL = ["--num-slots", "1", "--spare-slots", "0", "--max-sessions", "0", *WITHOUT_MODULES]


class Connection:
    def __init__(self) -> None:
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False


def several(number: int, connections: OpenConnections) -> list[Connection]:
    added = [Connection() for _ in range(number)]
    for connection in added:
        connections.add(connection)
    return added


def test_the_oldest_without_a_head_goes_first_then_idle_ones_and_the_last_newcomers_at_the_end() -> None:
    connections = OpenConnections(4, Metrics())
    busy, idle, newcomer, other_newcomer = several(4, connections)
    connections.begin(busy)
    connections.begin(idle)
    connections.end(idle)
    order = []
    for _ in range(3):
        (fourth,) = several(1, connections)
        connections.begin(fourth)
        order.append([item for item in (busy, idle, newcomer, other_newcomer) if not item.is_open])
    assert order == [[newcomer], [idle, newcomer], [idle, newcomer, other_newcomer]]
    assert len(connections) == 4


def test_the_new_connection_is_closed_if_all_are_being_answered() -> None:
    connections = OpenConnections(2, Metrics())
    first, second = several(2, connections)
    connections.begin(first)
    connections.begin(second)
    (third,) = several(1, connections)
    assert (first.is_open, second.is_open, third.is_open) == (True, True, False)
    connections.end(first)
    connections.remove(third)
    (fourth,) = several(1, connections)
    assert (first.is_open, second.is_open, fourth.is_open) == (False, True, True)
    for gone in (first, first, second, fourth):
        connections.remove(gone)
    assert len(connections) == 0


def limited(descriptors: int, *arguments: str) -> list[str]:
    """Return the command of a judge that may open only `descriptors` descriptors."""
    return ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *COMMAND, "--port", "0", *arguments]


@contextmanager
def judge_with_few_descriptors(folder: Path) -> Iterator[JudgeProcess]:
    tier = find_tier().tier
    if tier is IsolationTier.D:
        pytest.skip("this machine gives no tier whose programs take descriptors of the server's")
    command = limited(DESCRIPTORS, "--require-isolation", tier, *SMALL)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield JudgeProcess(process, process.stdout.readline().removeprefix("listening on ").strip(), folder, {})
        finally:
            process.terminate()


def verdict_over(connection: http.client.HTTPConnection, code: str) -> dict[str, Any]:
    body = json.dumps({"id": uuid.uuid4().hex, "code": code})
    connection.request("POST", "/v1/submissions", body, {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


def samples(judge: JudgeProcess) -> dict[str, float]:
    page = judge.http.get("/metrics").text
    return {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}


@pytest.mark.slow
def test_half_sent_heads_do_not_block_right_verdicts(tmp_path: Path) -> None:
    with judge_with_few_descriptors(tmp_path) as judge, ExitStack() as stack:
        address = ("127.0.0.1", int(judge.url.rpartition(":")[2]))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        idle, busy = (stack.enter_context(closing(http.client.HTTPConnection(*address, timeout=100))) for _ in range(2))
        assert verdict_over(idle, "print(1)")["stdout"] == "1\n"
        own_socket = idle.sock
        answer = pool.submit(verdict_over, busy, "import time; time.sleep(2); print('patient')")
        judge.wait_until_running()
        for _ in range(2 * DESCRIPTORS):
            half = stack.enter_context(closing(socket.create_connection(address, timeout=100)))
            half.sendall(b"GET /v1/ready HTTP/1.1\r\nHost: x\r\n")
        for number in range(3):
            assert verdict_over(idle, f"print({number})")["stdout"] == f"{number}\n"
            with closing(http.client.HTTPConnection(*address, timeout=100)) as new:
                assert verdict_over(new, f"print({number})")["stdout"] == f"{number}\n"
        assert idle.sock is own_socket
        assert answer.result()["stdout"] == "patient\n"
        values = samples(judge)
        assert 64 <= values["code_judge_open_connections"] < DESCRIPTORS - 128
        assert values["code_judge_closed_connections_total"] > DESCRIPTORS
        assert values["code_judge_rebuilt_slots_total"] == 0


def test_a_connection_that_is_closed_makes_room(tmp_path: Path) -> None:
    with judge_with_few_descriptors(tmp_path) as judge:
        before = samples(judge)["code_judge_open_connections"]
        with closing(http.client.HTTPConnection("127.0.0.1", int(judge.url.rpartition(":")[2]), timeout=100)) as other:
            verdict_over(other, "print(1)")
            assert samples(judge)["code_judge_open_connections"] == before + 1
        wait_until(lambda: samples(judge)["code_judge_open_connections"] == before)
        assert samples(judge)["code_judge_closed_connections_total"] == 0


def test_too_few_descriptors_for_the_settings_are_refused_with_the_way_out() -> None:
    command = limited(128, "--require-isolation", "D", "--num-slots", "100")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "code judge: open files: the hard limit of this process (RLIMIT_NOFILE, `ulimit -Hn`) is 128"
    )
    assert "lower num_slots, spare_slots or max_sessions" in done.stderr
