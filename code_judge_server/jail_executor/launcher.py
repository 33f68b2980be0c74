"""The server's end of the launcher: it builds the jail, and starts slots on request."""

import asyncio
import socket
import subprocess
from typing import TypeVar

from code_judge_server.jail import protocol
from code_judge_server.jail.launch.plan import Plan, job_environment
from code_judge_server.jail_executor import messages
from code_judge_server.jail_executor.messages import JailDiedError

START_TIMEOUT_S = 60.0
"""Time to build the jail and to import a preload set, on a busy machine."""
_STOP_TIMEOUT_S = 2.0

ResultT = TypeVar("ResultT")


class Launcher:
    """A launcher process, started outside the event loop, so that it works while the server still imports."""

    def __init__(self, plan: Plan) -> None:
        self._end, theirs = protocol.socket_pair()
        with theirs:
            self._process = subprocess.Popen(
                plan.command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=job_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the server alone handles a Ctrl-C in its terminal
            )
        self.alive = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[None] | None = None
        self._requests: dict[tuple[int, str], asyncio.Future[int]] = {}
        message, descriptors = plan.start_message()
        protocol.send(self._end, message, descriptors)

    async def wait_until_ready(self) -> None:
        """Wait until slots can be requested.

        Raises:
            JailDiedError: the launcher cannot build the jail; the message has the reason.
        """
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._end.setblocking(False)
        self._loop.add_reader(self._end, self._on_message)
        await self._within_time(self._ready)

    async def open_slot(self, number: int, preload: str) -> tuple[socket.socket, int]:
        """Start a slot in place of an earlier one; return the server's end of its socket, and its process id.

        Raises:
            JailDiedError: the launcher is dead, or cannot start a slot.
        """
        if not self.alive or self._loop is None:
            raise JailDiedError("launcher: it is dead")
        ours, theirs = protocol.socket_pair()
        reply = self._requests[number, preload] = self._loop.create_future()
        try:
            with theirs:
                protocol.send(self._end, {"kind": "slot", "number": number, "preload": preload}, (theirs.fileno(),))
            self._loop.add_reader(ours, _fail, reply, f"slot {number} ({preload}) died before it was ready")
            try:
                return ours, await self._within_time(reply)
            finally:
                self._loop.remove_reader(ours)
        except OSError as error:
            ours.close()
            self.die(f"it accepts no request: {error}")
            raise JailDiedError(f"launcher: it accepts no request: {error}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            self._requests.pop((number, preload), None)

    def die(self, reason: str) -> None:
        """Kill the launcher and everything below it; does nothing if it is already dead."""
        if not self.alive:
            return
        self.alive = False
        if self._loop is not None:
            self._loop.remove_reader(self._end)
        self._end.close()
        waiting = [*self._requests.values(), *filter(None, [self._ready])]
        for future in waiting:
            _fail(future, reason)

    async def aclose(self) -> None:
        """End it, and wait until it and everything below it has ended; kill it if it does not end."""
        self.die("it is closed")
        try:
            await asyncio.to_thread(self._process.wait, _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def _within_time(self, future: "asyncio.Future[ResultT]") -> ResultT:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await future
        except TimeoutError as error:
            self.die("it does not answer")
            raise JailDiedError(f"launcher: no answer within {START_TIMEOUT_S:g} s") from error

    def _on_message(self) -> None:
        try:
            message = messages.receive(self._end, messages.FROM_LAUNCHER)
            if isinstance(message, messages.Ready) and self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            elif isinstance(message, messages.Failed):
                self.die(message.why)
            elif isinstance(message, messages.SlotStarted):
                self._answer(message)
        except JailDiedError as error:
            self.die(str(error))

    def _answer(self, message: messages.SlotStarted) -> None:
        request = self._requests.get((message.number, message.preload))
        if request is None or request.done():
            return  # the caller has gone: the slot sees its socket closed
        if message.pid is None:
            _fail(request, f"no slot {message.number} ({message.preload}): {message.error}")
        else:
            request.set_result(message.pid)


def _fail(future: "asyncio.Future[ResultT]", reason: str) -> None:
    if not future.done():
        future.set_exception(JailDiedError(f"launcher: {reason}"))
