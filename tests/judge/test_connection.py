import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.config.schema import CodeJudgeTools
from agentrl.errors import ConfigError, JudgeUnavailableError
from agentrl.judge.connection import JudgeConnection


async def test_the_token_comes_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_JUDGE_TOKEN", "s3cret")
    seen: list[str | None] = []

    async def health(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"not": "a judge"})

    app = web.Application()
    app.router.add_get("/v1/health", health)
    async with TestServer(app) as server:
        connection = JudgeConnection(host_addr="127.0.0.1", host_port=server.port, token_env="MY_JUDGE_TOKEN")
        client = connection.client(owner="test")
        await client.start()
        with pytest.raises(JudgeUnavailableError, match="what answers there is no code judge"):
            await client.check(timeout_s=5)
        await client.aclose()
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
    with pytest.raises(ConfigError, match="`token_env` is `MY_JUDGE_TOKEN`, but that variable is not set"):
        connection.client(owner="test")


def test_the_defaults_are_those_of_the_run_configs_short_form() -> None:
    connection, short_form = JudgeConnection(), CodeJudgeTools()
    assert connection.request_processor_concurrency == short_form.concurrency
    assert connection.request_processor_batch_size == short_form.batch_size
    assert connection.request_processor_batch_timeout_seconds == short_form.batch_timeout_seconds
