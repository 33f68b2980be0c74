"""Plain classes that the cluster tests turn into workers."""

import asyncio
import contextlib
import importlib
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from agentrl.cluster.ray.network import own_address
from agentrl.cluster.workers.engine_calls import PackedEngine
from agentrl.cluster.workers.model_worker import ModelWorker
from agentrl.errors import ConfigError, EngineDeadError, EngineError, PeerLostError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from tests.processes import still_running


class PlainWorker:
    """Has nothing of Ray."""

    def __init__(self, config: dict[str, Any], role: str) -> None:
        self.config = config
        self.role = role
        self._given: Any = None

    async def describe(self) -> tuple[dict[str, Any], str, int]:
        return self.config, self.role, os.getpid()

    async def loop_name(self) -> str:
        return type(asyncio.get_running_loop()).__module__

    async def import_user_code(self) -> int:
        return importlib.import_module("user_code").answer()

    async def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    async def fail_as_expected(self) -> None:
        raise EngineError("out of pages")

    async def fail_by_a_bug(self) -> None:
        raise ZeroDivisionError("a bug of ours")

    async def pair(self, size: int) -> tuple[int, bytes]:
        return size, b"x" * size

    async def sleep_until_cancelled(self, note: str) -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            Path(note).write_text("cancelled")  # noqa: ASYNC240 - a small local file
            raise

    async def remaining_s(self, deadline: Any) -> float:
        return deadline.remaining_s()

    async def was_given(self, other: Any) -> bool:
        before, self._given = self._given, other
        return other is before

    async def ask(self, engine: Any, request_id: str) -> Completion:
        params = SamplingParams(max_tokens=1)
        return await engine.generate([1], params, request_id=request_id, deadline=Deadline.after(1000))

    async def call_other(self, other: Any) -> str:
        return (await other.describe())[1]

    async def node(self) -> str:
        return own_address()

    async def die(self) -> None:
        os._exit(1)


class WaitingEngine(PackedEngine):
    """Answers what is aborted."""

    def __init__(self, config: dict[str, Any], role: str) -> None:
        super().__init__()
        self._ended: dict[str, asyncio.Event] = {}

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        self._ended[request_id] = asyncio.Event()
        await self._ended[request_id].wait()
        del self._ended[request_id]
        return Completion(token_ids=[], logprobs=[], finish_reason=FinishReason.ABORT, version_spans=())

    async def abort(self, request_id: str) -> None:
        self._ended[request_id].set()

    async def waits_for(self) -> set[str]:
        return set(self._ended)


class StatusError(Exception):
    """An error as of HTTP clients, which cannot be unpickled."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"status {code}: {text}")


class MuteError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


_RAISED = {
    "by Ctrl-C": KeyboardInterrupt(),
    "by sys.exit": SystemExit(2),
    "by sys.exit in a group": BaseExceptionGroup("both", [SystemExit(2), ValueError("bad")]),
    "by its own cancellation": asyncio.CancelledError(),
    "without words": MuteError(),
    "as agentrl does": ConfigError("no such colour"),
    "by the world": EngineDeadError("the lamp is out \ud800"),
}


class Painter:
    """Serves a tool, and keeps what it has drawn."""

    def __init__(self, config: dict[str, Any], role: str) -> None:
        self._drawn: list[int] = []

    async def draw(self, *, episode_id: str, size: int) -> str:
        self._drawn.append(size)
        return f"{self._drawn} for {episode_id}"

    async def fail(self, *, episode_id: str, how: str) -> Any:
        if how == "in a group":
            async with asyncio.TaskGroup() as group:
                group.create_task(self.fail(episode_id=episode_id, how="in two lines"))
        if how == "in two lines":
            raise ValueError("first\nsecond")
        if how == "beyond pickling":
            raise StatusError(503, "busy")
        if how in _RAISED:
            raise _RAISED[how]
        if how.startswith("there is no "):
            raise ValueError(how)
        return b"\xff" if how == "with bytes" else StatusError(200, "odd")

    async def forget(self, episode_id: str) -> None:
        self._drawn.clear()

    async def die(self) -> None:
        os._exit(1)


class DiesWhileBuilt:
    """Ends its process in the constructor, `deaths` times, of which it keeps notes in a folder."""

    def __init__(self, config: dict[str, Any], role: str) -> None:
        notes = Path(config["notes"])
        num_before = len(list(notes.iterdir()))
        (notes / f"{num_before}").touch()
        if num_before < config["deaths"]:
            os._exit(1)
        time.sleep(config.get("build_s", 0))

    async def work(self) -> None: ...


class ExitsWhileBuilt:
    def __init__(self, config: dict[str, Any], role: str) -> None:
        sys.exit("no license for painting")

    async def work(self) -> None: ...


class Blocking:
    """Answers one call at a time."""

    def __init__(self, config: dict[str, Any], role: str) -> None: ...

    def work(self) -> float:
        time.sleep(0.05)
        return time.monotonic()


class Computing:
    """Functions such as a user's own."""

    def find(self, numbers: list[int], limit: int) -> int:
        return next(number for number in numbers if number > limit)

    def exit(self) -> None:
        sys.exit("bucket 7 has no weight")


class ComputingRank(ModelWorker):
    """Has no model."""

    def __init__(self, config: dict[str, Any], role: str) -> None:
        importlib.import_module("agentrl.training.parallel")  # as a rank with a model has
        self._thread = ThreadPoolExecutor(1)
        self._components = {role: Computing()}  # type: ignore[dict-item]


class RankWorker:
    """One of several that are called together; in a collective, it would wait for the others."""

    def __init__(self, config: dict[str, Any], role: str) -> None:
        self._num_calls = 0

    async def ping(self) -> None: ...

    async def num_calls(self) -> int:
        return self._num_calls

    async def echo(self, *args: Any) -> tuple[int, tuple[Any, ...]]:
        self._num_calls += 1
        return os.getpid(), args

    async def square(self, *numbers: int) -> list[Any]:
        self._num_calls += 1
        return [None, *(number * number for number in numbers)]

    async def fail_on(self, rank: int, failing: int) -> None:
        if rank == failing:
            raise ZeroDivisionError(f"rank {rank} has a bug")
        await asyncio.sleep(3600)

    async def fail_beyond_pickling_on(self, rank: int, failing: int) -> None:
        if rank == failing:
            raise StatusError(503, f"asked by rank {rank}")
        await asyncio.sleep(3600)

    async def refuse_on(self, rank: int, failing: int) -> None:
        if rank == failing:
            raise ConfigError("no such model")
        await asyncio.sleep(3600)

    async def lose_peer_on(self, rank: int, losing: int) -> None:
        if rank == losing:
            raise PeerLostError("connection closed by peer")
        await asyncio.sleep(3600)

    async def die_on(self, rank: int, dying: int, pid_of_dying: int) -> None:
        """Die, or find out that the other one has."""
        if rank == dying:
            os._exit(1)
        with contextlib.suppress(psutil.NoSuchProcess):
            await asyncio.to_thread(still_running, [psutil.Process(pid_of_dying)])
        raise ConnectionError("connection closed by peer")


class HangingWorker:
    """Answers those that look after agent-loop workers, and has two ways to say nothing any more."""

    def __init__(self, config: Any, role: str) -> None:
        pass

    async def start(self) -> int:
        return os.getpid()

    async def ping(self) -> None: ...

    async def match(self) -> None:
        await asyncio.to_thread(re.match, "(a|a)*b", "a" * 60)

    async def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
