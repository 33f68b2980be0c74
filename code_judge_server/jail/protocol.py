"""The messages between server, launcher and slots: JSON datagrams with descriptors over `SOCK_SEQPACKET` pairs.

No code, input, output or file name of a program is ever in a message, only descriptors of them: every job can read what a
zygote or slot has in memory.

Server to launcher:
    `plan.Plan.start_message`, answered by `{"kind": "ready"}` or `{"kind": "failed", "why": text}`;
    `{"kind": "slot", "number": k, "preload": name}` + [socket of the slot], answered (in any order) by
    `{"kind": "slot", "number": k, "preload": name, "pid": its process id as the server sees it}`, or by
    `{"kind": "slot", "number": k, "preload": name, "error": text}`.
Server to slot:
    `{"kind": "job", "argv": [..], "interpret": bool, "limits": {"cpu_time_s", "memory_bytes", "max_tasks",
    "disk_bytes"}, "files": [size, ..], "collect": number of files, "collect_bytes": n}` + [files, stdin, stdout,
    stderr] (+ [collected] iff `collect`): memfds of the files one after the other, behind them their
    paths and then those to collect, a null behind each (they are not read where there are none), and of stdin, two pipes, and a
    memfd to copy collected files to; with `"oom_score_adj": n` too, the kernel kills it later than other jobs;
    `{"kind": "kill"}`: end the job now; ignored where none runs. The next job comes when nothing of this one is left.
Slot to server:
    `{"kind": "ended", "exit_code", "signal", "cpu_time_s", "wall_time_s", "max_rss_bytes", "oom_kills",
    "peak_memory_bytes", "tasks_refused", "collected": [[index among those to collect, size or null], ..], "error": text or
    null, "clears": bool}`: nothing of the job runs any more. `error`: the job could not be set up. `clears`: its files are
    still to be removed, however many a program has made; without, nothing of the job is left;
    `{"kind": "cleared"}`, after an end that `clears`: they are removed.
An end that sees its peer's socket closed stops: the launcher with everything below it, or the slot with its job.
"""

import array
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

MAX_MESSAGE_BYTES = 256 * 1024
"""Longest message; a job with many files has the longest."""
MAX_DESCRIPTORS = 8

_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)  # plain numbers: to combine flags of an enum takes as long as a system call
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_CUT_OFF = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_buffer = bytearray(MAX_MESSAGE_BYTES)

Message = dict[str, Any]


class ProtocolError(Exception):
    """The peer sent an invalid message, and is no longer trusted."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected blocking sockets whose buffers hold the longest message."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, MAX_MESSAGE_BYTES)
    return ends


def send(end: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; the descriptors stay open on this side.

    Raises:
        OSError: the peer has closed, or the socket does not block and is full (BlockingIOError).
        ProtocolError: the message is too long.
    """
    send_encoded(end, _encode(message).encode(), descriptors)


def send_encoded(end: socket.socket, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send a message that is already encoded as JSON; see `send`."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {len(data)} bytes: the longest is {MAX_MESSAGE_BYTES}")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    end.sendmsg([data], ancillary, _NO_SIGNAL)


def _decode_bytes(data: bytes) -> Any:
    return _decode(data.decode())


def receive(end: socket.socket, decode: Callable[[bytes], Any] = _decode_bytes) -> tuple[Message, list[int]] | None:
    """Receive one message and its descriptors (close-on-exec), or None if the peer has closed.

    Raises:
        OSError: the connection broke, or the socket does not block and holds no message (BlockingIOError).
        ProtocolError: it is truncated, not a JSON object, or without a `kind`; its descriptors are closed.
    """
    try:
        length, ancillary, flags, _ = end.recvmsg_into([_buffer], _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
    except ConnectionResetError:  # the peer left messages unread; its own last ones come after this error
        length, ancillary, flags, _ = end.recvmsg_into([_buffer], _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
    data = bytes(_buffer[:length])
    descriptors = _descriptors(ancillary)
    if not data and not descriptors:
        return None
    try:
        if flags & _CUT_OFF:
            raise ProtocolError(f"message of more than {MAX_MESSAGE_BYTES} bytes or {MAX_DESCRIPTORS} descriptors")
        message = decode(data)
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise ProtocolError(f"message without a kind: {data[:100]!r}")
    except (ProtocolError, ValueError, RecursionError) as error:
        close_all(descriptors)
        raise error if isinstance(error, ProtocolError) else ProtocolError(f"no JSON: {data[:100]!r}") from error
    return message, descriptors


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    """Close the descriptors of a message."""
    for descriptor in descriptors:
        os.close(descriptor)
