"""An unread reply is dropped, and its room released; one that is read slowly is not."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import uvicorn
from judge_process import wait_until
from starlette.types import Receive, Scope, Send

from code_judge_server.api.limits.http_protocol import BoundedHttpProtocol
from code_judge_server.api.limits.open_connections import OpenConnections
from code_judge_server.metrics import Metrics

WRITE_TIMEOUT_S = 0.5
REPLY_BYTES = 48 * 1024 * 1024
"""More than the kernel buffers between two sockets of this machine."""


class Replier:
    """Application with a large reply, in one piece or in many; reports whether it is still sending."""

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces
        self.num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.num_running += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            piece = b"x" * (REPLY_BYTES // self.num_pieces)
            for number in range(1, self.num_pieces + 1):
                await send({"type": "http.response.body", "body": piece, "more_body": number < self.num_pieces})
        finally:
            self.num_running -= 1


@contextmanager
def serving(replier: Replier, *, most: int = 10) -> Iterator[tuple[socket.socket, OpenConnections]]:
    """Serve like the judge, and give a connection that has requested the reply."""

    class Protocol(BoundedHttpProtocol):
        open_connections = OpenConnections(most, Metrics())
        write_timeout_s = WRITE_TIMEOUT_S

    config = uvicorn.Config(replier, loop="uvloop", http=Protocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_until(lambda: server.started)
        try:
            with closing(socket.create_connection(listener.getsockname(), timeout=60)) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                yield connection, Protocol.open_connections
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize("num_pieces", [1, 100], ids=["one piece", "many pieces"])
def test_a_client_that_never_reads_its_reply_loses_it(num_pieces: int) -> None:
    replier = Replier(num_pieces)
    with serving(replier) as (connection, open_connections):
        wait_until(lambda: len(open_connections) == 1)
        started_at = time.monotonic()
        wait_until(lambda: len(open_connections) == 0 and replier.num_running == 0)
        assert time.monotonic() - started_at > WRITE_TIMEOUT_S / 2
        num_bytes = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                num_bytes += len(piece)
        assert num_bytes < REPLY_BYTES


def received_slowly(connection: socket.socket, *, pause_s: float) -> int:
    size = 0
    while not (piece := connection.recv(1 << 20)).endswith(b"0\r\n\r\n"):
        assert piece, "closed in the middle"
        size += len(piece)
        time.sleep(pause_s)
    return size + len(piece)


def test_a_client_that_reads_slowly_gets_all_of_its_reply() -> None:
    with serving(Replier(1)) as (connection, _):
        started_at = time.monotonic()
        assert received_slowly(connection, pause_s=0.03) > REPLY_BYTES
        assert time.monotonic() - started_at > 2 * WRITE_TIMEOUT_S


def test_a_connection_whose_reply_is_being_read_is_not_closed_for_another() -> None:
    with serving(Replier(1), most=1) as (connection, open_connections):
        assert connection.recv(1000)
        with closing(socket.create_connection(connection.getpeername(), timeout=60)) as other:
            assert other.recv(1) == b""
        assert received_slowly(connection, pause_s=0.0) > REPLY_BYTES - 1000
        with closing(socket.create_connection(connection.getpeername(), timeout=60)) as other:
            wait_until(lambda: connection.recv(1) == b"")
            assert len(open_connections) == 1
