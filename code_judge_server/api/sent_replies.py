"""Replies that count as held until their peers have taken them: who reads slowly is not to fill the server's memory."""

from contextlib import ExitStack

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

_HELD = "code_judge.until_sent"


def after_each_piece(send: Send) -> Send:
    """Return a `send` that comes back when the peer has taken what it was given.

    The server's own comes back at once, and waits for the piece before: so an empty one follows each.
    """

    async def send_and_wait(message: Message) -> None:
        if message.get("body"):
            await send({**message, "more_body": True})
            message = {**message, "body": b""}
        await send(message)

    return send_and_wait


def until_sent(request: Request) -> ExitStack:
    """Return what is closed when the reply to a request of a `StrictJsonRoute` has been taken, or there is none."""
    return request.scope[_HELD]


def begin_to_hold(request: Request) -> ExitStack:
    """Make what `until_sent` returns for a request, for whoever closes it."""
    held = request.scope[_HELD] = ExitStack()
    return held


class HeldReply(Response):
    """A reply for which something is held until it has been taken.

    Args:
        reply: What is sent.
        held: Closed then.
    """

    def __init__(self, reply: Response, held: ExitStack) -> None:
        super().__init__(status_code=reply.status_code)
        self._reply = reply
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply."""
        with self._held:
            await self._reply(scope, receive, after_each_piece(send))
