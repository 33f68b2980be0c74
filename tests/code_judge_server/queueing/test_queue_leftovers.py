"""The queue holds nothing after all clients have ended, whatever they did and in whatever order."""

import asyncio
import contextlib
import random

import pytest
from scripted_executor import ScriptedExecutor, queue_on, settle, submissions

from code_judge_server.queueing.pending_batch import PendingBatch
from code_judge_server.queueing.queue import QueueFullError, SubmissionQueue


def held(queue: SubmissionQueue) -> list[object]:
    """Return everything that must be empty or zero in the end."""
    return [
        queue.num_waiting,
        queue.num_running,
        queue._scheduler.room.used,
        queue._scheduler.room._held,
        queue._reply_memory.used,
        queue._reply_memory._held,
        queue._in_flight,
        queue._idempotency._in_flight,
        queue._scheduler._waiting._clients,
    ]


async def client(name: str, queue: SubmissionQueue, executor: ScriptedExecutor, dice: random.Random) -> int:
    """Send requests, and wait for them, cancel them or let them expire; return the number of verdicts."""
    num_verdicts = 0
    for _ in range(40):
        kinds = [dice.choice(["print", "hold", "break"]) for _ in range(dice.randint(1, 6))]
        codes = [f"{kind} {number} {dice.randint(0, 5)}" for number, kind in enumerate(kinds)]
        deadline_s = dice.choice([None, 0.001, 0.02])
        batch: PendingBatch | None = None
        with contextlib.suppress(QueueFullError):
            batch = queue.enqueue(submissions(*codes), client=name, deadline_s=deadline_s)
        await asyncio.sleep(dice.choice([0, 0, 0.002]))
        for code in codes:
            if dice.random() < 0.9:
                executor.release(code)
        if batch is not None:
            if deadline_s is not None or dice.random() < 0.5:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        while finished := await batch.next_finished():
                            num_verdicts += len(finished)
            batch.close()
        if dice.random() < 0.3:
            call = asyncio.create_task(queue.judge_all(submissions(*codes), client=name, max_queue_time_s=0.01))
            await asyncio.sleep(0.005)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                num_verdicts += len(await call)
    return num_verdicts


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_left_after_random_requests(seed: int) -> None:
    executor = ScriptedExecutor()
    queue = queue_on(executor, num_slots=3, spare_slots=2, queue_capacity=20, max_batch_items=20, verdict_cache_mb=1)
    dice = random.Random(seed)
    clients = [client(name, queue, executor, random.Random(dice.random())) for name in ("a", "b", "c", "a")]
    num_verdicts = await asyncio.gather(*clients)
    assert sum(num_verdicts) > 100
    await settle()
    assert queue.is_idle
    while queue._scheduler._waiting._heap:  # clients that gave all up are forgotten at the next turn
        with contextlib.suppress(IndexError):
            queue._scheduler._waiting.pop()
    assert not any(held(queue))
