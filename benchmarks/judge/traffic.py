"""Load of the soak: clients that send batches, streams and single calls, disconnect half-way, and check every verdict."""

import asyncio
import collections
import contextlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.judge.client import BATCH_SIZE, Answer, Client
from benchmarks.judge.programs import Call, mix

_NOT_JUDGED = ("internal_error", "queue_timeout", "cancelled")
_MAX_TRIES = 10
_MIX_SIZE = 320
_GIVE_UP_WITHIN_S = 0.6
_SHORT_DEADLINE_S = 0.5
_ANSWER_TIMEOUT_S = 90.0
"""Longest wait for a batch of the mix with its sleepers and loops, on a busy machine, through several kills."""
KEEP_ALIVE_S = 0.5
"""Shorter than a quiet point, so that only the server's own descriptors are open then."""


class LostError(Exception):
    """A call got no verdict in many tries."""


@dataclass(slots=True)
class Tally:
    """Results of all clients together."""

    num_calls: int = 0
    num_abandoned: int = 0
    """Requests whose connection was closed before the answer; their calls were sent again."""
    num_refused: int = 0
    not_judged: collections.Counter[str] = field(default_factory=collections.Counter)
    """Verdicts after which a call was sent again, by status."""
    internal_errors: collections.Counter[str] = field(default_factory=collections.Counter)
    """Messages of internal errors."""
    wrong: list[Answer] = field(default_factory=list)
    num_sessions: int = 0
    num_sessions_lost: int = 0
    """Sessions whose processes were killed."""
    num_cells: int = 0
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    """Unexpected answers, such as a 500."""


class Gate:
    """Lets clients begin requests while it is open; closing it waits for those that have begun."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._empty = asyncio.Event()
        self._num_inside = 0
        self._open.set()
        self._empty.set()

    async def __aenter__(self) -> None:
        await self._open.wait()
        self._num_inside += 1
        self._empty.clear()

    async def __aexit__(self, *_: object) -> None:
        self._num_inside -= 1
        if not self._num_inside:
            self._empty.set()

    async def close(self) -> None:
        """Close the gate, and wait until all requests have ended.

        Raises:
            LostError: a request gets no answer.
        """
        self._open.clear()
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self._empty.wait()
        except TimeoutError as error:
            raise LostError(f"{self._num_inside} clients have no answer after {_ANSWER_TIMEOUT_S:g} s") from error

    def open(self) -> None:
        """Let clients begin requests again."""
        self._open.set()


async def drive(url: str, name: str, gate: Gate, tally: Tally) -> None:
    """Send calls of the mix until cancelled.

    Raises:
        LostError: a call was not judged in ten tries.
        ClientError: the server, which nobody kills, did not answer.
    """
    rng = random.Random(name)
    async with Client(url, name, keep_alive_s=KEEP_ALIVE_S) as client:
        for number in itertools.count():
            calls = mix(_MIX_SIZE, seed=rng.getrandbits(32), prefix=f"{name}-{number}")
            while calls:
                size = rng.randint(1, BATCH_SIZE)
                request, calls = calls[:size], calls[size:]
                async with gate:
                    await _judge(client, request, tally, rng)
                tally.num_calls += len(request)
            tally.num_refused += client.num_refused
            client.num_refused = 0


async def _judge(client: Client, calls: Sequence[Call], tally: Tally, rng: random.Random) -> None:
    """Get every call judged in one of several ways; send calls without a verdict again."""
    waiting = list(calls)
    statuses: collections.Counter[str] = collections.Counter()
    for _ in range(_MAX_TRIES):
        answers = await _send(client, waiting, tally, rng)
        waiting = []
        for answer in answers:
            status = answer.verdict["status"]
            if status in _NOT_JUDGED:
                tally.not_judged[status] += 1
                statuses[f"{status}: {answer.verdict['stderr'][:200]}"] += 1
                waiting.append(answer.call)
            elif not answer.call.is_right(answer.verdict):
                tally.wrong.append(answer)
            if status == "internal_error":
                tally.internal_errors[answer.verdict["stderr"][:200]] += 1
        if not waiting:
            return
    raise LostError(
        f"{len(waiting)} calls were not judged in {_MAX_TRIES} tries; statuses {dict(statuses)}; one is {waiting[0].submission}"
    )


async def _send(client: Client, calls: Sequence[Call], tally: Tally, rng: random.Random) -> list[Answer]:
    way = rng.choices(["batch", "stream", "single", "abandon", "deadline"], [5, 3, 1, 2, 1])[0]
    if way == "stream":
        return await client.judge_stream(calls)
    if way == "single":
        return list(await asyncio.gather(*map(client.judge_one, calls)))
    if way == "deadline":
        return await client.judge_batch(calls, deadline_s=_SHORT_DEADLINE_S)
    if way == "abandon":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(0, _GIVE_UP_WITHIN_S)):
                return await rng.choice([client.judge_batch, client.judge_stream])(calls)
        tally.num_abandoned += 1
    return await client.judge_batch(calls)
