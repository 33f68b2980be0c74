"""Sinks for tests: one that records, and one whose server never answers."""

import socket
import threading
from collections.abc import Callable, Mapping
from time import monotonic, sleep


class RecordingSink:
    """Keeps what it gets; `before_log` may raise or block."""

    def __init__(self, before_log: Callable[[int], object] = lambda step: None) -> None:
        self._before_log = before_log
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.threads: set[int] = set()
        self.is_closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.threads.add(threading.get_ident())
        self._before_log(step)
        self.rows.append((step, dict(metrics)))

    def close(self) -> None:
        self.is_closed = True

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.rows]


class SilentServer:
    """Accepts connections and never answers; a context manager."""

    def __enter__(self) -> "SilentServer":
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address: tuple[str, int] = self._socket.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class SilentServerSink(RecordingSink):
    """Waits for the answer of a server without a timeout."""

    def __init__(self, server: SilentServer) -> None:
        super().__init__()
        self._connection = socket.create_connection(server.address)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
        self._connection.recv(1)
        super().log(step, metrics)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Return once the condition holds."""
    deadline = monotonic() + timeout_s
    while not condition():
        assert monotonic() < deadline, "timed out"
        sleep(0.002)
