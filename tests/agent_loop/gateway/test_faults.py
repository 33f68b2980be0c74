"""Faults of agents, of their requests and of the time: what the trajectory says of them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from agentrl.agent_loop.gateway import agents, rows
from agentrl.agent_loop.gateway.agents import AgentTask, FunctionAgent, ProgramAgent, check_agent
from agentrl.agent_loop.gateway.exactness import DropReason
from agentrl.config.schema.agent_loop import AgentSection
from agentrl.errors import ConfigError, DataError, RolloutError, UnexplainedError
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Completion, FinishReason, Termination
from tests.agent_loop.gateway.gateway_stage import TOOL, USER, Calls, GatewayStage, rows_of
from tests.fakes import ScriptedEngine

HERE = "tests.agent_loop.gateway.test_faults"
TASK = AgentTask(
    prompt="p", messages=[USER], prompt_id="p0", session_url="http://127.0.0.1:1/s/k", api_key="k", deadline_s=5
)


def lacks_a_file(task: AgentTask) -> None:
    """Fail as many agents do."""
    Path("no-such-file").read_text()


def waits(task: AgentTask) -> None:
    """Return late."""
    time.sleep(0.2)


async def two_calls(calls: Calls) -> None:
    """Call twice, and take what comes."""
    await calls.chat([USER])
    await calls.post("/v1/chat/completions", {"model": "m", "messages": [USER]})


class LateEngine(ScriptedEngine):
    """Answers the second call at the deadline, or a little later."""

    def __init__(self, stage: GatewayStage, *, late_s: float, reason: FinishReason) -> None:
        super().__init__([])
        self._answer = stage.ids("42")
        self._late_s, self._finish = late_s, reason

    async def generate(self, *arguments: Any, deadline: Any, **options: Any) -> Completion:
        self.num_calls = getattr(self, "num_calls", 0) + 1
        if self.num_calls == 1:
            return self._completion(self._answer, FinishReason.STOP)
        await asyncio.sleep(deadline.remaining_s() + self._late_s)
        ids = self._answer if self._finish is FinishReason.STOP else self._answer[:1]
        return self._completion(ids, self._finish)


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.STOP])
async def test_a_call_in_flight_at_the_deadline_leaves_the_episode_out_of_time(
    stage: GatewayStage, reason: FinishReason
):
    engine = LateEngine(stage, late_s=0.02, reason=reason)
    trajectory = await stage.play(two_calls, engine, trajectory_timeout_s=0.3)
    assert trajectory.termination is Termination.TIMEOUT
    assert len(trajectory.turns) == 2


async def test_an_agent_without_a_call_at_its_deadline_is_no_fault_of_the_data(stage: GatewayStage):
    async def idles(calls: Calls) -> None:
        await asyncio.sleep(5)

    with pytest.raises(RolloutError, match="no call before its deadline"):
        await stage.play(idles, ScriptedEngine([]), trajectory_timeout_s=0.1)


async def test_an_agent_that_is_killed_after_a_refusal_is_an_infrastructure_failure(stage: GatewayStage):
    async def play(calls: Calls) -> None:
        await two_calls(calls)
        raise RolloutError("agent was killed by SIGKILL")

    with pytest.raises(RolloutError, match="SIGKILL"):
        await stage.play(play, ScriptedEngine([stage.ids("42")]), max_turns=1)


async def test_a_missing_file_of_a_function_is_a_fault_of_the_agent_with_its_line():
    agent = FunctionAgent(f"{HERE}.lacks_a_file")
    try:
        with pytest.raises(UnexplainedError, match=r"FileNotFoundError at test_faults\.py:") as caught:
            await agent.play(TASK)
        assert caught.value.cause.startswith("FileNotFoundError at test_faults.py:")
    finally:
        await agent.aclose()


async def test_functions_that_wait_for_a_thread_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(agents, "_MAX_THREADS", 1)
    agent = FunctionAgent(f"{HERE}.waits")
    try:
        await asyncio.gather(agent.play(TASK), agent.play(TASK))
    finally:
        await agent.aclose()
    assert [record.message for record in caplog.records if "threads of the worker are in use" in record.message]


async def test_a_prompt_that_no_program_can_take_as_an_argument_is_a_data_error():
    agent = ProgramAgent(["true", "{prompt}"])
    with pytest.raises(DataError, match="cannot be started"):
        await agent.play(replace(TASK, prompt="a\0b"))


@pytest.mark.parametrize("args", [["no_such_file.py"], ["-c", "import no_such_module"]])
async def test_a_program_that_ends_before_it_reads_its_task_is_named_with_its_last_line(args: list[str]):
    agent = ProgramAgent(["python", *args])
    with pytest.raises(DataError, match=r"ended with status [12]: .*no_such"):
        await agent.play(replace(TASK, prompt="a" * (1 << 20)))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_task_for_a_program_that_has_ended_is_dropped(new_loop: Callable[[], asyncio.AbstractEventLoop]):
    async def write_late() -> None:
        process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.PIPE)
        await process.wait()
        await asyncio.sleep(0.05)
        await agents._write(process.stdin, b"a task")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(write_late())


def test_a_script_that_is_not_in_the_configs_folder_is_refused_before_the_start(tmp_path: Path):
    (tmp_path / "agent.py").touch()
    check_agent(AgentSection(command=["python", "agent.py"]), tmp_path)
    check_agent(AgentSection(command=["python", "-m", "agent"]), tmp_path)
    with pytest.raises(ConfigError, match=r"there is no file `.*other.py`"):
        check_agent(AgentSection(command=["python", "other.py"]), tmp_path)


async def test_texts_that_cannot_be_encoded_are_refused_with_the_field(stage: GatewayStage):
    lone = "\ud800"
    named = TOOL | {"function": TOOL["function"] | {"name": lone}}

    async def play(calls: Calls) -> None:
        refused = [
            await calls.post("/v1/chat/completions", {"model": "m", "messages": [USER], "tools": [named]}),
            await calls.post("/v1/completions", {"model": "m", "prompt": lone}),
            await calls.post("/v1/chat/completions", {"model": "m", "messages": [USER | {"content": lone}]}),
        ]
        assert [(status, body["error"]["param"]) for status, body in refused] == [
            (400, "tools"),
            (400, "prompt"),
            (400, "messages"),
        ]
        await calls.chat([USER])

    await stage.play(play, ScriptedEngine([stage.ids("42")]))


async def test_an_unexpected_exception_of_a_call_ends_the_episode_with_it(stage: GatewayStage):
    class BrokenEngine(ScriptedEngine):
        async def generate(self, *arguments: Any, **options: Any) -> Completion:
            raise LookupError("a bug")

    async def play(calls: Calls) -> None:
        await calls.post("/v1/chat/completions", {"model": "m", "messages": [USER]})

    with pytest.raises(LookupError, match="a bug"):
        await stage.play(play, BrokenEngine([]))


async def test_tokens_of_a_call_that_nobody_waits_for_are_counted_as_unread(stage: GatewayStage):
    async def play(calls: Calls) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await calls.chat([USER])
        await calls.chat([USER])

    answer = stage.ids("42")
    trajectory = await stage.play(play, ScriptedEngine(lambda *_: answer, delay_s=0.3, cut=[*answer, *answer]))
    assert len(trajectory.turns) == 1
    report = stage.report
    assert report.dropped == {DropReason.UNREAD: 2 * len(answer)}
    assert (report.num_sampled, report.num_trained) == (3 * len(answer), len(answer))


async def test_the_row_of_the_last_turn_is_the_last(stage: GatewayStage):
    async def play(calls: Calls) -> None:
        messages: list[dict[str, Any]] = [USER]
        messages.append(await calls.chat(messages))
        await calls.chat([{"role": "user", "content": "Another dialogue."}])
        await calls.chat([*messages, {"role": "user", "content": "Sure?"}])

    engine = ScriptedEngine([stage.ids("first"), stage.ids("second"), stage.ids("third")])
    trajectory = await stage.play(play, engine)
    second, first = (stage.text(ids) for ids, _ in rows_of(trajectory))
    assert "second" in second
    assert "first" in first
    assert first.endswith("third<|im_end|>")
    assert summarise_trajectory(trajectory).num_prompt_tokens == 0, "nothing of several rows is shared"


async def test_the_rows_of_a_session_together_fit_into_a_micro_batch(stage: GatewayStage):
    statuses: list[int] = []

    async def play(calls: Calls) -> None:
        for n in range(8):
            body = {"model": "m", "messages": [{"role": "user", "content": f"Part {n}"}]}
            status, _ = await calls.post("/v1/chat/completions", body)
            statuses.append(status)

    engine = ScriptedEngine(lambda *_: stage.ids("42"))
    first = len((await stage.play(play, engine)).token_ids) // 8
    statuses.clear()
    trajectory = await stage.play(play, engine, max_session_tokens=3 * first + 5, max_row_tokens=3 * first)
    assert statuses == [200, 200, 200, *[409] * 5]
    assert len(trajectory.token_ids) <= 3 * first + 5
    assert trajectory.termination is Termination.MAX_RESPONSE_TOKENS
    trajectory = await stage.play(play, engine, max_session_tokens=3 * first - 1, max_row_tokens=2 * first)
    assert len(trajectory.token_ids) == 3 * first - 1, "the last turn is cut"
    assert trajectory.termination is Termination.MAX_RESPONSE_TOKENS


async def test_a_session_keeps_its_templates_when_others_need_the_room(
    stage: GatewayStage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rows, "_MAX_TEMPLATES", 1)
    other = TOOL | {"function": TOOL["function"] | {"name": "other"}}

    async def play(calls: Calls) -> None:
        first = await calls.chat([USER], tools=[TOOL])
        await calls.chat([USER], tools=[other])
        await calls.chat([USER, first, {"role": "user", "content": "Sure?"}], tools=[TOOL])

    trajectory = await stage.play(play, ScriptedEngine(lambda *_: stage.ids("42")))
    assert len(rows_of(trajectory)) == 2


async def test_plain_completions_continue_behind_turns_that_ended_by_themselves(stage: GatewayStage):
    async def play(calls: Calls) -> None:
        prompt = "Q: 6*7?\n"
        for _ in range(3):
            _, answer = await calls.post("/v1/completions", {"model": "m", "prompt": prompt})
            prompt += f"{answer['choices'][0]['text']}\nQ: Sure?\n"

    engine = ScriptedEngine(lambda *_: stage.ids("It is 42."))
    trajectory = await stage.play(play, engine)
    assert trajectory.row_starts == ()
    assert sum(trajectory.response_mask) == engine.num_generated_tokens
    assert stage.text(trajectory.token_ids).count("42.<|im_end|>\nQ: Sure?") == 2


async def test_a_retry_never_gets_the_answer_of_an_earlier_call_with_the_same_text(stage: GatewayStage):
    body, retry = {"model": "m", "messages": [USER]}, {"x-stainless-retry-count": "1"}
    texts = []

    async def play(calls: Calls) -> None:
        async def ask(**headers: str) -> None:
            _, answer = await calls.post("/v1/chat/completions", body, **headers)
            texts.append(answer["choices"][0]["message"]["content"])

        await ask()
        with pytest.raises(TimeoutError):  # asked once more, and the connection broke
            async with asyncio.timeout(0.1):
                await ask()
        await ask(**retry)
        await ask(**{"Idempotency-Key": "a"})
        await ask(**{"Idempotency-Key": "b"}, **retry)
        await ask(**{"Idempotency-Key": "a"}, **retry)

    class SlowSecond(ScriptedEngine):
        async def _think(self) -> None:
            await asyncio.sleep(1.0 if len(self.calls) == 2 else 0.0)

    engine = SlowSecond([stage.ids(str(n)) for n in range(9)])
    await stage.play(play, engine)
    assert texts == ["0", "2", "3", "4", "3"]
