import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.config.schema.run import CodeJudgeTools, JudgeSection
from agentrl.errors import ConfigError, JudgeUnavailableError
from agentrl.judge.connection import JudgeConnection, check_address, fill_address, lacks_address


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
        with pytest.raises(JudgeUnavailableError, match="the server there is no code judge"):
            await client.check(timeout_s=60)
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
    with pytest.raises(ConfigError, match="`token_env`: the variable `MY_JUDGE_TOKEN` is not set"):
        connection.client(owner="test")


def test_the_defaults_are_those_of_the_run_configs_short_form() -> None:
    connection, short_form = JudgeConnection(), CodeJudgeTools()
    assert connection.request_processor_concurrency == short_form.concurrency
    assert connection.request_processor_batch_size == short_form.batch_size
    assert connection.request_processor_batch_timeout_seconds == short_form.batch_timeout_seconds


NOBODY = {"host_addr": None, "host_port": None, "hosts": None, "token_env": None}


def test_one_judge_of_the_run_goes_into_host_addr_and_host_port() -> None:
    filled = fill_address(NOBODY, ["http://10.0.0.1:80"], token_env="T")
    assert filled == {"host_addr": "10.0.0.1", "host_port": 80, "hosts": None, "token_env": "T"}


@pytest.mark.parametrize("run", [["http://a:1", "http://b:1"], ["https://a:1"]])
def test_what_a_host_and_a_port_cannot_say_goes_into_hosts(run: list[str]) -> None:
    filled = fill_address(NOBODY, run, token_env="T")
    assert filled == {"host_addr": None, "host_port": None, "hosts": run, "token_env": "T"}
    assert not lacks_address(filled)


def test_a_tool_that_knows_no_hosts_gets_the_first_of_several() -> None:
    assert fill_address({"host_addr": None, "host_port": None}, ["http://a:1", "http://b:2"]) == {
        "host_addr": "a",
        "host_port": 1,
    }


def test_hosts_of_its_own_are_kept() -> None:
    own = NOBODY | {"hosts": ["c:3"]}
    assert fill_address(own, ["http://a:1", "http://b:2"]) == own
    assert fill_address(own, ["http://a:1"]) == own


def test_hosts_that_contradict_the_runs_are_a_config_error() -> None:
    own = NOBODY | {"hosts": ["a:1", "b:2"]}
    check_address(own, JudgeSection(hosts=["http://b:2", "a:1"]), key="tool")
    check_address(own, JudgeSection(), key="tool")
    with pytest.raises(
        ConfigError, match=r"`tool` names the judges http://a:1, http://b:2, but `judge` names http://a:1"
    ):
        check_address(own, JudgeSection(hosts=["a:1"]), key="tool")
    with pytest.raises(ConfigError, match=r"but `judge` names http://a:1;"):
        check_address(own, JudgeSection(host_addr="a", host_port=1), key="tool")


def test_a_connection_speaks_to_every_host() -> None:
    client = JudgeConnection(hosts=["a:1", "https://b:2"]).client(owner="test")
    assert client.urls == ["http://a:1", "https://b:2"]
