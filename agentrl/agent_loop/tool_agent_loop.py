"""The loop of one episode: the policy writes, tools or the environment answer, until nothing does.

The loop itself is `ToolAgentLoop.run`. Ray, retries and rewards are handled in `worker.py`.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar, TypeVarTuple

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.retries import failing_as
from agentrl.agent_loop.trajectory_builder import TimeLaps, TrajectoryBuilder
from agentrl.config.schema.run import RolloutSection, ValidationSection
from agentrl.engine.base import Engine
from agentrl.engine.stop_strings import end_of_stop
from agentrl.engine.turn_sampling import sample_turn, turn_seed
from agentrl.environments.environment_thread import EnvironmentThread
from agentrl.errors import DataError
from agentrl.tools.base import Episode
from agentrl.tools.executor import ToolExecutor
from agentrl.types import (
    Completion,
    Deadline,
    FailureClass,
    FinishReason,
    Message,
    Prompt,
    SamplingParams,
    Termination,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MAX_ON_LOOP = 2048
"""Tokens to decode, or characters to encode, on the event loop; so few cost less than the switch to a thread."""

_MIN_ANSWER_TOKENS = 32
"""Tokens that an observation leaves for the policy's next completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRequest:
    """Identity and prompt of one episode. `seed` fixes the sampling of all its turns."""

    trajectory_id: str
    prompt: Prompt
    sample_index: int
    seed: str


class ToolAgentLoop:
    """Runs episodes against an engine and tools; one instance serves many episodes at once."""

    def __init__(
        self,
        rollout: RolloutSection,
        tokens: ChatTokens,
        tools: ToolExecutor,
        *,
        tokenizer_threads: Executor,
        environment: EnvironmentThread | None = None,
        validation: ValidationSection | None = None,
    ) -> None:
        """Take the parts.

        Args:
            rollout: limits, and the temperature.
            tokens: tokenizer and chat template.
            tools: executor of the calls.
            tokenizer_threads: threads that keep tokenising and parsing off the event loop.
            environment: answers turns without a call; absent: such a turn ends the episode.
            validation: sampling of held-out prompts; absent: the whole distribution, for training.
        """
        self._rollout = rollout
        self._validation = validation or ValidationSection()
        self._tokens = tokens
        self._stop = (*rollout.stop, *tokens.stop_strings)
        self._tools = tools
        self._environment = environment
        self._threads = tokenizer_threads

    def sampling_by(self, validation: ValidationSection) -> "ToolAgentLoop":
        """Return a loop with the same parts and another sampling."""
        other = copy(self)
        other._validation = validation
        return other

    async def run(self, request: EpisodeRequest, engine: Engine) -> Trajectory:
        """Run one episode to its end; however it ends, the environment frees its state.

        Raises:
            EngineDeadError: the engine died or did not answer.
            RolloutError: engine or tool infrastructure failed; the episode must not be trained on.
            FailedTryError: the environment failed.
        """
        episode = Episode(
            episode_id=request.trajectory_id, prompt_id=request.prompt.prompt_id, extra=request.prompt.extra
        )
        if self._environment is None:
            return await self._run(request, engine, episode)
        try:
            return await self._run(request, engine, episode)
        finally:
            await self._environment.end(episode)

    async def _run(self, request: EpisodeRequest, engine: Engine, episode: Episode) -> Trajectory:
        laps = TimeLaps()
        deadline = Deadline.after(self._rollout.trajectory_timeout_s)
        prompt_ids = await self._in_thread(self._tokens.prompt, request.prompt.messages)
        builder = TrajectoryBuilder(prompt_ids, self._rollout.max_response_tokens)
        if self._environment is not None:
            builder = await self._opened(self._environment, builder, episode, request.prompt)
        termination = None
        while termination is None:
            laps.end("tokenise_s")
            completion = await self._sample(request, builder, engine, deadline)
            sampled = laps.end("generate_s", queue="engine_queue_s", queue_s=completion.queue_s)
            builder.add_completion(completion)
            text, calls, is_open = await self._off_loop(
                len(completion.token_ids), self._read, completion, f"{len(builder.turns)}"
            )
            termination = self._ends(completion, calls, builder, deadline)
            laps.end("tokenise_s")
            results = () if termination else await self._tools.execute(calls, episode, deadline=deadline)
            builder.turns.append(Turn(text=text, calls=calls, results=results, sampled=sampled))
            if self._environment is not None and not calls and termination is None:
                termination = await self._ask(self._environment, builder, episode, request.prompt, deadline)
            answered = laps.end("tool_s", queue="judge_queue_s", queue_s=_queue_s(results))
            if results or builder.turns[-1].observation is not None:
                builder.turns[-1] = replace(builder.turns[-1], answered=answered)
            if termination is None:
                termination = await self._observe(builder, is_open=is_open)
        laps.end("tokenise_s")
        return builder.build(
            trajectory_id=request.trajectory_id,
            prompt=request.prompt,
            sample_index=request.sample_index,
            termination=termination,
            times=laps.split,
        )

    async def _sample(
        self, request: EpisodeRequest, builder: TrajectoryBuilder, engine: Engine, deadline: Deadline
    ) -> Completion:
        turn, own_temperature = len(builder.turns), self._validation.temperature
        params = SamplingParams(
            max_tokens=builder.remaining_tokens,
            stop=self._stop,
            temperature=self._rollout.temperature if own_temperature is None else own_temperature,
            top_p=self._validation.top_p,
            top_k=self._validation.top_k,
            seed=turn_seed(request.seed, turn),
            stop_token_ids=self._tokens.stop_ids,
        )
        return await sample_turn(
            engine,
            builder.token_ids,
            params,
            request_id=f"{request.trajectory_id}-{turn}",
            turn_timeout_s=self._rollout.turn_timeout_s,
            deadline=deadline,
            is_first=turn == 0,
        )

    def _read(self, completion: Completion, turn: str) -> tuple[str, tuple[ToolCall, ...], bool]:
        """Return a turn's text, its calls, and True if a stop string ended it (then its turn end was not sampled)."""
        text = self._tokens.decode(completion.token_ids)
        end = end_of_stop(text, self._stop)
        text = text[:end]  # the token that completed the stop string may contain more
        calls = self._tokens.calls(text, id_prefix=turn)
        return text, calls, end is not None

    def _ends(
        self, completion: Completion, calls: Sequence[ToolCall], builder: TrajectoryBuilder, deadline: Deadline
    ) -> Termination | None:
        if completion.finish_reason is FinishReason.ABORT or deadline.expired:
            return Termination.TIMEOUT
        if completion.finish_reason is FinishReason.LENGTH:
            return Termination.MAX_RESPONSE_TOKENS
        if not calls:
            return Termination.ANSWERED if self._environment is None else None
        if len(builder.turns) + 1 >= self._rollout.max_turns:
            return Termination.MAX_TURNS
        return None

    async def _opened(
        self, environment: EnvironmentThread, builder: TrajectoryBuilder, episode: Episode, prompt: Prompt
    ) -> TrajectoryBuilder:
        """Begin the episode in the environment, and return the builder with the text that this gave.

        Trajectories of a prompt share its ids; the text, which may differ between them, is an observation.
        """
        with failing_as(FailureClass.ENVIRONMENT, FailureClass.ENVIRONMENT_DATA):
            text = await environment.begin(episode, prompt)
            if text is None:
                return builder
            text, _ = self._tokens.cut(text, self._rollout.max_tool_response_tokens)
            shared, ids = await self._in_thread(self._tokens.opened_prompt, prompt.messages, text)
            builder = TrajectoryBuilder(shared, self._rollout.max_response_tokens)
            if len(ids) > builder.remaining_tokens - _MIN_ANSWER_TOKENS:
                raise DataError(
                    f"environment: `begin` gave {len(ids)} tokens, which leave no room for an answer in "
                    f"`rollout.max_response_tokens` ({self._rollout.max_response_tokens}). Raise it"
                )
            builder.add_observation(ids)
            return builder

    async def _ask(
        self,
        environment: EnvironmentThread,
        builder: TrajectoryBuilder,
        episode: Episode,
        prompt: Prompt,
        deadline: Deadline,
    ) -> Termination | None:
        """Have the environment answer the last turn, and record the answer with the turn."""
        with failing_as(FailureClass.ENVIRONMENT, FailureClass.ENVIRONMENT_DATA):
            observation = await environment.observe(episode, prompt, tuple(builder.turns), deadline=deadline)
        if observation is None:
            return Termination.TIMEOUT
        builder.turns[-1] = replace(
            builder.turns[-1], observation=observation.text, environment_reward=observation.reward
        )
        if observation.done:
            return Termination.ANSWERED
        return Termination.MAX_TURNS if len(builder.turns) >= self._rollout.max_turns else None

    async def _observe(self, builder: TrajectoryBuilder, *, is_open: bool) -> Termination | None:
        """Append the answers to the last turn, cut so that the policy has room to go on; end the episode if there is no room.

        If the policy did not sample the turn's end (`is_open`), it is added first, as a token that is not trained on.
        """
        turn, ends = builder.turns[-1], self._tokens.turn_ends
        end_id = (ends.call if turn.calls else ends.answer).token_id
        turn_end = [end_id] if is_open and end_id is not None else []
        room = builder.remaining_tokens - _MIN_ANSWER_TOKENS - len(turn_end)
        texts = _answers(turn)
        cap = min(self._rollout.max_tool_response_tokens, room // len(texts))
        size = sum(map(len, texts))
        observation, cuts = await self._off_loop(size, self._encode_answers, turn, max(0, cap))
        excess = len(observation) - room
        if excess > 0 and cap > 0:
            # The template's own tokens and the mark of the cut come on top of the text: cut again by the excess.
            observation, cuts = await self._off_loop(size, self._encode_answers, turn, max(0, cap - excess))
        if len(observation) > room:
            return Termination.MAX_RESPONSE_TOKENS
        builder.add_observation(turn_end + observation)
        if turn.results and any(cuts):
            marked = tuple(replace(r, truncated=r.truncated or cut) for r, cut in zip(turn.results, cuts, strict=True))
            builder.turns[-1] = replace(turn, results=marked)
        return None

    def _encode_answers(self, turn: Turn, max_tokens: int) -> tuple[list[int], list[bool]]:
        role = "tool" if turn.calls else "user"
        cut = [self._tokens.cut(text, max_tokens) for text in _answers(turn)]
        messages: list[Message] = [{"role": role, "content": text} for text, _ in cut]
        names = [call.name for call in turn.calls]
        return self._tokens.observation(messages, names=names), [was_cut for _, was_cut in cut]

    async def _off_loop(self, size: int, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call `function` in a thread if the text is long; `size` is its length in tokens or characters."""
        return function(*arguments) if size <= _MAX_ON_LOOP else await self._in_thread(function, *arguments)

    async def _in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _answers(turn: Turn) -> list[str]:
    """Return the texts that answer a turn: of its tools, or of the environment."""
    return [result.text for result in turn.results] if turn.calls else [turn.observation or ""]


def _queue_s(results: Sequence[ToolResult]) -> float:
    """Return the queue time of the turn's longest call."""
    return max(results, key=lambda result: result.wall_time_s).queue_s if results else 0.0
