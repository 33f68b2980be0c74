"""What launcher and slots may say to the server, checked strictly: what is anything else ends the trust in who said it."""

import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from code_judge_server.jail import protocol


class JailDiedError(Exception):
    """The launcher or a slot ended, said what it must not, or did not answer; nothing is known about the job in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing of the job runs any more."""

    exit_code: int | None
    signal: int | None
    cpu_time_s: float
    wall_time_s: float
    """From its fork to its end: without what was made for it and cleaned up after it."""
    max_rss_bytes: int
    oom_kills: int | None
    peak_memory_bytes: int | None
    tasks_refused: int | None
    """How often the kernel refused a new process or thread."""
    collected: list[tuple[int, int | None]]
    """Index among those to collect and size of the files, in the order of their contents; no size: there was no room for it."""
    error: str | None
    """The job could not be set up."""
    clears: bool
    """The slot still removes the job's files, and says when it has."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Ready(_Message):
    """The launcher can be asked for slots."""

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
    """Why there is none."""


FROM_LAUNCHER: TypeAdapter[Ready | Failed | SlotStarted] = TypeAdapter(
    Annotated[Ready | Failed | SlotStarted, Field(discriminator="kind")]
)

MessageT = TypeVar("MessageT")


def send(end: socket.socket, message: protocol.Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; the descriptors stay open on this side.

    Raises:
        OSError: the other end is closed, or the socket is full (BlockingIOError).
        ProtocolError: the message is too long, or no JSON can be made of it.
    """
    try:
        data = orjson.dumps(message)
    except orjson.JSONEncodeError as error:
        raise protocol.ProtocolError(f"no JSON can be made of a message: {error}") from error
    protocol.send_encoded(end, data, descriptors)


def receive(end: socket.socket, schema: TypeAdapter[MessageT]) -> MessageT | None:
    """Return the next message on a socket that does not block, None where none has arrived yet.

    Raises:
        JailDiedError: the other end is closed, or sent what is no message of `schema`.
    """
    message = _receive(end)
    try:
        return None if message is None else schema.validate_python(message)
    except ValidationError as error:
        raise JailDiedError(f"it sent what it must not: {error}") from error


def receive_ended(end: socket.socket) -> Ended | None:
    """Return the end of a slot's job, as `receive` does; this comes with every job, so it is checked by hand.

    Raises:
        JailDiedError: the slot is dead, or said anything else.
    """
    message = _receive(end)
    if message is None:
        return None
    message.setdefault("tasks_refused", None)
    wrong = [name for name, is_right in _RIGHT_IN_ENDED.items() if name not in message or not is_right(message[name])]
    if wrong or len(message) != len(_RIGHT_IN_ENDED):
        raise JailDiedError(f"it sent what it must not: wrong {wrong or 'number of keys'}: {str(message)[:200]}")
    del message["kind"]
    return Ended(**message)


def receive_cleared(end: socket.socket) -> bool:
    """Return whether a slot has said that the files of its job are removed too; what else it says is wrong then.

    Raises:
        JailDiedError: the slot is dead, or said anything else.
    """
    message = _receive(end)
    if message not in (None, {"kind": "cleared"}):
        raise JailDiedError(f"it sent what it must not while it clears: {str(message)[:200]}")
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
"""By the keys of the message, of which `tasks_refused` may be absent."""


def _receive(end: socket.socket) -> protocol.Message | None:
    try:
        received = protocol.receive(end, orjson.loads)
    except BlockingIOError:
        return None
    except OSError as error:
        raise JailDiedError(f"its socket broke: {error}") from error
    except protocol.ProtocolError as error:
        raise JailDiedError(f"it sent what it must not: {error}") from error
    if received is None:
        raise JailDiedError("it closed its socket")
    message, descriptors = received
    protocol.close_all(descriptors)
    return message
