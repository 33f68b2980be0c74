"""The tokens of an agent's dialogues: rows, each of which grows by observations and completions."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, TypeVarTuple

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.gateway.history import Entry, ForkReason, Match, match
from agentrl.agent_loop.gateway.protocols.base import AgentCall, RequestError
from agentrl.agent_loop.trajectory_builder import TrajectoryBuilder
from agentrl.config.schema.agent_loop import AgentSection
from agentrl.errors import ConfigError
from agentrl.types import Completion, Message, Trajectory
from agentrl.user_code import described

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MAX_TEMPLATES = 64
"""Sets of tools whose templates are kept."""
_MAX_ON_LOOP = 2048
"""Characters to encode on the event loop; so few cost less than the switch to a thread."""


class ToolTemplates:
    """The policy's chat template with the tools of each call, kept by content."""

    def __init__(self, tokens: ChatTokens, threads: Executor) -> None:
        """Take the template without tools, and the threads in which others are built."""
        self._threads = threads
        self._kept: OrderedDict[str, asyncio.Task[ChatTokens]] = OrderedDict()
        self._plain = tokens

    async def of(self, tools: Sequence[dict[str, Any]]) -> ChatTokens:
        """Return the template with these tools.

        Raises:
            RequestError: it cannot show them, or its calls cannot be read.
        """
        if not tools:
            return self._plain
        key = json.dumps(tools, sort_keys=True)
        if key not in self._kept:
            self._kept[key] = asyncio.create_task(self.in_thread(self._plain.with_tools, list(tools)))
        self._kept.move_to_end(key)
        if len(self._kept) > _MAX_TEMPLATES:
            self._kept.popitem(last=False)
        try:
            return await asyncio.shield(self._kept[key])
        except ConfigError as error:
            raise RequestError(f"`tools`: {error}", field="tools") from error
        except Exception as error:  # the template or the tokenizer refuses a text in them
            raise RequestError(f"`tools`: they cannot be shown: {described(error)}", field="tools") from error

    async def off_loop(self, size: int, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call `function` in a thread if it is about many characters."""
        return function(*arguments) if size <= _MAX_ON_LOOP else await self.in_thread(function, *arguments)

    async def in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call `function` in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEnd:
    """A place in a row behind a turn of the policy."""

    num_tokens: int
    turn: int
    """Number of the turn in the session."""
    open_end: int | None
    """Token that ends the turn, if the policy did not sample it."""


@dataclass(slots=True, kw_only=True)
class Row:
    """Tokens of one dialogue; every sampled token of a session is in exactly one row, with mask 1."""

    tokens: ChatTokens
    builder: TrajectoryBuilder
    text: str = ""
    """Its text as the agent of plain completions knows it: without the tokens that end turns; empty for a chat."""
    entries: list[Entry] = field(default_factory=list)
    ends: dict[int, RowEnd] = field(default_factory=dict)
    """Ends of the policy's turns, keyed by the number of entries up to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Begin of a further row."""

    reason: ForkReason
    message: int
    """Index of the first message that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Tokens from which one call is answered; nothing is stored before the answer is whole."""

    tokens: ChatTokens
    token_ids: list[int]
    text: str = ""
    """Prompt of plain completions."""
    row: Row | None = None
    """Row that is continued; None: a new one begins."""
    fork: Fork | None = None
    answers: RowEnd | None = None
    """Turn of the policy to which the call's last messages are the answer."""
    kept: Sequence[Entry] = ()
    """Entries up to that turn, as they are stored."""
    new_messages: Sequence[Message] = ()
    """Messages behind it."""
    ends: Mapping[int, RowEnd] = field(default_factory=dict)
    """Ends of the policy's turns in the tokens of another row with which a new one begins."""


class DialogueRows:
    """The rows of one session."""

    def __init__(self, agent: AgentSection, templates: ToolTemplates) -> None:
        """Take how rows are continued, and the templates."""
        self._agent = agent
        self._templates = templates
        self.rows: list[Row] = []

    def num_tokens_with(self, start: Start) -> int:
        """Return the tokens of all rows once `start` is one of them."""
        return len(start.token_ids) + sum(len(row.builder.token_ids) for row in self.rows if row is not start.row)

    async def start(self, call: AgentCall) -> Start:
        """Return the tokens of a call: those of a row and what the agent added, or a new rendering.

        Raises:
            RequestError: the template cannot render the messages.
        """
        tools = list(call.tools)
        kept = next((row.tokens for row in self.rows if row.tokens.tools == tools), None)
        tokens = kept or await self._templates.of(tools)
        if call.prompt is not None:
            return self._of_text(call.prompt, tokens)
        alike = [row for row in self.rows if row.tokens is tokens and row.entries]
        if not alike:
            fork = Fork(reason=ForkReason.TOOLS, message=0) if self.rows else None
            return await self._rendered(call, tokens, fork)
        matches = [
            (match(row.entries, row.ends, call.messages, by_id=self._agent.continue_by_id), row)
            for row in reversed(alike)
        ]
        found, row = max(matches, key=lambda pair: (pair[0].reason is None, pair[0].num_kept, pair[0].num_equal))
        if self._agent.rows == "independent":
            fork = Fork(reason=ForkReason.INDEPENDENT, message=found.num_equal)
            start = await self._rendered(call, tokens, fork)
        elif self._agent.history == "exact":
            start = await self._exact(call, tokens, alike, found)
        else:
            start = await self._continued(call, tokens, row, found)
        if not found.num_kept:
            return start
        return replace(
            start,
            answers=row.ends[found.num_kept],
            kept=row.entries[: found.num_kept],
            new_messages=call.messages[found.num_kept :],
        )

    def commit(self, start: Start, completion: Completion, entries: list[Entry], *, turn: int, has_calls: bool) -> None:
        """Store an answer; `entries` are the messages of the call and the policy's turn.

        Raises:
            EngineError: the reply cannot be trained on; see `TrajectoryBuilder.add_completion`.
        """
        row = start.row
        if row is None:
            row = Row(tokens=start.tokens, builder=TrajectoryBuilder(start.token_ids, 0), ends=dict(start.ends))
        else:
            row.builder.add_observation(start.token_ids[len(row.builder.token_ids) :])
        row.builder.add_completion(completion)
        if start.row is None:
            self.rows.append(row)
        if start.text:
            row.text = start.text + start.tokens.decode(completion.token_ids)
        ends = start.tokens.turn_ends
        end_id = (ends.call if has_calls else ends.answer).token_id
        is_open = not completion.token_ids or completion.token_ids[-1] not in start.tokens.stop_ids
        row.entries = entries
        row.ends[len(entries)] = RowEnd(
            num_tokens=len(row.builder.token_ids), turn=turn, open_end=end_id if is_open else None
        )

    async def _continued(self, call: AgentCall, tokens: ChatTokens, row: Row, found: Match) -> Start:
        """Return stored tokens and those of the new messages; a new rendering if nothing is stored up to there."""
        fork = None
        if found.reason is not None:
            fork = Fork(reason=found.reason, message=found.num_equal)
        ids = await self._observed(row, found, call, tokens) if found.num_kept else None
        if ids is not None and fork is None:
            return Start(tokens=tokens, token_ids=ids, row=row)
        if ids is not None:
            ends = {number: end for number, end in row.ends.items() if number <= found.num_kept}
            return Start(tokens=tokens, token_ids=ids, fork=fork, ends=ends)
        fork = fork or Fork(reason=ForkReason.TEMPLATE, message=found.num_equal)
        return await self._rendered(call, tokens, fork)

    async def _observed(self, row: Row, found: Match, call: AgentCall, tokens: ChatTokens) -> list[int] | None:
        """Return the tokens up to a stored turn and those of the messages behind it; None if they cannot be appended."""
        end, messages = row.ends[found.num_kept], call.messages[found.num_kept :]
        is_result = [message["role"] == "tool" for message in messages]
        if is_result != sorted(is_result, reverse=True):
            return None
        names = [str(message.get("name", "")) for message in messages if message["role"] == "tool"]
        size = sum(len(str(message.get("content"))) for message in messages)
        try:
            observation = await self._templates.off_loop(size, lambda: tokens.observation(messages, names=names))
        except Exception:  # noqa: BLE001 - a template is a program, and may raise any exception for messages that it does not expect
            return None
        ids = row.builder.token_ids[: end.num_tokens]
        if end.open_end is not None:
            ids.append(end.open_end)
        ids += observation  # in place: a copy visits each token of the dialogue
        return ids

    async def _exact(self, call: AgentCall, tokens: ChatTokens, alike: Sequence[Row], found: Match) -> Start:
        """Return the template's rendering, which continues a row only if it begins with the row's tokens."""
        rendered = await self._rendered(call, tokens, None)
        for row in reversed(alike):
            stored = row.builder.token_ids
            if len(rendered.token_ids) > len(stored) and rendered.token_ids[: len(stored)] == stored:
                return replace(rendered, row=row)
        return replace(rendered, fork=Fork(reason=found.reason or ForkReason.TEMPLATE, message=found.num_equal))

    async def _rendered(self, call: AgentCall, tokens: ChatTokens, fork: Fork | None) -> Start:
        size = sum(len(str(message.get("content"))) for message in call.messages)

        def render() -> list[int]:
            # A literal of a token in a tool's output must not forge a turn here, either.
            messages = [
                message | {"content": tokens.cut(message["content"], len(message["content"]) * 8)[0]}
                if message["role"] == "tool"
                else message
                for message in call.messages
            ]
            return tokens.prompt(messages)

        try:
            ids = await self._templates.off_loop(size, render)
        except Exception as error:
            raise RequestError(
                f"`messages`: the chat template cannot render them: {described(error)}", field="messages"
            ) from error
        return Start(tokens=tokens, token_ids=ids, fork=fork)

    def _of_text(self, prompt: str, tokens: ChatTokens) -> Start:
        """Return the tokens of a text to continue: a row's own where the text begins with it."""
        is_merged = self._agent.rows == "merged"
        row = next((row for row in reversed(self.rows) if is_merged and row.text and prompt.startswith(row.text)), None)
        try:
            ids = tokens.encode_text(prompt[len(row.text) :] if row else prompt)
        except Exception as error:
            raise RequestError(f"`prompt`: it cannot be encoded: {described(error)}", field="prompt") from error
        if row is not None:
            return Start(tokens=tokens, token_ids=row.builder.token_ids + ids, text=prompt, row=row)
        reason = ForkReason.EDITED if is_merged else ForkReason.INDEPENDENT
        fork = Fork(reason=reason, message=0) if self.rows else None
        return Start(tokens=tokens, token_ids=ids, text=prompt, fork=fork)


def joined(rows: Sequence[Row], trajectory: Trajectory) -> Trajectory:
    """Return `trajectory` with the tokens of all rows, one row behind the other; the row of the last turn is the last."""
    token_ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    spans: list[tuple[int, int]] = []
    starts: list[int] = []
    rows = sorted(rows, key=lambda row: max(end.turn for end in row.ends.values()))
    for row in rows:
        start, builder = len(token_ids), row.builder
        starts.append(start)
        spans += [(start + offset, version) for offset, version in builder.version_spans]
        token_ids += builder.token_ids
        mask += builder.response_mask
        logprobs += builder.rollout_logprobs
    return replace(
        trajectory,
        token_ids=token_ids,
        num_prompt_tokens=len(rows[0].builder.prompt_ids),
        response_mask=mask,
        rollout_logprobs=logprobs,
        version_spans=tuple(spans),
        row_starts=tuple(starts[1:]),
    )
