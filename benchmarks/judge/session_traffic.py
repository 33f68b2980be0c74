"""Sessions of the soak: counters that are incremented, broken and rolled back, whose value is always known.

A request refused with 429 or 503 is sent again after the time that the judge asks for, as by a real client.
"""

import asyncio
import collections
import random
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.judge.traffic import Gate, Tally

_MAX_CELLS = 12
_GONE = 404
_BUSY = (429, 503)
_MAX_TRIES = 10


class SessionError(Exception):
    """A session reported a wrong state."""


class SessionRefusedError(Exception):
    """The judge refused one request repeatedly, or did not say when to send it again."""


class SessionGoneError(Exception):
    """The session has ended: a part of the judge that held it was killed."""


@dataclass(slots=True)
class _Client:
    """Sends requests about sessions."""

    http: aiohttp.ClientSession
    refused: collections.Counter[int]
    """Numbers of refusals by status; each such request was sent again."""

    async def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send one request until it is accepted, and return its answer.

        Raises:
            SessionGoneError: the session does not exist, or the judge cannot hold any.
            SessionRefusedError: it was refused too often.
            ClientError: the server did not answer, or with a 500.
        """
        refusal = ""
        for _ in range(_MAX_TRIES):
            async with self.http.post(path, json=content) as reply:
                if reply.status == _GONE:
                    raise SessionGoneError(await reply.text())
                if reply.status not in _BUSY:
                    reply.raise_for_status()
                    return await reply.json()
                refusal = f"{path}: {reply.status}: {await reply.text()}"
                pause_s = reply.headers.get("Retry-After")
            if pause_s is None:
                raise SessionRefusedError(f"{refusal}, without `Retry-After`")
            self.refused[reply.status] += 1
            await asyncio.sleep(float(pause_s))
        raise SessionRefusedError(f"{refusal}, {_MAX_TRIES} times")


@dataclass(slots=True)
class _Counter:
    """A session that counts; `states` holds its value by snapshot."""

    client: _Client
    path: str
    value: int
    snapshot: int
    states: dict[int, int]

    async def step(self, rng: random.Random) -> None:
        """Take one random step, and check its result."""
        action = rng.choice(["raise", "raise", "raise", "break", "roll back", "branch"])
        if action == "roll back":
            self.snapshot = rng.choice([*self.states])
            self.value = self.states[self.snapshot]
            await self.client.post(f"{self.path}/rollback", {"snapshot": self.snapshot})
            return
        if action == "break":
            broken = await self._run({"code": "counter = 'lost'\n1 / 0"})
            self._check(broken, status="runtime_error", snapshot=self.snapshot)
            return
        start = rng.choice([*self.states]) if action == "branch" else self.snapshot
        value = self.states[start] + 1
        raised = await self._run({"code": "counter += 1\ncounter", "from_snapshot": start})
        self._check(raised, status="accepted", display=[{"text/plain": str(value)}])
        self.snapshot, self.value = raised["snapshot"], value
        self.states[self.snapshot] = value

    async def _run(self, cell: dict[str, Any]) -> dict[str, Any]:
        result = await self.client.post(f"{self.path}/cells", cell)
        if result["session_closed"] or result["status"] == "internal_error":
            raise SessionGoneError(result["stderr"])
        return result

    def _check(self, result: dict[str, Any], **expected: Any) -> None:
        if any(result[name] != value for name, value in expected.items()):
            raise SessionError(f"{self.path}: expected {expected} at {self.states}, got {result}")


async def drive_sessions(url: str, name: str, gate: Gate, tally: Tally, refused: collections.Counter[int]) -> None:
    """Open, use and close one session after the other until cancelled; return if the judge cannot hold any.

    Args:
        url: Address of the judge.
        name: Name of the client.
        gate: Passed once for each session.
        tally: Counts sessions, cells and faults.
        refused: Counts answers 429 and 503, by status.

    Raises:
        SessionError: a session gave a wrong value.
        SessionRefusedError: one request was refused too often.
        ClientError: the server did not answer, or a cell got a 500.
    """
    rng = random.Random(name)
    async with aiohttp.ClientSession(url, headers={"Judge-Client": name, "Connection": "close"}) as http:
        client = _Client(http, refused)
        while True:
            async with gate:
                try:
                    state = await client.post("/v1/sessions", {})
                except SessionGoneError:
                    return
                except aiohttp.ClientResponseError as error:
                    tally.errors[f"{error.status} for a new session"] += 1
                    continue
                tally.num_sessions += 1
                path = f"/v1/sessions/{state['session_id']}"
                try:
                    first = await client.post(f"{path}/cells", {"code": "counter = 0"})
                    if first["status"] != "accepted":
                        raise SessionGoneError(first["stderr"])
                    counter = _Counter(client, path, 0, first["snapshot"], {first["snapshot"]: 0})
                    for _ in range(rng.randrange(_MAX_CELLS)):
                        await counter.step(rng)
                        tally.num_cells += 1
                except SessionGoneError:
                    tally.num_sessions_lost += 1
                async with http.delete(path):
                    pass
