"""What launcher and slots may say to the server, checked strictly: what is anything else ends the trust in who said it."""

import socket
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from code_judge_server.jail import protocol


class JailDiedError(Exception):
    """The launcher or a slot ended, said what it must not, or did not answer; nothing is known about the job in it."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Ended(_Message):
    """Nothing of the job is left."""

    kind: Literal["ended"]
    exit_code: int | None
    signal: int | None
    cpu_time_s: Seconds
    max_rss_bytes: Count
    oom_kills: Count | None
    peak_memory_bytes: Count | None
    tasks_refused: Count | None = None
    """How often the kernel refused a new process or thread."""
    collected: list[Annotated[tuple[str, Count], Strict(False)]]
    """Path and size of the collected files, in the order of their contents."""
    error: str | None
    """The job could not be set up."""


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


FROM_SLOT = TypeAdapter(Ended)
FROM_LAUNCHER: TypeAdapter[Ready | Failed | SlotStarted] = TypeAdapter(
    Annotated[Ready | Failed | SlotStarted, Field(discriminator="kind")]
)

MessageT = TypeVar("MessageT")


def receive(end: socket.socket, schema: TypeAdapter[MessageT]) -> MessageT | None:
    """Return the next message on a socket that does not block, None where none has arrived yet.

    Raises:
        JailDiedError: the other end is closed, or sent what is no message of `schema`.
    """
    try:
        received = protocol.receive(end)
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
        raise JailDiedError(f"it sent what it must not: {error}") from error
