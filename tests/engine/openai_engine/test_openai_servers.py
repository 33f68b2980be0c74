"""Several servers, servers that die and come back, and servers that will not do."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.engine.openai import engine as openai_engine
from agentrl.errors import EngineError
from tests.engine.openai_engine.test_openai_engine import (
    PROMPT,
    StartEngine,
    always,
    expected,
    generate,
    slowly,
    start_engine,
    until,
)
from tests.engine.openai_server import Body, Event, OpenAIServer, Pause, Status, chunk, served

__all__ = ["start_engine"]  # the fixture


def asked(server: OpenAIServer) -> int:
    return sum(body["prompt"] == PROMPT for body in server.bodies)


async def test_each_completion_goes_to_the_server_with_the_fewest_in_flight(start_engine: StartEngine):
    servers = [OpenAIServer(slowly(0.02)) for _ in range(3)]
    async with served(*servers):
        engine = await start_engine(*servers, max_concurrent_trajectories=12)
        await asyncio.gather(*(generate(engine, name=f"r{index}") for index in range(12)))
    assert [server.max_running for server in servers] == [4, 4, 4]


async def test_the_same_address_twice_is_one_server(start_engine: StartEngine):
    server = OpenAIServer()
    async with served(server):
        engine = await start_engine(server, server)
        await generate(engine)
    assert asked(server) == 1


async def test_the_completions_of_a_dead_server_go_to_another_and_it_is_taken_back(start_engine: StartEngine):
    mortal, other = OpenAIServer(slowly(0.02)), OpenAIServer(slowly(0.02))
    async with served(mortal, other):
        engine = await start_engine(mortal, other)
        running = [asyncio.create_task(generate(engine, name=f"r{index}")) for index in range(8)]
        await until(lambda: mortal.num_running == 4)
        await mortal.stop()
        assert [done.token_ids for done in await asyncio.gather(*running)] == [expected()] * 8
        assert asked(other) == 8
        await mortal.start()
        mortal.bodies.clear()
        async with asyncio.timeout(60):
            while not asked(mortal):
                await asyncio.gather(*(generate(engine, name=f"s{index}") for index in range(4)))


async def test_a_server_that_is_away_at_the_start_is_taken_in_when_it_comes(start_engine: StartEngine):
    stable, late = OpenAIServer(), OpenAIServer()
    async with served(stable):
        engine = await start_engine(stable, late)
        assert (await generate(engine)).token_ids == expected()
        async with served(late):
            async with asyncio.timeout(60):
                while not asked(late):
                    await asyncio.gather(*(generate(engine, name=f"s{index}") for index in range(4)))


async def test_a_server_that_comes_back_as_another_program_stays_out(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture
):
    stable, other = OpenAIServer(), OpenAIServer()
    async with served(stable, other):
        engine = await start_engine(stable, other)
        other.script = lambda body: iter([Status(503)] if body["prompt"] == PROMPT else [chunk(None, [-0.5], "stop")])
        with caplog.at_level(logging.WARNING):
            await asyncio.gather(*(generate(engine, name=f"r{index}") for index in range(4)))
            await until(lambda: "still dropped" in caplog.text)
        before = asked(other)
        await asyncio.gather(*(generate(engine, name=f"s{index}") for index in range(4)))
        assert asked(other) == before


async def test_a_server_that_has_hung_gets_nothing_more(start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openai_engine, "_SILENCE_S", 2)
    hung, well = OpenAIServer(), OpenAIServer()
    async with served(hung, well):
        engine = await start_engine(hung, well)
        hung.script = always(Pause(60))
        asked_both = [generate(engine, name=f"h{index}", within_s=4) for index in range(2)]
        failures = [
            outcome
            for outcome in await asyncio.gather(*asked_both, return_exceptions=True)
            if isinstance(outcome, EngineError)
        ]
        assert ["not a token in" in str(failure) for failure in failures] == [True]
        for index in range(3):
            assert (await generate(engine, name=f"r{index}")).token_ids == expected()
    assert asked(hung) == 1


def without_ids(body: Body) -> Iterator[Event]:
    yield chunk(None, [-0.5], "stop")


def without_logprobs(body: Body) -> Iterator[Event]:
    yield chunk([7], [], "stop", prompt_token_ids=PROMPT)


def of_another_tokenizer(body: Body) -> Iterator[Event]:
    yield chunk([7], [-0.5], "length", prompt_token_ids=[1, 2, 3])


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (without_ids, "no `token_ids`.*vLLM 0.10.2"),
        (without_logprobs, "1 tokens came with 0 log-probabilities"),
        (of_another_tokenizer, "other token ids than the tokenizer in `model.path`"),
        (always(chunk([], [], "stop", prompt_token_ids=PROMPT)), "has no token"),
        (always(Status(404, "no such route")), "HTTP 404.*`rollout.openai.base_urls`"),
        (always(Status(401)), "HTTP 401.*token_env"),
        (always(Status(200, "{}", {"Content-Type": "application/json"})), "not a stream"),
    ],
)
async def test_a_server_that_will_not_do_is_refused_at_the_start(start_engine: StartEngine, script: Any, named: str):
    server = OpenAIServer(script)
    async with served(server):
        with pytest.raises(EngineError, match=named) as caught:
            await start_engine(server)
    assert server.base_url in str(caught.value)


@pytest.mark.parametrize(
    ("models", "wanted", "named"),
    [
        (["a", "b"], None, "must list one, and it lists `a`, `b`"),
        (["a"], "c", "`rollout.openai.model` is `c`, and it lists `a`"),
        ([], None, "lists none"),
    ],
)
async def test_a_model_that_is_not_clear_is_refused(
    start_engine: StartEngine, models: list[str], wanted: str | None, named: str
):
    server = OpenAIServer(models=[{"id": name} for name in models])
    async with served(server):
        with pytest.raises(EngineError, match=named):
            await start_engine(server, section={"model": wanted})


async def test_a_context_too_short_for_trajectories_is_refused(start_engine: StartEngine):
    server = OpenAIServer(models=[{"id": "arithmetic", "max_model_len": 5}])
    async with served(server):
        with pytest.raises(EngineError, match="its context is 5 tokens, and trajectories need 6"):
            await start_engine(server, max_tokens=6)
        await start_engine(server, max_tokens=5)


async def test_a_named_model_is_asked_for(start_engine: StartEngine):
    server = OpenAIServer(models=[{"id": "base"}, {"id": "tuned"}])
    async with served(server):
        await generate(await start_engine(server, section={"model": "tuned"}))
    assert {body["model"] for body in server.bodies} == {"tuned"}


async def test_no_server_at_all_is_an_error_that_names_each(start_engine: StartEngine):
    servers = [OpenAIServer(), OpenAIServer()]
    with pytest.raises(EngineError, match="no server in") as caught:
        await start_engine(*servers)
    assert all(server.base_url in str(caught.value) for server in servers)
