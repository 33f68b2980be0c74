"""Messages of launcher and slots to the server, checked strictly: after an invalid one the sender is no longer trusted."""

import socket
from typing import Annotated, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from code_judge_server.jail import protocol


class JailDiedError(Exception):
    """The launcher or a slot ended, sent an invalid message, or did not answer; the state of its job is unknown."""


class JailMessage(BaseModel):
    """Base of the messages: immutable, and unknown keys or other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Ended(JailMessage):
    """The end of a job: none of its processes runs any more."""

    kind: Literal["ended"]
    exit_code: int | None
    signal: int | None
    cpu_time_s: Time
    wall_time_s: Time
    """Time from its fork to its end, without set-up and clean-up."""
    max_rss_bytes: Count
    oom_kills: Count | None
    peak_memory_bytes: Count | None
    tasks_refused: Count | None = None
    """New processes or threads that the kernel refused."""
    collected: list[Annotated[tuple[Count, Count | None], Field(strict=False)]]
    """Collected files: index in the request, and size, in the order of their contents; no size if there was no room."""
    error: str | None
    """Reason if the job could not be set up."""
    clears: bool
    """The slot still removes the job's files, and reports when it has finished."""


class Cleared(JailMessage):
    """The files of the last job are removed."""

    kind: Literal["cleared"]


class Ready(JailMessage):
    """The launcher accepts requests for slots."""

    kind: Literal["ready"]


class Failed(JailMessage):
    """The launcher cannot build the jail, and ends."""

    kind: Literal["failed"]
    why: str


class SlotStarted(JailMessage):
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
END_OF_JOB: TypeAdapter[Ended] = TypeAdapter(Ended)
END_OF_CLEARING: TypeAdapter[Cleared] = TypeAdapter(Cleared)

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
    try:
        received = protocol.receive(end, orjson.loads)
        if received is None:
            raise JailDiedError("it closed its socket")
        message, descriptors = received
        protocol.close_all(descriptors)
        return schema.validate_python(message)
    except BlockingIOError:
        return None
    except OSError as error:
        raise JailDiedError(f"its socket broke: {error}") from error
    except (protocol.ProtocolError, ValidationError) as error:
        raise JailDiedError(f"it sent an invalid message: {error}") from error
