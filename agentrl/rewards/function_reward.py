"""A plain Python function as a reward: `reward.function: my_module.my_function`.

The names of its parameters select the calling convention:

- agentrl: `fn(prompt, turns)`, as `Reward.score`; `deadline` is optional.
- verl: `fn(data_source, solution_str, ground_truth, extra_info)`. `solution_str` is the policy's text of all turns, without
  tool results, so that no tool output can be an answer; `extra_info` also has `num_turns` and `tool_rewards`.
- TRL: `fn(prompts, completions, **columns)`, lists of one trajectory: `completions` holds the messages of the policy and its
  tools. If the row's prompt is plain text, both are texts, and a completion is the policy's text of all turns. The columns are
  those of `prompt.extra`, and the answer under its own name and as `answer`. It returns a list of one number.

`reward.config` has the values of further parameters.
"""

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any

from agentrl.config.class_path import import_by_path
from agentrl.errors import ConfigError
from agentrl.rewards.tool_rewards import given_by_tools
from agentrl.types import Deadline, Message, Prompt, Turn
from agentrl.user_code import contained

_MAX_THREADS = 64
"""Concurrent calls of one sync function per worker."""


class CallStyle(StrEnum):
    """Calling convention of a reward function; the value is its signature, for messages."""

    AGENTRL = "fn(prompt, turns)"
    VERL = "fn(data_source, solution_str, ground_truth, extra_info)"
    TRL = "fn(prompts, completions, **columns)"


_PARAMETERS: dict[CallStyle, tuple[str, ...]] = {
    CallStyle.AGENTRL: ("prompt", "turns", "deadline"),
    CallStyle.VERL: ("data_source", "solution_str", "ground_truth", "extra_info"),
    CallStyle.TRL: ("prompts", "completions"),
}
_MARKS = {"turns": CallStyle.AGENTRL, "solution_str": CallStyle.VERL, "completions": CallStyle.TRL}
"""Parameter that identifies a style."""


class FunctionReward:
    """Calls a function for each trajectory; a sync function runs in threads."""

    def __init__(self, path: str, config: Mapping[str, Any], *, key: str) -> None:
        """Import the function; `config` has the values of further parameters, and `key` is the config key of `path`.

        Raises:
            ConfigError: no such function, or its parameters cannot be filled.
        """
        function: Any = import_by_path(path, key=key)
        if inspect.isclass(function) or not callable(function):
            raise ConfigError(f"`{key}` is `{path}`, which is no function; a class is named in `class_name`")
        self._function: Callable[..., Any] = function
        self._config = dict(config)
        signature = inspect.signature(function)
        self._parameters = signature.parameters
        styles = [style for mark, style in _MARKS.items() if mark in self._parameters]
        if len(styles) != 1:
            forms = " or ".join(f"`{style}`" for style in CallStyle)
            names = ", ".join(self._parameters)
            raise ConfigError(
                f"`{key}` is `{path}`: no known reward function has the parameters ({names}); write it as {forms}"
            )
        [self._style] = styles
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in self._parameters.values())
        given = [name for name in _PARAMETERS[self._style] if name in self._parameters]
        # Parameters of TRL's may also be columns of the data set, unknown here.
        bind = signature.bind_partial if self._style is CallStyle.TRL else signature.bind
        try:
            bind(**dict.fromkeys([*given, *config]))
        except TypeError as error:
            raise ConfigError(
                f"`{key}` is `{path}`: {error}; its `config` must have its other parameters only"
            ) from error
        self._is_async = inspect.iscoroutinefunction(function)
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="reward")

    async def start(self) -> None:
        """Do nothing: a function has no sessions."""

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> Any:
        """Return the function's result; see `agentrl.rewards.score.read_score`."""
        arguments = self._arguments(prompt, turns, deadline) | self._config
        if self._is_async:
            returned = await self._function(**arguments)
        else:
            returned = await asyncio.get_running_loop().run_in_executor(
                self._threads, contained, lambda: self._function(**arguments)
            )
        if inspect.isawaitable(returned):  # a decorator may hide that the function is async
            returned = await returned
        if self._style is CallStyle.TRL and isinstance(returned, Collection) and len(returned) == 1:
            return next(iter(returned))
        return returned

    async def aclose(self) -> None:
        """Shut the threads down."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _arguments(self, prompt: Prompt, turns: tuple[Turn, ...], deadline: Deadline) -> dict[str, Any]:
        match self._style:
            case CallStyle.AGENTRL:
                given = {"prompt": prompt, "turns": turns, "deadline": deadline}
            case CallStyle.VERL:
                given = _verl_arguments(prompt, turns)
            case CallStyle.TRL:
                given = _trl_arguments(prompt, turns)
        takes_all = self._takes_all and self._style is not CallStyle.AGENTRL
        return {name: value for name, value in given.items() if takes_all or name in self._parameters}


def _verl_arguments(prompt: Prompt, turns: Sequence[Turn]) -> dict[str, Any]:
    own = prompt.extra.get("extra_info")
    extra_info = dict(own) if isinstance(own, Mapping) else {}
    return {
        "data_source": prompt.extra.get("data_source"),
        "solution_str": _text(turns),
        "ground_truth": prompt.answer,
        "extra_info": {"num_turns": len(turns), "tool_rewards": given_by_tools(turns), **extra_info},
    }


def _trl_arguments(prompt: Prompt, turns: Sequence[Turn]) -> dict[str, Any]:
    columns = {"answer": prompt.answer, **prompt.extra}
    if prompt.answer_column.isidentifier():  # else a struct's field; the struct is in `extra`
        columns[prompt.answer_column] = prompt.answer
    given = {name: [value] for name, value in columns.items()}
    if prompt.is_text:
        return given | {"prompts": [prompt.messages[-1]["content"]], "completions": [_text(turns)]}
    return given | {"prompts": [prompt.messages], "completions": [_messages(turns)]}


def _text(turns: Sequence[Turn]) -> str:
    """Return the policy's text of all turns; tool output cannot be an answer."""
    return "\n".join(turn.text for turn in turns)


def _messages(turns: Sequence[Turn]) -> list[Message]:
    """Return an episode as messages of TRL: the policy's turns, and tool results and observations between them."""
    messages: list[Message] = []
    for turn in turns:
        messages.append({"role": "assistant", "content": turn.text})
        for call, result in zip(turn.calls, turn.results, strict=False):
            messages.append({"role": "tool", "name": call.name, "content": result.text})
        if turn.observation is not None:
            messages.append({"role": "user", "content": turn.observation})
    return messages
