"""The engine over real HTTP to scripted servers: what it asks, what it takes for an answer, and when it asks again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from agentrl.config.schema.run import ModelSection, OpenAIEngineSection, RolloutSection
from agentrl.engine.openai.engine import OpenAIEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from agentrl.weight_sync.base import Transport, WeightSource
from tests.engine.openai_server import (
    GREEDY_LOGPROB,
    POLICY,
    Cut,
    Event,
    OpenAIServer,
    Pause,
    Script,
    Status,
    chunk,
    sample,
    served,
    usual,
)

StartEngine = Callable[..., Awaitable[OpenAIEngine]]
PROMPT = [5, 6, 7]
PARAMS = SamplingParams(max_tokens=6, seed=3)


@pytest_asyncio.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Start engines on servers that run already; they are closed at the end."""
    started: list[OpenAIEngine] = []

    async def start(
        *servers: OpenAIServer, section: dict[str, Any] | None = None, max_tokens: int = 10240, **rollout: Any
    ) -> OpenAIEngine:
        openai = OpenAIEngineSection(base_urls=[server.base_url for server in servers], **(section or {}))
        rollout_section = RolloutSection(engine="openai", openai=openai, **rollout)
        engine = OpenAIEngine(ModelSection(path=str(POLICY)), rollout_section, max_tokens=max_tokens)
        await engine.start()
        started.append(engine)
        for server in servers:
            server.bodies.clear()
        return engine

    yield start
    for engine in started:
        await engine.aclose()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    running = OpenAIServer()
    async with served(running):
        yield running


async def generate(
    engine: OpenAIEngine, params: SamplingParams = PARAMS, *, name: str = "r", within_s: float = 100.0
) -> Completion:
    return await engine.generate(PROMPT, params, request_id=name, deadline=Deadline.after(within_s))


def expected(params: SamplingParams = PARAMS) -> list[int]:
    body = {"prompt": PROMPT, "seed": params.seed, "max_tokens": params.max_tokens, "temperature": params.temperature}
    return sample(body | {"top_k": params.top_k or -1, "stop_token_ids": list(params.stop_token_ids)})[0]


def slowly(pause_s: float = 0.05) -> Script:
    return lambda body: usual(body, pause_s=pause_s)


def once(first: Script, then: Script = usual) -> Script:
    """Return a script whose first answer is another one."""
    scripts = iter([first])
    return lambda body: next(scripts, then)(body)


def always(*events: Event | Pause | Cut | Status) -> Script:
    return lambda body: iter(events)


async def until(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_token_ids_go_in_and_token_ids_with_log_probabilities_come_out(
    server: OpenAIServer, start_engine: StartEngine
):
    completion = await generate(await start_engine(server))
    assert completion == Completion(
        token_ids=expected(),
        logprobs=[GREEDY_LOGPROB] * 6,
        finish_reason=FinishReason.LENGTH,
        version_spans=((0, 0),),
    )


async def test_a_sampled_stop_token_ends_the_completion_and_is_in_it(server: OpenAIServer, start_engine: StartEngine):
    stop = expected()[2]
    params = SamplingParams(max_tokens=6, seed=3, stop_token_ids=(stop,))
    completion = await generate(await start_engine(server), params)
    assert completion.finish_reason is FinishReason.STOP
    assert completion.token_ids == expected()[: expected().index(stop) + 1]


async def test_nothing_is_left_to_the_defaults_of_the_server(server: OpenAIServer, start_engine: StartEngine):
    engine = await start_engine(server)
    await generate(engine, SamplingParams(max_tokens=4, temperature=0.7, top_p=0.9, seed=2**62, stop_token_ids=(1,)))
    body = server.bodies[0]
    assert body["prompt"] == PROMPT
    assert body["model"] == "arithmetic"
    asked = {key: body[key] for key in ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids")}
    assert asked == {
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "seed": 2**62,
        "stop_token_ids": [1],
    }
    assert (body["min_p"], body["repetition_penalty"], body["presence_penalty"]) == (0.0, 1.0, 0.0)


async def test_stop_strings_are_passed_on_with_the_text_of_their_last_token(
    server: OpenAIServer, start_engine: StartEngine
):
    engine = await start_engine(server)
    await generate(engine, SamplingParams(max_tokens=4, seed=1, stop=("</search>",)))
    body = server.bodies[0]
    assert (body["stop"], body["include_stop_str_in_output"], body["no_stop_trim"]) == (["</search>"], True, True)
    assert (body["skip_special_tokens"], body["spaces_between_special_tokens"]) == (False, False)
    await generate(engine)
    assert "stop" not in server.bodies[1]


@pytest.mark.parametrize(
    ("events", "named"),
    [
        ([chunk(None, [-0.5], "stop")], "no `token_ids`"),
        ([chunk([3, 4], [-0.5], "stop")], "2 tokens came with 1 log-probabilities"),
        ([chunk([3], [], "stop")], "1 tokens came with 0 log-probabilities"),
        ([chunk([3], [None], "stop")], "log-probability of a sampled token is None"),
        ([chunk([3], [float("nan")], "stop")], "log-probability of a sampled token is nan"),
        ([chunk([3], [float("-inf")], "stop")], "log-probability of a sampled token is -inf"),
        ([chunk([3], [-9999.0], "stop")], "log-probability of a sampled token is -9999"),
        ([chunk([3], [0.5], "stop")], "log-probability of a sampled token is 0.5"),
        ([chunk([3, 10**9], [-0.5, -0.5], "stop")], r"token id 1e\+09 is not in the vocabulary of `model.path`"),
        ([chunk([-1], [-0.5], "stop")], "token id -1 is not"),
        ([chunk([2**70], [-0.5], "stop")], r"token id 1\.18059e\+21 is not"),
        ([chunk([3] * 7, [-0.5] * 7, "stop")], "7 tokens came, more than `max_tokens` \\(6\\)"),
        ([chunk([3], [-0.5], "content_filter")], "unknown finish reason `content_filter`"),
        ([{"choices": "none"}], "not a stream of completions"),
        ([Status(200, "{}", {"Content-Type": "application/json"})], "the reply is `application/json`, not a stream"),
        ([Status(400, "too long")], "HTTP 400: too long"),
        ([Status(307, "", {"Location": "http://127.0.0.1:1/v1"})], "HTTP 307"),
        ([{"error": {"message": "bad request", "code": 400}}], "HTTP 400.*bad request"),
    ],
)
async def test_a_wrong_reply_is_refused_at_once_and_not_asked_for_again(
    server: OpenAIServer, start_engine: StartEngine, events: list[Event], named: str
):
    engine = await start_engine(server)
    server.script = always(*events)
    with pytest.raises(EngineError, match=named) as caught:
        await generate(engine)
    assert f"127.0.0.1:{server.port}" in str(caught.value) or "`r`" in str(caught.value)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "first",
    [
        always(Cut()),
        always(chunk([9], [-0.5]), chunk([9], [-0.5]), Cut()),
        always(chunk([9], [-0.5])),
        always(chunk([9], [-0.5], "abort")),
        always(Status(429)),
        always(Status(503)),
        always(Status(500)),
        always(chunk([9], [-0.5]), {"error": {"message": "the engine died", "code": 500}}),
    ],
    ids=["killed", "cut", "ended early", "aborted by the server", "429", "503", "500", "error event"],
)
async def test_what_was_not_answered_is_sampled_again_from_its_start_with_its_seed(
    server: OpenAIServer, start_engine: StartEngine, first: Script
):
    engine = await start_engine(server)
    server.script = once(first)
    assert (await generate(engine)).token_ids == expected()
    answered = [body for body in server.bodies if body["prompt"] == PROMPT]
    assert [body["seed"] for body in answered] == [3, 3]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_server_is_left_alone_for_as_long_as_it_asks(
    server: OpenAIServer, start_engine: StartEngine, status: int
):
    engine = await start_engine(server)
    server.script = once(always(Status(status, "full", {"Retry-After": "1"})))
    started = time.monotonic()
    assert (await generate(engine)).token_ids == expected()
    assert time.monotonic() - started >= 1.0
    assert len(server.bodies) == 2  # no probe: it is full, not down


async def test_a_request_on_which_servers_fail_inside_is_given_up(server: OpenAIServer, start_engine: StartEngine):
    engine = await start_engine(server)
    server.script = lambda body: usual(body) if body["top_k"] == 1 or body["temperature"] == 0 else iter([Status(500)])
    with pytest.raises(EngineError, match=r"failed 2 times.*HTTP 500"):
        await generate(engine)
    assert sum(body["prompt"] == PROMPT for body in server.bodies) == 2


async def test_a_complete_answer_counts_though_the_connection_breaks_after_it(
    server: OpenAIServer, start_engine: StartEngine
):
    engine = await start_engine(server)
    server.script = always(chunk([9], [-0.5], "stop"), Cut())
    completion = await generate(engine)
    assert (completion.token_ids, completion.finish_reason) == ([9], FinishReason.STOP)


async def test_at_its_deadline_a_request_gives_what_there_is_and_the_server_stops(
    server: OpenAIServer, start_engine: StartEngine
):
    engine = await start_engine(server)
    server.script = slowly(0.2)
    completion = await generate(engine, SamplingParams(max_tokens=100, seed=3), within_s=3)
    assert completion.finish_reason is FinishReason.ABORT
    assert 1 <= len(completion.token_ids) < 100
    assert len(completion.logprobs) == len(completion.token_ids)
    await until(lambda: server.num_left == 1)


async def test_a_deadline_that_passes_because_servers_fail_is_an_error_and_no_slow_answer(
    server: OpenAIServer, start_engine: StartEngine
):
    engine = await start_engine(server)
    server.script = always(Status(503, "gone"))
    with pytest.raises(EngineError, match=r"not answered by its deadline: .*HTTP 503: gone"):
        await generate(engine, within_s=2)


async def test_a_deadline_that_passes_before_the_first_token_gives_none(
    server: OpenAIServer, start_engine: StartEngine
):
    engine = await start_engine(server)
    server.script = always(Pause(60))
    completion = await generate(engine, within_s=0.3)
    assert (completion.token_ids, completion.finish_reason) == ([], FinishReason.ABORT)


async def test_a_request_that_is_aborted_while_servers_fail_gives_nothing(
    server: OpenAIServer, start_engine: StartEngine
):
    engine = await start_engine(server)
    server.script = always(Status(503))
    asked = asyncio.create_task(generate(engine, name="mine"))
    await until(lambda: len(server.bodies) >= 1)
    await asyncio.sleep(0.05)
    await engine.abort("mine")
    assert (await asked).finish_reason is FinishReason.ABORT


async def test_an_aborted_request_gives_what_there_is_and_the_server_stops(
    server: OpenAIServer, start_engine: StartEngine
):
    engine = await start_engine(server)
    server.script = slowly()
    asked = asyncio.create_task(generate(engine, SamplingParams(max_tokens=1000, seed=3), name="mine"))
    await until(lambda: server.num_running == 1)
    await asyncio.sleep(1)
    await engine.abort("somebody else's")
    await engine.abort("mine")
    await engine.abort("mine")
    completion = await asked
    assert completion.finish_reason is FinishReason.ABORT
    assert completion.token_ids
    await until(lambda: server.num_left == 1)


async def test_a_cancelled_request_closes_its_connection(server: OpenAIServer, start_engine: StartEngine):
    engine = await start_engine(server)
    server.script = slowly()
    asked = asyncio.create_task(generate(engine, SamplingParams(max_tokens=1000, seed=3)))
    await until(lambda: server.num_running == 1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: server.num_left == 1)
    assert (await engine.stats()).num_running == 0


async def test_no_more_requests_are_open_than_trajectories_may_run(server: OpenAIServer, start_engine: StartEngine):
    engine = await start_engine(server, max_concurrent_trajectories=3)
    server.script = slowly(0.01)
    await asyncio.gather(*(generate(engine, name=f"r{index}") for index in range(12)))
    assert server.max_running == 3


async def test_the_load_is_reported(server: OpenAIServer, start_engine: StartEngine):
    engine = await start_engine(server, max_concurrent_trajectories=1, max_tokens=30)
    server.script = slowly()
    asked = [asyncio.create_task(generate(engine, name=f"r{index}")) for index in range(3)]
    await until(lambda: server.num_running == 1)
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_tokens_used, stats.kv_tokens_capacity) == (1, 2, 3, 30)
    await asyncio.gather(*asked)
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.policy_version) == (0, 0, 0)
    assert (stats.num_generated_tokens, stats.num_prefill_tokens, stats.num_cached_tokens) == (18, 6, 3)


async def test_what_only_the_owner_of_the_servers_can_do_is_refused(server: OpenAIServer, start_engine: StartEngine):
    engine = await start_engine(server)
    source = WeightSource(transport=Transport.SHARED_MEMORY, address="", size_bytes=0, tensors=())
    for refused in (
        engine.load_weights(source, version=1),
        engine.sleep(),
        engine.wake(("weights",)),
    ):
        with pytest.raises(EngineError, match=r"external servers in `rollout.openai.base_urls` load no weights"):
            await refused


async def test_the_token_comes_from_its_variable_and_is_never_repeated(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
):
    server = OpenAIServer(token="secret-of-mine")
    monkeypatch.setenv("SERVER_TOKEN", "secret-of-mine")
    async with served(server):
        engine = await start_engine(server, section={"token_env": "SERVER_TOKEN"})
        assert (await generate(engine)).token_ids == expected()
        server.token = "another"
        with pytest.raises(EngineError, match=r"HTTP 401.*token_env") as caught:
            await generate(engine)
    assert "secret-of-mine" not in str(caught.value)


async def test_a_token_whose_variable_is_not_set_is_a_config_error(server: OpenAIServer, start_engine: StartEngine):
    with pytest.raises(ConfigError, match=r"`NO_SUCH_TOKEN`.*not set"):
        await start_engine(server, section={"token_env": "NO_SUCH_TOKEN"})
