"""Requests that are refused before they are parsed or their client is known."""

import contextlib
import json
import socket
import time

import psutil
import pytest
from judge_process import JudgeProcess

from code_judge_server.api.http_errors import RejectedError
from code_judge_server.api.limits.json_bounds import has_more_than, refuse_costly_json


def connection(judge: JudgeProcess) -> socket.socket:
    host, _, port = judge.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=100)


@pytest.mark.slow
def test_headers_without_end_are_a_400(judge: JudgeProcess) -> None:
    with connection(judge) as client:
        client.sendall(b"GET /ping HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):  # it may close before all is sent
            for _ in range(100):
                client.sendall(b"x: " + b"y" * 10_000 + b"\r\n")
                time.sleep(0.001)
        with contextlib.suppress(ConnectionError):
            assert b"400 Bad Request" in client.recv(1000)
    assert judge.http.get("/ping").status_code == 200


def test_one_header_without_end_is_a_400(judge: JudgeProcess) -> None:
    with connection(judge) as client:
        client.sendall(b"GET /ping HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                client.sendall(b"y" * 10_000)
        with contextlib.suppress(ConnectionError):
            assert b"400 Bad Request" in client.recv(1000)
    assert judge.http.get("/ping").status_code == 200


def test_a_head_in_small_pieces_is_read(judge: JudgeProcess) -> None:
    with connection(judge) as client:
        for piece in (b"GET /pi", b"ng HTTP/1.1\r\nho", b"st: localhost\r\n", b"x: " + b"y" * 30_000, b"\r\n\r\n"):
            client.sendall(piece)
            time.sleep(0.01)
        assert b"pong" in client.recv(1000)


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8088", "127.0.0.1.evil.example", "8.8.8.8"])
def test_a_server_without_a_token_does_not_answer_to_other_names(judge: JudgeProcess, name: str) -> None:
    reply = judge.http.post("/v1/submissions", json={"id": "s", "code": ""}, headers={"Host": name})
    assert reply.status_code == 400
    assert "CODE_JUDGE_TOKEN" in reply.json()["detail"]


@pytest.mark.parametrize("name", ["localhost", "localhost:1", "127.0.0.1", "127.0.0.9:5", "[::1]", "[::1]:80"])
def test_it_answers_to_its_own_names(judge: JudgeProcess, name: str) -> None:
    assert judge.http.get("/v1/health", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"submissions":[' + b",".join([b'{"id":"a","code":""}'] * 300_000) + b"]}",
        b'{"submissions":[' + b"[]," * 300_000 + b"1]}",
        b'{"x":[' + b"1," * 3_000_000 + b"1]}",
    ],
    ids=["submissions", "arrays", "numbers"],
)
@pytest.mark.parametrize("path", ["/v1/submissions/batch", "/run/batch"])
def test_a_body_of_a_million_tiny_values_is_a_413_and_soon(judge: JudgeProcess, path: str, body: bytes) -> None:
    used_before_s = judge.cpu_time_s()
    reply = judge.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 413
    assert judge.cpu_time_s() - used_before_s < 3


def test_the_contents_of_strings_are_not_counted() -> None:
    refuse_costly_json(b'{"id": "a", "code": "' + rb"{[,\"\\" * 3_000_000 + b'"}')
    with pytest.raises(RejectedError):
        refuse_costly_json(b'{"id": "a", "code": ["\\\\"' + b",{}" * 3_000_000 + b"]}")


@pytest.mark.parametrize("start", [b"", b"{" * 100_000 + b'"', b'"a",' * 100_000, b"\\"])
@pytest.mark.parametrize("unit", [rb"\"", b'"', b"\\", b"{", b'"a",', rb"a\\\"" + b"\n"], ids=repr)
def test_a_large_body_is_looked_through_in_little_time(start: bytes, unit: bytes) -> None:
    body = start + unit * (64 * 2**20 // len(unit))
    started_s = time.process_time()
    with contextlib.suppress(RejectedError):
        refuse_costly_json(body)
    assert time.process_time() - started_s < 4


@pytest.mark.parametrize("offset", range(-3, 4))
@pytest.mark.parametrize("text", ["\\", '"', '\\"', '"\\\\', "{[,", '"{[,"'])
def test_strings_are_recognized_across_pieces(text: str, offset: int) -> None:
    body = json.dumps({"a": "x" * (256 * 1024 + offset - 8) + text + "{[,", "b": [1, 2, text]}).encode()
    assert not has_more_than(body, containers=2, values=3)
    assert has_more_than(body, containers=1, values=3)
    assert has_more_than(body, containers=2, values=2)


MANY = 200_000
MEMBERS = ",".join(f'"k{i}":1' for i in range(MANY))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/submissions", '{"id":"a","code":"",' + MEMBERS + "}", 413),
        ("/v1/submissions", '{"id":"a","code":"","files":{' + MEMBERS + "}}", 413),
        ("/v1/submissions", '{"id":"a","code":"","collect":[' + "1," * MANY + "1]}", 413),
        ("/run_code", '{"code":"","language":"python","files":{' + MEMBERS + "}}", 413),
        ("/run_jupyter", '{"cells":[' + "1," * MANY + "1]}", 413),
        ("/run", '{"type":"python","solution":"","options":{' + MEMBERS + "}}", 413),
        ("/run/batch", '{"type":"batch","submissions":[' + "{}," * MANY + "{}]}", 413),
        ("/run/batch", '{"type":"batch","submissions":[' + "{}," * 100_000 + "{}]}", 413),
        ("/v1/submissions/batch", '{"submissions":[' + "{}," * 4000 + "{}]}", 400),
        ("/v1/submissions/batch", '{"submissions":[{' + MEMBERS + "}]}", 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_of_many_wrong_fields_is_refused_soon(judge: JudgeProcess, path: str, body: str, status: int) -> None:
    used_before_s = judge.cpu_time_s()
    reply = judge.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status
    assert judge.cpu_time_s() - used_before_s < 3
    assert len(reply.content) < 10_000


def test_a_batch_of_code_judge_over_the_bound_is_a_413(judge: JudgeProcess) -> None:
    item = {"type": "python", "solution": "print(1)"}
    reply = judge.http.post("/run/batch", json={"type": "batch", "submissions": [item] * 4097})
    assert reply.status_code == 413
    assert "4096" in reply.json()["detail"]


def _reply(judge: JudgeProcess, request: bytes) -> list[bytes]:
    """Return the pieces in which a reply comes, after which the server closes the connection."""
    pieces: list[bytes] = []
    with connection(judge) as client:
        client.sendall(request)
        while piece := client.recv(65536):
            pieces.append(piece)
    return pieces


def _submission(*headers: bytes) -> bytes:
    body = b'{"id": "a", "code": "print(1)"}'
    length = b"content-length: %d" % len(body)
    lines = [b"POST /v1/submissions HTTP/1.1", b"host: localhost", b"connection: close", length, *headers]
    return b"\r\n".join([*lines, b"content-type: application/json", b"", body])


def test_a_single_verdict_comes_in_one_piece_with_its_length(judge: JudgeProcess) -> None:
    (reply,) = _reply(judge, _submission())
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head
    assert b"transfer-encoding" not in head
    assert json.loads(body)["status"] == "accepted"


def test_a_client_that_expects_100_continue_gets_it_before_the_verdict(judge: JudgeProcess) -> None:
    head, _, body = _submission(b"expect: 100-continue").partition(b"\r\n\r\n")
    with connection(judge) as client:
        client.sendall(head + b"\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_the_answer_to_head_is_not_held_back(judge: JudgeProcess) -> None:
    reply = b"".join(_reply(judge, b"HEAD /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
    assert reply.startswith(b"HTTP/1.1 ")
    assert reply.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("trailer", [b"x: " + b"y" * 10_000 + b"\r\n", b"y" * 10_000], ids=["many", "one"])
def test_trailers_without_end_close_the_connection_and_take_no_memory(judge: JudgeProcess, trailer: bytes) -> None:
    before = psutil.Process(judge.process.pid).memory_info().rss
    with connection(judge) as client:
        client.sendall(b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"2\r\n{}\r\n0\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(4000):
                client.sendall(trailer)
            pytest.fail("40 MB were taken")
    assert psutil.Process(judge.process.pid).memory_info().rss - before < 8 * 2**20
    assert judge.http.get("/ping").status_code == 200


def test_a_chunked_body_with_a_trailer_is_read(judge: JudgeProcess) -> None:
    with connection(judge) as client:
        client.sendall(b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"id": "chunked", ', b'"code": "print(', b"6 * 7", b')"}'):
            client.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            time.sleep(0.01)
        client.sendall(b"0\r\nchecksum: none\r\n\r\n")
        assert b'"stdout":"42\\n"' in client.recv(10_000)


def test_a_client_that_does_not_wait_for_replies_gets_them_in_order(judge: JudgeProcess) -> None:
    paths = [b"/ping", b"/v1/ready"] * 5
    heads = [b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path for path in paths]
    heads.append(b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    replies = b"".join(_reply(judge, b"".join(heads))).split(b"HTTP/1.1 200 OK")
    assert [reply.rpartition(b"\r\n")[2] for reply in replies[1:]] == [b'"pong"', b'"ready"'] * 5 + [b'"pong"']


def test_requests_without_end_close_the_connection_and_take_no_memory(judge: JudgeProcess) -> None:
    before = psutil.Process(judge.process.pid).memory_info().rss
    with connection(judge) as client:
        flood = b"GET /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n" * 10_000
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.sendall(flood)
            pytest.fail("sixty megabytes of requests were taken")
    assert psutil.Process(judge.process.pid).memory_info().rss - before < 8 * 2**20
    assert judge.http.get("/ping").status_code == 200
