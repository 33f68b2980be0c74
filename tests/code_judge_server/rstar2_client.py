"""A client like rStar2-Agent's tools, written from their requests: `POST /run/long-batch`, a connection for each.

    async with Rstar2Client(url, concurrency=4, batch_size=8) as client:
        print(await client.run_cell("x + 1", history=["x = 1"]))        # Tool call success / stdout: 2 / ...

It relies on these properties, which a server must keep: results in the order of the submissions, the keys `reason`,
`run_success`, `success`, `stdout`, `stderr` and `cost` in each, `queue_timeout` as the only reason for a retry (four tries in
all), and no status but 200.
"""

import asyncio
import base64
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import aiohttp

_MAX_TRIES = 4
_FIRST_PAUSE_S = 0.05
_TIMEOUT_S = 60.0
_SETUP = """
import ast, base64, contextlib, io, os, sys
space = {"__name__": "__main__", "__file__": "<string>"}
def run(encoded, is_replayed):
    source = base64.b64decode(encoded.encode()).decode()
    hidden = io.StringIO() if is_replayed else None
    try:
        with contextlib.redirect_stdout(hidden or sys.stdout), contextlib.redirect_stderr(hidden or sys.stderr):
            tree = ast.parse(source)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<string>", "exec"), space)
            value = eval(compile(ast.Expression(last.value), "<string>", "eval"), space) if last else None
            if value is not None and not is_replayed:
                print(repr(value))
    except Exception as error:
        if is_replayed:
            return
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
"""


class Rstar2Client:
    """Collects calls into batches, sends a number of batches at once, and gives each call the text that the model reads."""

    def __init__(self, url: str, *, concurrency: int, batch_size: int) -> None:
        self.num_requests = 0
        self.num_asked_again = 0
        self._url = f"{url}/run/long-batch"
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._waiting: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[str]]] = asyncio.Queue()

    async def __aenter__(self) -> "Rstar2Client":
        connector = aiohttp.TCPConnector(limit=self._concurrency, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        self._senders = [asyncio.create_task(self._send_batches()) for _ in range(self._concurrency)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        await self._session.close()

    async def run_cell(self, code: str, history: Sequence[str] = ()) -> str:
        """Run one cell after the earlier ones of its conversation, whose output is not shown again."""
        replayed = "".join(f"run({_encoded(cell)!r}, True)\n" for cell in history)
        return await self._call(f"{_SETUP}{replayed}run({_encoded(code)!r}, False)\n", None)

    async def run_program(self, code: str, stdin: str) -> str:
        """Run one program with its input."""
        return await self._call(f"{_SETUP}run({_encoded(code)!r}, False)\n", stdin)

    async def _call(self, solution: str, stdin: str | None) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(({"type": "python", "solution": solution, "input": stdin}, answer))
        return await answer

    async def _send_batches(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < self._batch_size and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            try:
                results = await self._results([submission for submission, _ in batch])
            except Exception as error:
                for _, answer in batch:
                    answer.set_exception(error)
                raise
            for (_, answer), result in zip(batch, results, strict=True):
                answer.set_result(_text(result))

    async def _results(self, submissions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        results: dict[int, dict[str, Any]] = {}
        for number in range(_MAX_TRIES):
            missing = [index for index in range(len(submissions)) if index not in results]
            self.num_asked_again += number > 0
            body = {"type": "batch", "submissions": [submissions[index] for index in missing]}
            async with self._session.post(self._url, json=body) as reply:
                reply.raise_for_status()
                answered = (await reply.json())["results"]
            self.num_requests += 1
            pairs = zip(missing, answered, strict=True)
            results |= {index: result for index, result in pairs if result["reason"] != "queue_timeout"}
            if len(results) == len(submissions):
                break
            await asyncio.sleep(_FIRST_PAUSE_S * 2**number)
        return [results[index] for index in range(len(submissions))]


def _encoded(code: str) -> str:
    return base64.b64encode(code.encode()).decode()


def _text(result: dict[str, Any]) -> str:
    succeeded = result["run_success"] and result["success"]
    lines = ["Tool call success"] if succeeded else ["Tool call failure", f"reason: {result['reason']}"]
    lines += [f"{name}: {result[name]}" for name in ("stdout", "stderr") if result[name]]
    return "\n".join([*lines, f"execution time: {result['cost']:.2f}s"])
