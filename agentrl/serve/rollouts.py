"""Rollouts for requests: room for a request, its trajectories in order of completion, and what they add up to."""

import asyncio
import contextlib
import itertools
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentrl import clock
from agentrl.agent_loop.scheduling.manager import AgentLoopManager, owned_tasks
from agentrl.cluster.ray.handles import fetched
from agentrl.errors import AgentRLError, ResultLostError
from agentrl.observability.json_lines import encode_line
from agentrl.serve.requests import BadRequestError, RolloutRequest
from agentrl.trajectories.codec import encode_trajectory
from agentrl.types import Termination, Trajectory, TrajectoryRef, TrajectorySummary

logger = logging.getLogger(__name__)

Send = Callable[[bytes], Awaitable[None]]

_RATE_WINDOW = 256
"""Finished trajectories over which the rate for `Retry-After` is measured."""
_FIRST_RETRY_S = 5
_MAX_RETRY_S = 60


class BusyError(AgentRLError):
    """Too many trajectories are open; try again after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: int = _FIRST_RETRY_S) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RolloutService:
    """Rolls out the prompts of many requests at once; earlier requests enter the engines first."""

    def __init__(self, rollouts: AgentLoopManager, *, max_open: int, max_prompt_tokens: int) -> None:
        """Take the manager of the run; `max_open` bounds the unfinished trajectories of all requests."""
        self._rollouts = rollouts
        self.max_open = max_open
        self._max_prompt_tokens = max_prompt_tokens
        self._numbers = itertools.count()
        self._finished_at: deque[float] = deque(maxlen=_RATE_WINDOW)
        self.num_requests = 0
        """Open requests."""
        self.num_open = 0
        """Unfinished trajectories of open requests."""
        self.finished: Counter[Termination] = Counter()
        """Trajectories sent since the start."""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def until_failed(self) -> None:
        """Wait until nothing can be rolled out any more, and raise the error."""
        await self._failure

    @contextlib.contextmanager
    def reserved(self, request: RolloutRequest) -> Iterator["OpenRequest"]:
        """Reserve room for a request while the context is open.

        Raises:
            BadRequestError: there will never be so much room.
            BusyError: there is none now.
        """
        number = request.num_trajectories
        if number > self.max_open:
            raise BadRequestError(
                f"body: {number} trajectories in one request, and `service.max_open_trajectories` is {self.max_open}; "
                "send fewer at once"
            )
        if (excess := self.num_open + number - self.max_open) > 0:
            raise BusyError(
                f"service: {self.num_open} trajectories are open, and {number} more would exceed {self.max_open} "
                "(`service.max_open_trajectories`); try again",
                retry_after_s=self._retry_after_s(excess),
            )
        opened = OpenRequest(self, request, number=next(self._numbers))
        self.num_requests += 1
        self.num_open += number
        logger.info("request %d: trajectories: %d", opened.number, number)
        try:
            yield opened
        finally:
            logger.info("request %d: ended, sent: %d, cancelled: %d", opened.number, len(opened.sent), opened.num_left)
            self.num_requests -= 1
            self.num_open -= opened.num_left

    async def measure(self, request: RolloutRequest) -> dict[str, int]:
        """Return the tokens to reserve for each prompt of a request, keyed by prompt id.

        Raises:
            BadRequestError: a prompt is too long.
            ConfigError: the chat template cannot render one, or no engine has memory for it.
        """
        prompt_tokens, overlong = await self._rollouts.measure(request.prompts)
        if overlong:
            raise BadRequestError.of_rows(
                {
                    index: f"prompts[{index}]: {overlong[prompt.prompt_id]} tokens with tools and system text, and "
                    f"`data.max_prompt_tokens` is {self._max_prompt_tokens}"
                    for index, prompt in enumerate(request.prompts)
                    if prompt.prompt_id in overlong
                }
            )
        return prompt_tokens

    async def roll_out(self, opened: "OpenRequest", prompt_tokens: Mapping[str, int], send: Send) -> None:
        """Send each trajectory as a line when it has ended; cancelling this ends the others.

        `prompt_tokens` is what `measure` returned.

        Raises:
            AgentRLError: nothing can be rolled out any more; `until_failed` raises it too.
        """
        request, ended = opened.request, asyncio.Queue[TrajectoryRef]()
        try:
            async with owned_tasks() as tasks:
                self._rollouts.start(
                    request.prompts,
                    step=opened.number,
                    samples_per_prompt=request.samples_per_prompt,
                    sampling=request.sampling,
                    seed=request.seed,
                    prompt_tokens=prompt_tokens,
                    on_finished=ended.put_nowait,
                    tasks=tasks,
                )
                for _ in range(request.num_trajectories):
                    trajectory = await ended.get()
                    await send(await line_of(trajectory))
                    self._note_sent(opened, trajectory.summary)
            await self._rollouts.forget_reports()  # they grow until somebody takes them
        except AgentRLError as error:
            if not (isinstance(error, ResultLostError) or self._failure.done()):
                self._failure.set_exception(error)
            raise

    def _note_sent(self, opened: "OpenRequest", summary: TrajectorySummary) -> None:
        opened.sent.append(summary)
        self.num_open -= 1
        self.finished[summary.termination] += 1
        self._finished_at.append(clock.now())

    def _retry_after_s(self, excess: int) -> int:
        """Return the time in which as many trajectories as are in the way end, at the rate of the last ones."""
        if len(self._finished_at) < 2:
            return _FIRST_RETRY_S
        passed_s = max(clock.now() - self._finished_at[0], 1e-3)
        return min(max(1, math.ceil(excess * passed_s / len(self._finished_at))), _MAX_RETRY_S)


class OpenRequest:
    """A request that has room, and what was sent of it."""

    def __init__(self, service: RolloutService, request: RolloutRequest, *, number: int) -> None:
        self.request = request
        self.number = number
        self.sent: list[TrajectorySummary] = []
        self._started_at = clock.now()

    @property
    def num_left(self) -> int:
        """Trajectories that are not sent."""
        return self.request.num_trajectories - len(self.sent)

    def summary(self) -> dict[str, Any]:
        """Return the last line of a reply as plain data; its counts add up to `num_trajectories`."""
        terminations = Counter(summary.termination for summary in self.sent)
        rewards = [summary.reward for summary in self.sent if summary.reward is not None]
        versions = [summary.policy_version for summary in self.sent if summary.num_response_tokens]
        return {
            "kind": "summary",
            "request": self.number,
            "num_prompts": len(self.request.prompts),
            "num_trajectories": len(self.sent),
            "terminations": {str(name): terminations[name] for name in Termination},
            "num_scored": len(rewards),
            "reward_mean": math.fsum(rewards) / len(rewards) if rewards else None,
            "num_response_tokens": sum(summary.num_response_tokens for summary in self.sent),
            "num_tool_calls": sum(summary.num_tool_calls for summary in self.sent),
            "policy_version_min": min(versions, default=None),
            "wall_time_s": clock.now() - self._started_at,
        }


async def line_of(ref: TrajectoryRef) -> bytes:
    """Return the line of a finished trajectory: the record of trajectory files, with the driver's times."""
    record = ref.ref if isinstance(ref.ref, Trajectory) else await fetched(ref.ref)
    encoded = encode_trajectory(replace(record, times=ref.summary.times))
    return encode_line(encoded | {"policy_version": ref.summary.policy_version})
