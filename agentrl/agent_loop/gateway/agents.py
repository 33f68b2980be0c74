"""Agents of users: a function in threads of its own, or a program in a process group of its own.

It does NOT stop a sync function at its deadline, since no thread can be stopped; its calls are refused from then on. It does
NOT end processes that a program moved into another group before the worker ends.
"""

import asyncio
import contextlib
import inspect
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentrl.config.class_path import import_by_path
from agentrl.config.schema.agent_loop import AgentSection
from agentrl.errors import ConfigError, RolloutError, UnexplainedError
from agentrl.guardian import Guardian
from agentrl.observability.logs import repeating
from agentrl.tools.tool_thread import ToolThread, result_of
from agentrl.types import Message
from agentrl.user_code import contained

logger = logging.getLogger(__name__)

_MAX_THREADS = 8192
"""Sync functions at once in one worker: more than there are trajectories, whose time would pass while they wait."""
_STDERR_BYTES = 4096
_TAIL_TIMEOUT_S = 1.0
_PROMPT = "{prompt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """One episode, as an agent gets it: the argument of a function, or JSON on the standard input of a program."""

    prompt: str
    """Text of the last message."""
    messages: list[Message]
    """The data set's prompt."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further columns of the data set; without the answer."""
    prompt_id: str
    session_url: str
    """Address of the session: `POST {session_url}/reward`, `/finish`."""
    api_key: str
    deadline_s: float
    """Seconds that the episode may take."""

    @property
    def base_url(self) -> str:
        """Address for SDKs of OpenAI; those of Anthropic take `session_url`."""
        return f"{self.session_url}/v1"

    def environment(self) -> dict[str, str]:
        """Return the variables that SDKs read."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.session_url,
            "ANTHROPIC_API_KEY": self.api_key,
            "AGENTRL_SESSION": self.session_url,
            "AGENTRL_DEADLINE": f"{self.deadline_s:.3f}",
        }


class Agent(Protocol):
    """Plays episodes by calling the policy; one per worker."""

    async def start(self) -> None:
        """Prepare for the first episode."""

    async def play(self, task: AgentTask) -> Any:
        """Play one episode; cancelling it ends the agent.

        Returns:
            A reward as `agentrl.rewards.score.read_score` takes it, or None.

        Raises:
            RolloutError: the agent was killed from outside.
            UnexplainedError: it failed.
        """

    async def aclose(self) -> None:
        """End what is left."""


def check_agent(section: AgentSection, folder: Path) -> None:
    """Find the function or the program; `folder` is that of the config, a copy of which programs run in.

    Raises:
        ConfigError: there is no such function, program or script.
    """
    agent_of(section)
    script = section.command[1] if len(section.command) > 1 and section.command[0].startswith("python") else ""
    if script.endswith(".py") and not (folder / script).is_file():
        raise ConfigError(
            f"`agent_loop.agent.command`: there is no file `{folder / script}`. Name one in the config's folder, or its whole "
            "path"
        )


def agent_of(section: AgentSection) -> Agent:
    """Return the agent of a config, not started yet.

    Raises:
        ConfigError: there is no such function or program.
    """
    return FunctionAgent(section.callable) if section.callable else ProgramAgent(section.command)


class FunctionAgent:
    """See `Agent`: an async function runs in one thread with all others, a sync one in a thread of its own."""

    def __init__(self, path: str) -> None:
        """Import the function."""
        key = "agent_loop.agent.callable"
        self._function: Any = import_by_path(path, key=key)
        if not callable(self._function):
            raise ConfigError(f"`{key}` is `{path}`, which cannot be called")
        try:
            inspect.signature(self._function).bind(None)
        except TypeError as error:
            raise ConfigError(f"`{key}` is `{path}`, which must take one argument, the task: {error}") from error
        self._path = path
        self._thread = ToolThread("the agents")
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="agent")
        self._in_threads: set[Future[Any]] = set()

    async def start(self) -> None:
        """See `Agent.start`."""
        for name in ("NO_PROXY", "no_proxy"):
            os.environ[name] = _without_proxy(name)

    async def play(self, task: AgentTask) -> Any:
        """See `Agent.play`."""
        call = self._thread.run(self._called(task))
        try:
            await asyncio.wait({call})
        finally:
            call.cancel()
        where = f"agent `{self._path}` of prompt `{task.prompt_id}`"
        if not call.cancelled() and isinstance(error := call.exception(), OSError):
            # It lacks a file, or a server of its own; as infrastructure it would be repeated with the same samples.
            raise UnexplainedError.of(where, error) from error
        return result_of(call, where)

    async def aclose(self) -> None:
        """See `Agent.aclose`."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._thread.close()

    async def _called(self, task: AgentTask) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(task)
        if len(self._in_threads) >= _MAX_THREADS:
            logger.warning(
                "agent `%s`: all %d threads of the worker are in use, an episode waits. Functions that outlive their deadline "
                "keep theirs; set timeouts in them, or make the agent async",
                self._path,
                _MAX_THREADS,
                extra=repeating("the threads of agents are in use"),
            )
        call = self._threads.submit(contained, self._function, task)
        self._in_threads.add(call)
        call.add_done_callback(self._in_threads.discard)
        returned = await asyncio.wrap_future(call)
        return await returned if inspect.isawaitable(returned) else returned


class ProgramAgent:
    """See `Agent`: each episode is a process, which is killed with its group when the episode ends, or the worker."""

    def __init__(self, command: list[str]) -> None:
        """Take program and arguments; `python` is the interpreter of the run."""
        self._command = [sys.executable, *command[1:]] if command[0] == "python" else command
        if shutil.which(self._command[0]) is None:
            raise ConfigError(
                f"`agent_loop.agent.command`: there is no program `{command[0]}`. Name one on `PATH`, or its whole path"
            )
        self._mark = secrets.token_hex(16)
        self._guardian: Guardian | None = None

    async def start(self) -> None:
        """See `Agent.start`."""
        folder = Path(tempfile.mkdtemp(prefix="agentrl-agents-"))
        self._guardian = await asyncio.to_thread(Guardian, mark=self._mark, temp_dir=folder)

    async def play(self, task: AgentTask) -> Any:
        """See `Agent.play`."""
        where = f"agent `{self._command[0]}` of prompt `{task.prompt_id}`"
        command = [task.prompt if part == _PROMPT else part for part in self._command]
        own = {"AGENTRL_AGENT_MARK": self._mark, "NO_PROXY": _without_proxy("NO_PROXY")}
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=os.environ | task.environment() | own | {"no_proxy": own["NO_PROXY"]},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # a prompt may be too long for an argument, or hold a NUL
            raise UnexplainedError(f"{where} cannot be started: {error}", cause=type(error).__name__) from error
        tail = _Tail(process.stderr)
        try:
            await _write(process.stdin, json.dumps(asdict(task) | {"base_url": task.base_url}, default=str).encode())
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            words = await tail.close()
        logger.debug("%s: exit status %d: %s", where, status, words)
        last = words.rpartition("\n")[2].strip() or "it wrote nothing to stderr"
        if status < 0:
            raise RolloutError(f"{where} was killed by {signal.Signals(-status).name}: {last}")
        if status > 0:
            raise UnexplainedError(f"{where} ended with status {status}: {last}", cause=f"status {status}: {last}")

    async def aclose(self) -> None:
        """See `Agent.aclose`."""
        if self._guardian is not None:
            await asyncio.to_thread(self._guardian.dismiss)


async def _write(pipe: asyncio.StreamWriter | None, data: bytes) -> None:
    assert pipe is not None, "a pipe"
    # A program need not read its input, and may have ended; for that uvloop raises a `RuntimeError`.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        pipe.write(data)
        await pipe.drain()
    pipe.close()


class _Tail:
    """The last bytes that a program wrote."""

    def __init__(self, pipe: asyncio.StreamReader | None) -> None:
        assert pipe is not None, "a pipe"
        self._kept = b""
        self._task = asyncio.create_task(self._read(pipe))

    async def close(self) -> str:
        """Return the text; a process that outlives its group may keep the pipe open."""
        await asyncio.wait({self._task}, timeout=_TAIL_TIMEOUT_S)
        self._task.cancel()
        return self._kept.decode("utf-8", "replace").strip()

    async def _read(self, pipe: asyncio.StreamReader) -> None:
        while part := await pipe.read(65536):
            self._kept = (self._kept + part)[-_STDERR_BYTES:]


def _without_proxy(name: str) -> str:
    """Return the hosts without a proxy, this one among them."""
    return ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
