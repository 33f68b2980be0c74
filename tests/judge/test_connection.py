import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer

from agentrl.config.schema.judge import CodeJudgeTools, JudgeSection
from agentrl.errors import ConfigError, JudgeUnavailableError
from agentrl.judge.client import JudgeClient
from agentrl.judge.connection import JudgeAddress, JudgeConnection


@contextlib.asynccontextmanager
async def health_server() -> AsyncIterator[tuple[BaseTestServer, list[str | None]]]:
    """Give a server that is no judge, and the tokens that it sees."""
    seen: list[str | None] = []

    async def health(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"not": "a judge"})

    app = web.Application()
    app.router.add_get("/v1/health", health)
    async with TestServer(app) as server:
        yield server, seen


async def refused_by_no_judge(client: JudgeClient) -> None:
    await client.start()
    with pytest.raises(JudgeUnavailableError, match="the server there is no code judge"):
        await client.check(timeout_s=60)
    await client.aclose()


async def test_the_token_comes_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_JUDGE_TOKEN", "s3cret")
    async with health_server() as (server, seen):
        connection = JudgeConnection(host_addr="127.0.0.1", host_port=server.port, token_env="MY_JUDGE_TOKEN")
        await refused_by_no_judge(connection.client(owner="test"))
    assert seen == ["Bearer s3cret"]
    assert "s3cret" not in repr(connection)


async def test_an_ipv6_address_is_put_in_brackets() -> None:
    client = JudgeConnection(host_addr="::1", host_port=9).client(owner="test")
    await client.start()
    with pytest.raises(JudgeUnavailableError, match=r"http://\[::1\]:9"):
        await client.check(timeout_s=0.2)
    await client.aclose()


def test_a_variable_that_is_not_set_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_JUDGE_TOKEN", raising=False)
    connection = JudgeConnection(host_addr="127.0.0.1", host_port=9, token_env="MY_JUDGE_TOKEN")
    with pytest.raises(ConfigError, match="`token_env`: the variable `MY_JUDGE_TOKEN` is not set"):
        connection.client(owner="test")


def test_the_defaults_are_those_of_the_run_configs_short_form() -> None:
    connection, short_form = JudgeConnection(), CodeJudgeTools()
    assert connection.request_processor_concurrency == short_form.concurrency
    assert connection.request_processor_batch_size == short_form.batch_size
    assert connection.request_processor_batch_timeout_seconds == short_form.batch_timeout_seconds


def test_without_an_address_the_runs_judges_are_asked() -> None:
    client = JudgeConnection().client(JudgeAddress(urls=("http://a:1", "https://b:2")), owner="test")
    assert client.urls == ["http://a:1", "https://b:2"]


async def test_the_runs_token_goes_to_the_runs_judges_only() -> None:
    async with health_server() as (server, seen):
        of_run = JudgeAddress(urls=(f"http://127.0.0.1:{server.port}",), token="s3cret")
        elsewhere = JudgeAddress(urls=("http://127.0.0.1:9",), token="s3cret")
        own = JudgeConnection(host_addr="127.0.0.1", host_port=server.port)
        for connection, judges in [(JudgeConnection(), of_run), (own, of_run), (own, elsewhere)]:
            await refused_by_no_judge(connection.client(judges, owner="test"))
    assert seen == ["Bearer s3cret", "Bearer s3cret", None]


def test_an_address_that_contradicts_the_runs_is_a_config_error() -> None:
    own = JudgeConnection(host_addr="a", host_port=1)
    own.check_address(JudgeSection(hosts=["http://a:1"]), key="tool")
    own.check_address(JudgeSection(), key="tool")
    with pytest.raises(
        ConfigError, match=r"`tool` names the judge http://a:1, but `judge.hosts` names http://a:1, http://b:2"
    ):
        own.check_address(JudgeSection(hosts=["a:1", "b:2"]), key="tool")


@pytest.mark.parametrize("host_addr", ["a/b", "", "me:s3cret@a"])
def test_what_is_no_address_is_a_config_error(host_addr: str) -> None:
    with pytest.raises(ConfigError, match="`tool`: `host_addr` "):
        JudgeConnection(host_addr=host_addr, host_port=1).check_address(JudgeSection(), key="tool")
