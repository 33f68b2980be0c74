import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from agentrl.errors import ConfigError, DataError, JudgeUnavailableError, ToolError, UnexplainedError
from agentrl.run.preflight.sample_arguments import sample_arguments
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.executor import ToolExecutor
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus

EPISODE = Episode(episode_id="e", prompt_id="p")
Answer = Callable[[dict[str, Any], Deadline], Awaitable[Any]]


class TestTool:
    """A tool whose `call` is the function it is given."""

    __test__ = False

    def __init__(self, answer: Answer, parameters: dict[str, Any] | None = None, name: str = "tool") -> None:
        self.answer = answer
        self.schema = ToolSchema(name=name, description="", parameters=parameters or {"type": "object"})
        self.events: list[str] = []
        self.was_cancelled = threading.Event()

    async def start(self) -> None:
        self.events.append("start")

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        try:
            return await self.answer(arguments, deadline)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise

    async def end_episode(self, episode: Episode) -> None:
        self.events.append(f"end {episode.episode_id}")

    async def aclose(self) -> None:
        self.events.append("close")


def ok(text: str) -> ToolResult:
    return ToolResult(status=ToolStatus.OK, text=text)


async def sleep_and_tell(arguments: dict[str, Any], _: Deadline) -> ToolResult:
    await asyncio.sleep(arguments["seconds"])
    return ok(str(arguments["seconds"]))


async def sleep_for_ever(_: dict[str, Any], __: Deadline) -> ToolResult:
    await asyncio.sleep(600)
    return ok("late")


MADE: list[ToolExecutor] = []


def executor(*tools: TestTool, timeout_s: float = 60.0) -> ToolExecutor:
    by_name = {tool.schema.name: tool for tool in tools}
    MADE.append(ToolExecutor(by_name, timeout_s=timeout_s))
    return MADE[-1]


@pytest.fixture(autouse=True)
async def close_executors() -> AsyncIterator[None]:
    """Their threads would go on beside all later tests."""
    yield
    while MADE:
        await MADE.pop().aclose()


def call(call_id: str = "c", name: str = "tool", parse_error: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(call_id=call_id, name=name, arguments=arguments, parse_error=parse_error)


async def one(executor_: ToolExecutor, call_: ToolCall, seconds: float = 60.0) -> ToolResult:
    (result,) = await executor_.execute([call_], EPISODE, deadline=Deadline.after(seconds))
    return result


async def test_calls_run_at_once_and_are_answered_in_the_order_of_the_calls() -> None:
    everybody = asyncio.Barrier(4)

    async def meet_and_sleep(arguments: dict[str, Any], deadline: Deadline) -> ToolResult:
        await everybody.wait()
        return await sleep_and_tell(arguments, deadline)

    calls = [call(str(i), seconds=seconds) for i, seconds in enumerate([0.3, 0.1, 0.2, 0.1])]
    tools = executor(TestTool(meet_and_sleep), timeout_s=60)
    results = await tools.execute(calls, EPISODE, deadline=Deadline.after(60))
    assert [result.text for result in results] == ["0.3", "0.1", "0.2", "0.1"]
    for result in results:
        assert result.wall_time_s >= float(result.text) - 0.01


async def test_calls_beyond_those_of_a_turn_are_not_run_and_say_so() -> None:
    ran: list[int] = []

    async def note(arguments: dict[str, Any], _: Deadline) -> ToolResult:
        ran.append(arguments["number"])
        return ok("done")

    calls = [ToolCall(call_id=str(number), name="tool", arguments={"number": number}) for number in range(300)]
    results = await executor(TestTool(note)).execute(calls, EPISODE, deadline=Deadline.after(60))
    assert len(results) == 300
    assert sorted(ran) == list(range(16))
    assert {result.status for result in results[:16]} == {ToolStatus.OK}
    assert {result.status for result in results[16:]} == {ToolStatus.TOO_MANY_CALLS}
    assert results[-1].text == "failure: not run: only the first 16 calls of a turn are"


async def test_a_call_that_does_not_parse_is_answered_with_the_reason() -> None:
    result = await one(executor(TestTool(sleep_and_tell)), call(parse_error="the tool call is not valid JSON: line 1"))
    assert result.status is ToolStatus.UNPARSABLE
    assert result.text == "failure: the tool call is not valid JSON: line 1"


async def test_an_unknown_tool_is_answered_with_the_names_of_the_tools() -> None:
    result = await one(executor(TestTool(sleep_and_tell)), call(name="toool"))
    assert result.status is ToolStatus.UNKNOWN_TOOL
    assert result.text == "failure: unknown tool `toool`; tools: `tool`"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "failure: invalid arguments: 'code' is a required property"),
        ({"code": 3}, "failure: invalid arguments: `code`: 3 is not of type 'string'"),
        ({"code": "x", "list": [1, "a"]}, "failure: invalid arguments: `list.1`: 'a' is not of type 'integer'"),
    ],
)
async def test_wrong_arguments_are_answered_with_the_argument_and_the_reason(
    arguments: dict[str, Any], text: str
) -> None:
    parameters = {
        "type": "object",
        "properties": {"code": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}},
        "required": ["code"],
    }
    result = await one(executor(TestTool(sleep_and_tell, parameters)), call(**arguments))
    assert result.status is ToolStatus.INVALID_ARGUMENTS
    assert result.text == text


async def test_a_reason_that_quotes_a_huge_argument_is_cut() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    result = await one(executor(TestTool(sleep_and_tell, parameters)), call(n="x" * 100_000))
    assert len(result.text) < 400


async def test_a_tool_that_does_not_answer_in_time_is_a_timeout_and_is_cancelled() -> None:
    tool = TestTool(sleep_for_ever)
    async with asyncio.timeout(60):
        result = await one(executor(tool, timeout_s=0.2), call(), seconds=600)
        assert result.status is ToolStatus.TIMEOUT
        assert result.text == "failure: no answer in 0.2 s"
    assert await asyncio.to_thread(tool.was_cancelled.wait, 60)


async def test_the_deadline_of_the_trajectory_bounds_the_call_and_reaches_the_tool() -> None:
    async def tell(_: dict[str, Any], deadline: Deadline) -> ToolResult:
        return ok(f"{deadline.remaining_s():.0f}")

    assert 250 < float((await one(executor(TestTool(tell), timeout_s=300), call(), seconds=1000)).text) <= 300
    assert 150 < float((await one(executor(TestTool(tell), timeout_s=300), call(), seconds=200)).text) <= 200


async def test_a_tool_that_ignores_cancellation_delays_no_other_call() -> None:
    async def stubborn(_: dict[str, Any], __: Deadline) -> ToolResult:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return ok("late")

    released = threading.Event()
    tools = executor(TestTool(stubborn), timeout_s=0.1)
    try:
        async with asyncio.timeout(60):
            assert (await one(tools, call(), seconds=600)).status is ToolStatus.TIMEOUT
            await tools.aclose()
    finally:
        released.set()


async def test_an_infrastructure_failure_passes_through_untouched_and_ends_the_calls_beside_it() -> None:
    failure = JudgeUnavailableError("judge: gone")

    async def broken(_: dict[str, Any], __: Deadline) -> ToolResult:
        raise failure

    beside = TestTool(sleep_for_ever, name="beside")
    tools = executor(TestTool(broken), beside)
    with pytest.raises(JudgeUnavailableError) as caught:
        await tools.execute([call("a", "beside"), call("b")], EPISODE, deadline=Deadline.after(30))
    assert caught.value is failure
    assert await asyncio.to_thread(beside.was_cancelled.wait, 60)


async def test_an_unexplained_exception_of_a_tool_is_the_datas_and_says_where_it_was_raised() -> None:
    async def buggy(_: dict[str, Any], __: Deadline) -> ToolResult:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(
        UnexplainedError, match=r"tool `tool` raised ZeroDivisionError at .*: division by zero"
    ) as caught:
        await one(executor(TestTool(buggy)), call())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    line = buggy.__code__.co_firstlineno + 1
    assert caught.value.cause == f"ZeroDivisionError at test_tool_executor.py:{line}"


async def test_a_tool_may_refuse_what_the_prompt_brings() -> None:
    async def picky(_: dict[str, Any], __: Deadline) -> ToolResult:
        raise DataError("prompt `p` has no `database`")

    with pytest.raises(DataError, match=r"^prompt `p` has no `database`$") as caught:
        await one(executor(TestTool(picky)), call())
    assert not isinstance(caught.value, UnexplainedError)


async def test_a_tool_that_answers_with_something_else_breaks_its_contract_and_stops_the_run() -> None:
    async def text_only(_: dict[str, Any], __: Deadline) -> Any:
        return "hello"

    with pytest.raises(ToolError, match="`call` returned a `str`"):
        await one(executor(TestTool(text_only)), call())


async def test_text_that_cannot_be_tokenised_never_leaves() -> None:
    async def half_a_character(_: dict[str, Any], __: Deadline) -> ToolResult:
        return ok("a\ud800b")

    assert (await one(executor(TestTool(half_a_character)), call())).text == "a?b"
    assert (await one(executor(TestTool(half_a_character)), call(name="\ud800"))).text.startswith(
        "failure: unknown tool `?`"
    )


async def test_cancelling_the_episode_cancels_its_calls() -> None:
    tool = TestTool(sleep_for_ever)
    episode = asyncio.create_task(one(executor(tool), call()))
    await asyncio.sleep(0.05)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert await asyncio.to_thread(tool.was_cancelled.wait, 60)


async def test_tools_are_started_notified_of_the_end_and_closed() -> None:
    tool = TestTool(sleep_and_tell)
    tools = executor(tool)
    await tools.start()
    await tools.end_episode(EPISODE)
    await tools.aclose()
    assert tool.events == ["start", "end e", "close"]


async def test_a_tool_that_cannot_start_closes_those_that_did() -> None:
    class Broken(TestTool):
        async def start(self) -> None:
            raise ToolError("tool: no key")

    good, bad = TestTool(sleep_and_tell, name="good"), Broken(sleep_and_tell, name="bad")
    with pytest.raises(ToolError, match="no key"):
        await executor(good, bad).start()
    assert good.events == ["start", "close"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"parameters": {"type": "objekt"}}, "its parameters are no JSON schema"),
        ({"parameters": [{"word": "string"}]}, "its parameters are no JSON schema"),
        ({"name": ""}, r"tool '': its name must be 1 to 64 letters"),
        ({"name": "look up"}, r"tool 'look up': its name must be"),
        ({"name": "a\n</tool_call>"}, r"its name must be"),
        ({"name": "x" * 65}, r"its name must be"),
    ],
)
def test_a_schema_by_which_nothing_could_be_called_is_refused(schema: dict[str, Any], message: str) -> None:
    tool = TestTool(sleep_and_tell)
    known = {"name": "tool", "description": "", "parameters": {"type": "object"}}
    tool.schema = ToolSchema(**(known | schema))
    with pytest.raises(ToolError, match=message):
        executor(tool)


@pytest.mark.parametrize("ref", ["#/$defs/a", "http://127.0.0.1:9/schema"])
async def test_a_reference_of_a_schema_that_leads_nowhere_is_refused_at_the_first_call(ref: str) -> None:
    tools = executor(TestTool(sleep_and_tell, {"properties": {"a": {"$ref": ref}}}))
    with pytest.raises(ToolError, match="put what a `\\$ref` names into the `\\$defs`"):
        await one(tools, call(a=1))


@pytest.mark.parametrize(
    ("node", "sample"),
    [
        ({"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}, {"kids": []}),
        (
            {"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "properties": {"a": {"$ref": "#/$defs/n"}}},
            {"a": "1"},
        ),
        ({"properties": {"$ref": {"type": "string"}}}, {"$ref": "1"}),
        ({"properties": {"a": {"type": "array", "minItems": 10**9}}}, None),
        ({"properties": {"a": {"type": "string", "minLength": 10**9}}}, None),
    ],
)
def test_a_schema_may_refer_to_itself_and_its_sample_stays_small(node: dict[str, Any], sample: object) -> None:
    tool = TestTool(sleep_and_tell)
    tool.schema = ToolSchema(name="tool", description="", parameters=node)
    executor(tool)
    assert sample_arguments(tool.schema) == sample


class FailingStart(TestTool):
    """A tool whose `start` raises what it is given."""

    __test__ = False

    def __init__(self, error: Exception) -> None:
        super().__init__(sleep_for_ever, name="failing")
        self.error = error

    async def start(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no\nGPU"), OSError("no GPU"), ImportError("no GPU")])
async def test_a_start_that_raises_the_unexpected_is_a_tool_error_that_names_the_tool(error: Exception) -> None:
    first = TestTool(sleep_and_tell, name="first")
    match = rf"tool `failing`: cannot be started: {type(error).__name__} at test_tool_executor\.py:\d+: no GPU"
    with pytest.raises(ToolError, match=match) as caught:
        await executor(first, FailingStart(error)).start()
    assert caught.value.__cause__ is error
    assert first.events == ["start", "close"]


@pytest.mark.parametrize("error", [ConfigError("c"), ToolError("t"), JudgeUnavailableError("j")])
async def test_a_start_that_explains_itself_passes_through(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        await executor(FailingStart(error)).start()
    assert caught.value is error
