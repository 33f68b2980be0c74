"""Known attacks on an HTTP server while it judges honest programs for another client, whose verdicts must not change."""

import contextlib
import json
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from attacks.attacked_judge import AttackedJudge, judge_under_attack
from judge_process import WITHOUT_MODULES, JudgeProcess, wait_until

MAX_BODY_BYTES = 8 * 1024 * 1024


class HonestClient:
    """Client that gets honest programs judged one after the other, from `start` to `stop`."""

    def __init__(self, attacked: AttackedJudge) -> None:
        self.attacked = attacked
        self.verdicts: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def start(self) -> None:
        """Begin, and wait for the first verdict."""
        self._running = self._thread.submit(self._judge_until_over)
        wait_until(lambda: self.verdicts != [])

    def stop(self) -> None:
        """End after the program that is being judged."""
        self._over.set()
        self._thread.shutdown()

    def assert_unharmed(self) -> None:
        """Check that all requests were answered correctly."""
        assert self._running is not None
        if self._running.done():
            self._running.result()
            assert self._over.is_set()
        for verdict in self.verdicts:
            assert (verdict["status"], verdict["stdout"]) == ("accepted", self.attacked.honest_output), verdict

    def _judge_until_over(self) -> None:
        server = self.attacked.server
        headers = {"Authorization": server.http.headers["Authorization"], "Judge-Client": "honest"}
        own = JudgeProcess(server.process, server.url, server.folder, headers)
        with own.http:
            while not self._over.is_set():
                self.verdicts += own.judge_batch([self.attacked.honest(f"beside {len(self.verdicts)}")])


@pytest.fixture(scope="module", params=["root", pytest.param("ordinary_user", marks=pytest.mark.slow)])
def honest_client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HonestClient]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with judge_under_attack(
        request.param, folder, "--max-body-bytes", str(MAX_BODY_BYTES), *WITHOUT_MODULES
    ) as attacked:
        client = HonestClient(attacked)
        client.start()
        yield client
        client.stop()
        client.assert_unharmed()


@pytest.fixture
def attacked(honest_client: HonestClient) -> Iterator[JudgeProcess]:
    """A judge with two slots, in one of which an honest program runs meanwhile."""
    yield honest_client.attacked.server
    honest_client.assert_unharmed()


def is_well(server: JudgeProcess) -> bool:
    return server.judge(id=f"after {time.monotonic()}", code="print(1)")["stdout"] == "1\n"


NATIVE = "/v1/submissions/batch"
CODE_JUDGE = "/run/batch"


def native(**change: object) -> bytes:
    """Return a batch of one submission with one wrong field."""
    return json.dumps({"submissions": [{"id": "a", "code": "print(1)", **change}]}).encode()


def code_judge(**change: object) -> bytes:
    """Return the same for the endpoints of code-judge."""
    return json.dumps({"submissions": [{"type": "python", "solution": "print(1)", **change}]}).encode()


HOSTILE_BODIES = {
    "nested lists": b'{"submissions": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested objects": b'{"submissions": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "nested, never closed": b"[" * 1_000_000,
    "UTF-16": '{"submissions": []}'.encode("utf-16"),
    "no submissions": b'{"submissions": []}',
    "a list": b"[]",
    "a word": b'"submissions"',
    "null": b"null",
    "nothing": b"",
    "one byte": b"{",
    "a million unknown fields": b'{"submissions": [{' + b",".join(b'"%d":1' % i for i in range(300_000)) + b"}]}",
}
HOSTILE_SUBMISSIONS = {
    "lone surrogate in code": b'{"submissions": [{"id": "a", "code": "\\ud800"}]}',
    "lone surrogate in a key": b'{"submissions": [{"id": "a", "code": "", "\\udfff": 1}]}',
    "bytes that are no UTF-8": b'{"submissions": [{"id": "a", "code": "\xff\xfe"}]}',
    "NUL in code": native(code="print(1)\0"),
    "NUL in the id": native(id="a\0b"),
    "NUL in the language": native(language="python\0"),
    "NUL in a file name": native(files={"a\0": ""}),
    "a path upwards": native(files={"../a": ""}),
    "an absolute path": native(files={"/etc/passwd": ""}),
    "a path upwards to collect": native(collect=["../../etc/passwd"]),
    "a deep path": native(files={"/".join("a" * 5000): ""}),
    "a long name": native(files={"a" * 5000: ""}),
    "files that are no base64": native(files={"a": "***"}),
    "200,000 files that are no base64": native(files={str(i): "*" for i in range(200_000)}),
    "a path of three million slashes": native(files={"a/" * 3_000_000: ""}),
    "not a number": b'{"submissions": [{"id": "a", "code": "", "limits": {"cpu_time_s": NaN}}]}',
    "infinity": b'{"submissions": [{"id": "a", "code": "", "limits": {"cpu_time_s": Infinity}}]}',
    "a float beyond all": b'{"submissions": [{"id": "a", "code": "", "limits": {"cpu_time_s": 1e999}}]}',
    "a number of a million digits": b'{"submissions": [{"id": "a", "code": "", "limits": {"max_tasks": '
    + b"9" * 1_000_000
    + b"}}]}",
    "a negative limit": native(limits={"max_tasks": -1}),
    "a limit of zero": native(limits={"wall_time_s": 0}),
    "true as a number": native(limits={"max_tasks": "true"}),
    "code that is a list": native(code=["print(1)"]),
    "code that is null": native(code=None),
    "the id twice": json.dumps({"submissions": [{"id": "a", "code": ""}] * 2}).encode(),
    "10,000 items": json.dumps({"submissions": [{"id": str(i), "code": ""} for i in range(10_000)]}).encode(),
    "10,000 tests": native(tests=[{}] * 10_000),
    "10,000 files to collect": native(collect=[str(i) for i in range(10_000)]),
    "an unknown language": native(language="cobol"),
    "an unknown checker": native(checker={"kind": "magic"}),
    "a checker without its program": native(checker={"kind": "program"}),
    "a tolerance that is no number": native(checker={"kind": "floats", "absolute_tolerance": "nan"}),
    "an unknown field": native(colour="red"),
}
HOSTILE_CODE_JUDGE_SUBMISSIONS = {
    "code that is a list": code_judge(solution=["print(1)"]),
    "code that is null": code_judge(solution=None),
    "an unknown type": code_judge(type="cobol"),
    "an unknown field in the batch": json.dumps({"type": "nonsense", "submissions": []}).encode(),
    "10,000 items": json.dumps({"submissions": [{"type": "python", "solution": ""}] * 10_000}).encode(),
    "input that is a number": code_judge(input=10**30),
}


def is_refused(server: JudgeProcess, path: str, body: bytes) -> None:
    used_before_s = server.cpu_time_s()
    reply = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert 400 <= reply.status_code < 500, reply.text[:500]
    assert len(reply.content) < 1_000_000
    assert server.cpu_time_s() - used_before_s < 5


@pytest.mark.parametrize(
    "path", [NATIVE, CODE_JUDGE, "/run", "/judge", "/run_code", "/v1/submissions", "/v1/submissions/stream"]
)
@pytest.mark.parametrize("name", HOSTILE_BODIES)
def test_a_hostile_body_is_a_4xx(attacked: JudgeProcess, path: str, name: str) -> None:
    is_refused(attacked, path, HOSTILE_BODIES[name])


@pytest.mark.parametrize("name", HOSTILE_SUBMISSIONS)
def test_a_hostile_submission_is_a_4xx(attacked: JudgeProcess, name: str) -> None:
    is_refused(attacked, NATIVE, HOSTILE_SUBMISSIONS[name])


def test_sixty_thousand_deep_paths_do_not_block_the_server(attacked: JudgeProcess) -> None:
    files = {"/".join("a" * 15) + f"/{i}": "" for i in range(1020)}
    deep = {"deadline_s": 0.01, "submissions": [{"id": str(i), "code": "", "files": files} for i in range(60)]}
    headers = dict(attacked.http.headers)
    with httpx.Client(base_url=attacked.url, headers=headers, timeout=100) as client, ThreadPoolExecutor(1) as hostile:
        sent = hostile.submit(client.post, NATIVE, json=deep)
        # CPU time of the server during each answer, an upper bound of the time that others wait
        used_s: list[float] = []
        while not sent.done():
            before_s = attacked.cpu_time_s()
            assert attacked.http.get("/v1/ready").status_code == 200
            used_s.append(attacked.cpu_time_s() - before_s)
    assert sent.result().status_code == 200
    assert max(used_s) < 1.5


@pytest.mark.parametrize("name", HOSTILE_CODE_JUDGE_SUBMISSIONS)
def test_a_hostile_submission_of_code_judge_is_a_4xx(attacked: JudgeProcess, name: str) -> None:
    is_refused(attacked, CODE_JUDGE, HOSTILE_CODE_JUDGE_SUBMISSIONS[name])


def test_a_hundred_megabytes_of_code_are_a_413(attacked: JudgeProcess) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"submissions": [{"id": "a", "code": "'
        for _ in range(100):
            yield b"#" * 1_000_000
        yield b'"}]}'

    before = psutil.Process(attacked.process.pid).memory_info().rss
    with contextlib.suppress(httpx.TransportError):  # it answers, and closes, while we still send
        reply = attacked.http.post(NATIVE, content=body(), headers={"Content-Type": "application/json"})
        assert reply.status_code == 413
    assert psutil.Process(attacked.process.pid).memory_info().rss - before < 64 * 1024 * 1024
    assert is_well(attacked)


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "image/png", "\xff"],
)
def test_another_content_type_is_no_500(attacked: JudgeProcess, content_type: str) -> None:
    headers = {b"Content-Type": content_type.encode("latin-1")}
    for path in (NATIVE, CODE_JUDGE):
        assert attacked.http.post(path, content=b"--x\r\n\r\n", headers=headers).status_code in (400, 415)


def with_token(server: JudgeProcess, request: bytes) -> bytes:
    """Return a request with the token."""
    return request.replace(
        b"Host: x\r\n", b"Host: x\r\nAuthorization: %b\r\n" % server.http.headers["Authorization"].encode()
    )


def connect(server: JudgeProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=100)


RAW_REQUESTS = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    "an endless line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    "an endless header": b"GET /ping HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 500_000 + b"\r\n\r\n",
    "many headers": b"GET /ping HTTP/1.1\r\nHost: x\r\n"
    + b"".join(b"X-%d: 1\r\n" % i for i in range(50_000))
    + b"\r\n",
    "a negative length": b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length beyond all": b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "a length and chunks": b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk beyond all": b"POST /run HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "a chunk that is no number": b"POST /run HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a path upwards": b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an encoded path upwards": b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an unknown method": b"BREW /run HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a tunnel": b"CONNECT example.org:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("name", RAW_REQUESTS)
def test_malformed_http_is_refused(attacked: JudgeProcess, name: str) -> None:
    with closing(connect(attacked)) as connection:
        try:
            connection.sendall(with_token(attacked, RAW_REQUESTS[name]))
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
        except OSError:  # it has closed the connection
            answer = b""
    assert answer == b"" or answer.split()[1].startswith((b"4", b"503")), answer
    assert b"root:" not in answer
    assert is_well(attacked)


def is_answered(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_slow_and_incomplete_requests_do_not_block_the_server(attacked: JudgeProcess) -> None:
    head = (
        b"POST /v1/submissions/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
    )
    with ExitStack() as stack:
        halves = [stack.enter_context(closing(connect(attacked))) for _ in range(100)]
        for index, half in enumerate(halves):
            half.sendall((with_token(attacked, head) + b'\r\n{"submissions": [')[: 5 + index * 3])
        assert is_well(attacked)
        assert not any(map(is_answered, halves))


def test_a_thousand_connections_do_not_block_the_server(attacked: JudgeProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with ExitStack() as stack:
            for _ in range(1000):
                stack.enter_context(closing(connect(attacked)))
            assert is_well(attacked)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert is_well(attacked)


def test_a_flood_of_tiny_chunks_is_bounded(attacked: JudgeProcess) -> None:
    head = b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with closing(connect(attacked)) as connection:
        connection.sendall(with_token(attacked, head))
        deadline = time.monotonic() + 100
        answer = b""
        connection.settimeout(0.001)
        while not answer and time.monotonic() < deadline:
            try:
                connection.sendall(b"1\r\n[\r\n" * 20_000)
            except TimeoutError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                break
            try:
                answer = connection.recv(100)
            except (TimeoutError, ConnectionResetError):
                continue
        assert time.monotonic() < deadline
        assert answer == b"" or b" 4" in answer[:20]
    assert is_well(attacked)


def test_requests_that_are_given_up_free_their_slots(attacked: JudgeProcess) -> None:
    sleepers = [{"id": f"{i} {time.monotonic()}", "code": "import time; time.sleep(50)"} for i in range(20)]
    for _ in range(5):
        with pytest.raises(httpx.TimeoutException):
            attacked.http.post(NATIVE, json={"submissions": sleepers}, timeout=0.1)
    assert is_well(attacked)


def test_the_judge_is_well_after_all_hostile_requests(attacked: JudgeProcess, honest_client: HonestClient) -> None:
    honest_client.stop()
    health = attacked.http.get("/v1/health").json()
    assert (health["status"], health["num_running"], health["queue_length"]) == ("ok", 0, 0)
    server = psutil.Process(attacked.process.pid)
    assert server.num_fds() < 200
    assert server.memory_info().rss < 700 * 1024 * 1024
