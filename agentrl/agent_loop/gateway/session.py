"""One episode of an agent: its calls, one after another, and what they add to the trajectory.

A call is stored only when its answer is whole, and before any of it is sent. What an agent does not wait for leaves no trace
but a count in the report.
"""

import asyncio
import contextlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agentrl.agent_loop.gateway.exactness import DropReason, ExactnessReport
from agentrl.agent_loop.gateway.history import Entry, IssuedTurn
from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply, RequestError
from agentrl.agent_loop.gateway.rows import DialogueRows, Start, ToolTemplates, joined
from agentrl.agent_loop.gateway.turn_reading import read_reply, results_of
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest
from agentrl.agent_loop.trajectory_builder import TimeLaps, TrajectoryBuilder
from agentrl.config.schema.agent_loop import AgentSection
from agentrl.config.schema.run import RolloutSection, ValidationSection
from agentrl.engine.base import Engine
from agentrl.engine.turn_sampling import sample_turn, turn_seed
from agentrl.errors import AgentRLError, DataError, RolloutError
from agentrl.rewards.score import Score
from agentrl.types import (
    Completion,
    Deadline,
    FinishReason,
    SamplingParams,
    Termination,
    Trajectory,
    Turn,
)

_ABORT_TIMEOUT_S = 5.0
_MAX_REPLIES_KEPT = 4


class SessionState(StrEnum):
    """State of a session: `OPEN -> ACTIVE -> SEALED -> SCORED`; `Session._enter` changes it."""

    OPEN = "open"
    ACTIVE = "active"
    """At least one call was answered."""
    SEALED = "sealed"
    """It takes no more calls: finished, out of turns or time, or failed."""
    SCORED = "scored"
    """Its trajectory was taken."""


_ORDER = list(SessionState)


class SealedError(Exception):
    """A call to a session that takes no more; it is answered with status 409."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Limits and sampling of sessions."""

    rollout: RolloutSection
    validation: ValidationSection
    agent: AgentSection
    max_row_tokens: int
    """Longest prompt and response together: the context of a call."""
    max_session_tokens: int | None = None
    """Limit of all rows together, which a rank computes at once in training."""


class Session:
    """Answers the calls of one agent and records them."""

    def __init__(
        self,
        request: EpisodeRequest,
        engine: Engine,
        *,
        settings: SessionSettings,
        templates: ToolTemplates,
        report: ExactnessReport,
    ) -> None:
        """Open it; its time begins now."""
        self.request = request
        self.state = SessionState.OPEN
        self.deadline = Deadline.after(settings.rollout.trajectory_timeout_s)
        self.failure: Exception | None = None
        self.sealed = asyncio.Event()
        self.score: Score | None = None
        """Reward that the agent posted."""
        self._engine = _CountedEngine(engine)
        self._settings = settings
        self._templates = templates
        self._report = report
        self._dialogues = DialogueRows(settings.agent, templates)
        self._turns: list[Turn] = []
        self._num_requests = 0
        self._end = Termination.ANSWERED
        self._refusal = ""
        """Reason why the last call did not fit the policy's context."""
        self._laps = TimeLaps()
        self._turn_lock = asyncio.Lock()
        self._calls: set[asyncio.Task[AgentReply]] = set()
        self._replies: dict[str, AgentReply] = {}

    @property
    def is_complete(self) -> bool:
        """True if the policy was not cut short."""
        return self._end is Termination.ANSWERED

    def settle(self, dropped: DropReason | None) -> None:
        """Add what became of the sampled tokens to the report; `dropped` is the reason if none is trained on."""
        committed = sum(sum(row.builder.response_mask) for row in self._dialogues.rows)
        self._report.num_sampled += self._engine.num_sampled
        self._report.dropped[DropReason.UNREAD] += self._engine.num_sampled - committed
        if dropped is None:
            self._report.num_trained += committed
        else:
            self._report.dropped[dropped] += committed

    async def answer(self, call: AgentCall, *, digest: str, is_retry: bool) -> AgentReply:
        """Return the policy's answer; cancelling it aborts the engine's request, and nothing is stored.

        Args:
            call: what the agent asks.
            digest: hash of the request and its idempotency key, by which a retry is recognised.
            is_retry: the agent's library sent it before, and lost the answer.

        Raises:
            SealedError: the session takes no more calls.
            RequestError: the call cannot be answered.
        """
        task = asyncio.create_task(self._answer(call, digest, is_retry))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise SealedError("the episode has ended") from None
            task.cancel()
            await asyncio.wait({task})
            raise

    async def count_tokens(self, call: AgentCall) -> int:
        """Return the number of tokens that a call would be answered from."""
        return len((await self._dialogues.start(call)).token_ids)

    def post_reward(self, score: Score) -> None:
        """Take the agent's reward; a later one replaces it.

        Raises:
            SealedError: the trajectory was already taken.
        """
        if self.state is SessionState.SCORED:
            raise SealedError("the episode was already scored")
        self.score = score

    def seal(self, end: Termination = Termination.ANSWERED) -> None:
        """Take no more calls."""
        if self._takes_calls:
            if end is not Termination.ANSWERED:
                self._end = end
            self._enter(SessionState.SEALED)
            self.sealed.set()

    async def close(self, *, wait_s: float = 0.0) -> None:
        """Seal it; calls in flight have `wait_s` to end by themselves, and are then aborted."""
        self.seal()
        if self._calls and wait_s:
            await asyncio.wait(set(self._calls), timeout=wait_s)
        running = set(self._calls)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def take(self) -> Trajectory:
        """Return the trajectory, not yet scored.

        Raises:
            AgentRLError: the infrastructure failed under it, or the agent made no call.
            Exception: any other with which a call failed, which is a bug.
        """
        self._laps.end("tool_s")
        self._enter(SessionState.SCORED)
        if self.failure is not None:
            raise self.failure
        if not self._turns:
            where = f"agent `{self._settings.agent.label}` of prompt `{self.request.prompt.prompt_id}`"
            if self._end is Termination.TIMEOUT and not self._refusal:
                raise RolloutError(
                    f"{where}: it made no call before its deadline; it hangs, or this machine is too busy"
                )
            reason = self._refusal or "it made no call. It must use the `base_url` that it is given"
            raise DataError(f"{where}: {reason}")
        if self.score is not None:
            self._turns[-1] = replace(self._turns[-1], final_tool_reward=self.score.value)
        record = TrajectoryBuilder([], 0)
        record.turns = self._turns
        trajectory = record.build(
            trajectory_id=self.request.trajectory_id,
            prompt=self.request.prompt,
            sample_index=self.request.sample_index,
            termination=self._end,
            times=self._laps.split,
        )
        if self.score is not None:
            trajectory = replace(trajectory, reward_metrics=self.score.metrics)
        return joined(self._dialogues.rows, trajectory)

    def describe(self) -> dict[str, Any]:
        """Return the state as JSON, for `GET /s/{key}`."""
        return {
            "state": str(self.state),
            "trajectory": self.request.trajectory_id,
            "calls": len(self._turns),
            "rows": len(self._dialogues.rows),
            "tokens": sum(len(row.builder.token_ids) for row in self._dialogues.rows),
            "remaining_s": round(self.deadline.remaining_s(), 1),
            "reward": None if self.score is None else self.score.value,
        }

    @property
    def _takes_calls(self) -> bool:
        return self.state in (SessionState.OPEN, SessionState.ACTIVE)

    def _set_end(self, end: Termination) -> None:
        """Note how the episode ends if no call follows; a sealed one keeps the reason of its seal."""
        if self._takes_calls:
            self._end = end

    def _enter(self, state: SessionState) -> None:
        assert _ORDER.index(state) >= _ORDER.index(self.state), f"{self.state} -> {state}"
        self.state = state

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self.seal()

    async def _answer(self, call: AgentCall, digest: str, is_retry: bool) -> AgentReply:
        async with self._turn_lock:  # one at a time: a session holds the memory of one row
            if is_retry and digest in self._replies:
                return self._replies[digest]
            self._replies.pop(digest, None)  # a retry of this call must not get the answer of an earlier one
            self._require_open()
            self._laps.end("tool_s")
            try:
                start = await self._dialogues.start(call)
                self._laps.end("tokenise_s")
                completion = await self._sample(call, start)
                sampled = self._laps.end("generate_s", queue="engine_queue_s", queue_s=completion.queue_s)
                reply, turn = await self._templates.off_loop(
                    len(completion.token_ids),
                    lambda: read_reply(
                        call,
                        start,
                        completion,
                        name=f"{self.request.trajectory_id}.{len(self._turns)}",
                        stops=self._settings.rollout.stop,
                    ),
                )
                self._commit(call, start, completion, reply, replace(turn, sampled=sampled))
            except (RequestError, SealedError):
                raise
            except Exception as error:  # `take` raises it
                self._fail(error)
                raise SealedError(f"the episode failed: {error}") from error
            self._laps.end("tokenise_s")
            if completion.finish_reason is FinishReason.ABORT:
                self.seal()
                raise SealedError("the policy's time is over")
            self._replies[digest] = reply
            if len(self._replies) > _MAX_REPLIES_KEPT:
                del self._replies[next(iter(self._replies))]
            return reply

    def _require_open(self) -> None:
        if len(self._turns) >= self._settings.rollout.max_turns:
            self.seal(Termination.MAX_TURNS)
        if self.deadline.expired:
            self.seal(Termination.TIMEOUT)
        if not self._takes_calls:
            raise SealedError(f"the episode takes no more calls: {self.failure or self._end}")

    def _room_behind(self, start: Start) -> int:
        """Return the number of tokens that fit into the policy's context, and into the session.

        Raises:
            RequestError: the context is full; a shorter call may follow.
            SealedError: the session is full.
        """
        limit, longest = self._settings.max_session_tokens, self._settings.max_row_tokens
        room = longest - len(start.token_ids)
        if room < 1:
            self._set_end(Termination.MAX_RESPONSE_TOKENS)
            self._refusal = (
                f"`messages`: {len(start.token_ids)} tokens, and the context of the policy is "
                f"{longest} (`data.max_prompt_tokens` + `rollout.max_response_tokens`)"
            )
            raise RequestError(self._refusal, field="messages")
        if limit is None:
            return room
        num_tokens = self._dialogues.num_tokens_with(start)
        if num_tokens >= limit:
            self.seal(Termination.MAX_RESPONSE_TOKENS)
            raise SealedError(
                f"the episode takes no more calls: its rows would have {num_tokens} tokens, and their limit is {limit} "
                "(`actor.max_tokens_per_micro_batch`)"
            )
        return min(room, limit - num_tokens)

    async def _sample(self, call: AgentCall, start: Start) -> Completion:
        rollout, validation = self._settings.rollout, self._settings.validation
        room = self._room_behind(start)
        number, self._num_requests = self._num_requests, self._num_requests + 1
        params = SamplingParams(
            max_tokens=min(room, call.max_tokens or room),
            stop=(*rollout.stop, *start.tokens.stop_strings, *call.stop),
            temperature=rollout.temperature if validation.temperature is None else validation.temperature,
            top_p=validation.top_p,
            top_k=validation.top_k,
            seed=turn_seed(self.request.seed, number),
            stop_token_ids=start.tokens.stop_ids,
        )
        request_id = f"{self.request.trajectory_id}-{number}"
        generation = asyncio.create_task(
            sample_turn(
                self._engine,
                start.token_ids,
                params,
                request_id=request_id,
                turn_timeout_s=rollout.turn_timeout_s,
                deadline=self.deadline,
                is_first=not self._turns,
            )
        )
        try:
            completion = await asyncio.shield(generation)
        except asyncio.CancelledError:
            self._laps.end("generate_s")
            await self._abort(request_id, generation)
            raise
        is_full = completion.finish_reason is FinishReason.LENGTH and params.max_tokens == room
        if completion.finish_reason is FinishReason.ABORT:
            self._end = Termination.TIMEOUT
        else:
            self._set_end(Termination.MAX_RESPONSE_TOKENS if is_full else Termination.ANSWERED)
        return completion

    async def _abort(self, request_id: str, generation: asyncio.Task[Completion]) -> None:
        """End a request that nobody waits for, and learn what was sampled for it."""
        generation.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({asyncio.create_task(self._engine.abort(request_id)), generation}, timeout=_ABORT_TIMEOUT_S)
        await asyncio.wait({generation}, timeout=_ABORT_TIMEOUT_S)
        generation.cancel()

    def _commit(self, call: AgentCall, start: Start, completion: Completion, reply: AgentReply, turn: Turn) -> None:
        """Store a whole answer: tokens, the turn, and what the agent answered to an earlier turn."""
        issued = IssuedTurn(text=reply.text, thought=reply.thought, calls=reply.calls)
        entries: list[Entry] = []
        if call.prompt is None:
            messages = [*start.kept, *start.new_messages] if start.answers else call.messages
            entries = [*messages, issued]
        self._dialogues.commit(start, completion, entries, turn=len(self._turns), has_calls=bool(turn.calls))
        if start.answers is not None:
            answered = self._turns[start.answers.turn]
            if not answered.results:
                results = results_of(answered.calls, start.new_messages)
                self._turns[start.answers.turn] = replace(answered, results=results)
        self._turns.append(turn)
        if self.state is SessionState.OPEN:
            self._enter(SessionState.ACTIVE)
        self._report.add_call(
            begins_row=start.row is None,
            fork=start.fork.reason if start.fork else None,
            ignored=call.ignored if call.tool_choice in ("auto", "none") else (*call.ignored, "tool_choice"),
        )


class _CountedEngine:
    """An engine, and the number of tokens that it sampled for a session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.num_sampled = 0

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        completion = await self._engine.generate(token_ids, params, request_id=request_id, deadline=deadline)
        self.num_sampled += len(completion.token_ids)
        return completion

    async def abort(self, request_id: str) -> None:
        with contextlib.suppress(AgentRLError):  # a dead engine has ended the request
            await self._engine.abort(request_id)
