"""Messages of launcher and slots to the server, checked strictly: after an invalid one the sender is no longer trusted."""

import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from code_judge_server.jail import protocol


class JailDiedError(Exception):
    """The launcher or a slot ended, sent an invalid message, or did not answer; the state of its job is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a job: none of its processes runs any more."""

    exit_code: int | None
    signal: int | None
    cpu_time_s: float
    wall_time_s: float
    """Time from its fork to its end, without set-up and clean-up."""
    max_rss_bytes: int
    oom_kills: int | None
    peak_memory_bytes: int | None
    tasks_refused: int | None
    """New processes or threads that the kernel refused."""
    collected: list[tuple[int, int | None]]
    """Collected files: index in the request, and size, in the order of their contents; no size if there was no room."""
    error: str | None
    """Reason if the job could not be set up."""
    clears: bool
    """The slot still removes the job's files, and reports when it has finished."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Ready(_Message):
    """The launcher accepts requests for slots."""

    kind: Literal["ready"]


class Failed(_Message):
    """The launcher cannot build the jail, and ends."""

    kind: Literal["failed"]
    why: str


class SlotStarted(_Message):
    """An answer to the request for a slot."""

    kind: Literal["slot"]
    number: int
    preload: str
    pid: int | None = None
    error: str | None = None
    """Reason if there is no slot."""


FROM_LAUNCHER: TypeAdapter[Ready | Failed | SlotStarted] = TypeAdapter(
    Annotated[Ready | Failed | SlotStarted, Field(discriminator="kind")]
)

MessageT = TypeVar("MessageT")


def send(end: socket.socket, message: protocol.Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; the descriptors stay open on this side.

    Raises:
        OSError: the peer has closed, or the socket is full (BlockingIOError).
        ProtocolError: the message is too long, or cannot be encoded as JSON.
    """
    try:
        data = orjson.dumps(message)
    except orjson.JSONEncodeError as error:
        raise protocol.ProtocolError(f"a message cannot be encoded as JSON: {error}") from error
    protocol.send_encoded(end, data, descriptors)


def receive(end: socket.socket, schema: TypeAdapter[MessageT]) -> MessageT | None:
    """Return the next message of a non-blocking socket, None if none has arrived yet.

    Raises:
        JailDiedError: the peer has closed, or sent a message that does not match `schema`.
    """
    message = _receive(end)
    try:
        return None if message is None else schema.validate_python(message)
    except ValidationError as error:
        raise JailDiedError(f"it sent an invalid message: {error}") from error


def receive_ended(end: socket.socket) -> Ended | None:
    """Return the end of a slot's job, like `receive`; it is checked by hand, as it arrives for every job.

    Raises:
        JailDiedError: the slot is dead, or sent another message.
    """
    message = _receive(end)
    if message is None:
        return None
    message.setdefault("tasks_refused", None)
    wrong = [name for name, is_right in _RIGHT_IN_ENDED.items() if name not in message or not is_right(message[name])]
    if wrong or len(message) != len(_RIGHT_IN_ENDED):
        raise JailDiedError(f"it sent an invalid message: wrong {wrong or 'number of keys'}: {str(message)[:200]}")
    del message["kind"]
    return Ended(**message)


def receive_cleared(end: socket.socket) -> bool:
    """Return whether a slot has reported that its job's files are removed; any other message is an error.

    Raises:
        JailDiedError: the slot is dead, or sent another message.
    """
    message = _receive(end)
    if message not in (None, {"kind": "cleared"}):
        raise JailDiedError(f"it sent an invalid message while it clears: {str(message)[:200]}")
    return message is not None


def _is_whole(value: Any) -> bool:
    return value is None or type(value) is int


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_file(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and _is_count(value[0]) and (value[1] is None or _is_count(value[1]))


_RIGHT_IN_ENDED: Mapping[str, Callable[[Any], bool]] = {
    "kind": lambda value: value == "ended",
    "exit_code": _is_whole,
    "signal": _is_whole,
    "cpu_time_s": _is_time,
    "wall_time_s": _is_time,
    "max_rss_bytes": _is_count,
    "oom_kills": _is_count_or_none,
    "peak_memory_bytes": _is_count_or_none,
    "tasks_refused": _is_count_or_none,
    "collected": lambda value: type(value) is list and all(map(_is_file, value)),
    "error": lambda value: value is None or type(value) is str,
    "clears": lambda value: type(value) is bool,
}
"""Checks by key of the message; only `tasks_refused` may be absent."""


def _receive(end: socket.socket) -> protocol.Message | None:
    try:
        received = protocol.receive(end, orjson.loads)
    except BlockingIOError:
        return None
    except OSError as error:
        raise JailDiedError(f"its socket broke: {error}") from error
    except protocol.ProtocolError as error:
        raise JailDiedError(f"it sent an invalid message: {error}") from error
    if received is None:
        raise JailDiedError("it closed its socket")
    message, descriptors = received
    protocol.close_all(descriptors)
    return message
