"""Replies that hold their room until the peer has read them, so that slow readers cannot fill the server's memory."""

from contextlib import ExitStack

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

_HELD = "code_judge.until_sent"


def after_each_piece(send: Send) -> Send:
    """Return a `send` that returns only when the peer has read the piece.

    The server's own `send` returns at once and waits for the previous piece, so an empty piece follows each.
    """

    async def send_and_wait(message: Message) -> None:
        if message.get("body"):
            await send({**message, "more_body": True})
            message = {**message, "body": b""}
        await send(message)

    return send_and_wait


def until_sent(request: Request) -> ExitStack:
    """Return the stack that is closed when the reply to a request of a `StrictJsonRoute` has been read, or is not sent."""
    return request.scope[_HELD]


def hold_until_sent(request: Request) -> ExitStack:
    """Create the stack that `until_sent` returns for a request; the caller closes it."""
    held = request.scope[_HELD] = ExitStack()
    return held


class HeldReply(Response):
    """A reply that closes `held` when it has been read."""

    def __init__(self, reply: Response, held: ExitStack) -> None:
        super().__init__(status_code=reply.status_code)
        self._reply = reply
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply."""
        with self._held:
            await self._reply(scope, receive, after_each_piece(send))
