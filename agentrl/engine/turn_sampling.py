"""One turn of the policy: sampled by an engine within its time limits, and refused if it cannot be trained on."""

import asyncio
import hashlib
from typing import Protocol

from agentrl.errors import EngineDeadError, EngineError, WorkerDiedError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams

_ENGINE_GRACE_S = 10.0
_EARLY_S = 0.1
"""Tolerance for an engine whose clock is ahead of this one when a deadline passes."""


class Sampler(Protocol):
    """The part of an `Engine` that samples."""

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """See `Engine.generate`."""
        ...


async def sample_turn(
    engine: Sampler,
    token_ids: list[int],
    params: SamplingParams,
    *,
    request_id: str,
    turn_timeout_s: float,
    deadline: Deadline,
    is_first: bool,
) -> Completion:
    """Return the policy's next turn; `deadline` is the episode's.

    Raises:
        EngineDeadError: the engine died, or did not answer.
        EngineError: the reply was aborted before its deadline, or has no token.
    """
    allowed = deadline.capped(turn_timeout_s)
    try:
        # An engine keeps its deadlines itself; one that does not has hung, and must not block the step.
        async with asyncio.timeout(allowed.remaining_s() + _ENGINE_GRACE_S):
            completion = await engine.generate(token_ids, params, request_id=request_id, deadline=allowed)
    except TimeoutError as error:
        raise EngineDeadError(
            f"engine: no answer to request {request_id} {_ENGINE_GRACE_S:g} s after its deadline"
        ) from error
    except WorkerDiedError as error:
        raise EngineDeadError(str(error)) from error
    if completion.finish_reason is FinishReason.ABORT and allowed.remaining_s() > _EARLY_S:
        # Scoring the cut episode would teach the policy that its unfinished text was wrong.
        raise EngineError(f"engine: aborted request {request_id} {allowed.remaining_s():.3g} s before its deadline")
    # No token before the deadline in the first turn: the engine was too busy, which is not the policy's fault. In a later
    # turn, or after some tokens, the episode ran out of time.
    ran_out = not is_first and completion.finish_reason is FinishReason.ABORT and deadline.remaining_s() < _EARLY_S
    if not completion.token_ids and not ran_out:
        raise EngineError(f"engine reply: no token, finish reason `{completion.finish_reason}`")
    return completion


def turn_seed(seed: str, turn: int) -> int:
    """Return the sampling seed of one turn: 63 bits of a hash, the same on every machine and in every resumed run."""
    digest = hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
