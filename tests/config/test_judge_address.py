import pytest

from agentrl.config.schema.addresses import judge_urls
from agentrl.errors import ConfigError


def urls(*hosts: str, addr: str | None = None, port: int | None = None) -> tuple[str, ...]:
    return judge_urls(host_addr=addr, host_port=port, hosts=hosts, key="judge.")


def test_hosts_are_pairs_or_urls_and_each_counts_once() -> None:
    assert urls("10.0.0.1:80", "https://j.example:443/", "http://10.0.0.1:80", "[::1]:9") == (
        "http://10.0.0.1:80",
        "https://j.example:443",
        "http://[::1]:9",
    )


def test_host_addr_and_host_port_are_one_host() -> None:
    assert urls(addr="10.0.0.1", port=80) == ("http://10.0.0.1:80",)
    assert urls(addr="::1", port=80) == ("http://[::1]:80",)


def test_the_same_address_twice_is_no_contradiction() -> None:
    assert urls("10.0.0.1:80", addr="10.0.0.1", port=80) == ("http://10.0.0.1:80",)


def test_two_addresses_that_differ_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"`judge.host_addr`.* name http://a:1, but `judge.hosts` names http://b:1"):
        urls("b:1", addr="a", port=1)


def test_half_an_address_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="set both"):
        urls(addr="a")


@pytest.mark.parametrize("addr", ["a", None])
@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_named_with_its_key(addr: str | None, port: int) -> None:
    with pytest.raises(ConfigError, match=rf"^`judge\.host_port` is {port}; it must be the port of a running judge"):
        urls(addr=addr, port=port)


@pytest.mark.parametrize("address", ["a", "ftp://a:1", "http://a:1/path", "a:1?q", "a:99999", ":80", ""])
def test_what_is_no_address_is_named_with_its_key(address: str) -> None:
    with pytest.raises(ConfigError, match=r"`judge\.hosts\[1\]`"):
        urls("fine:1", address)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="token_env") as refusal:
        urls("http://me:s3cret@a:1")
    assert "s3cret" not in str(refusal.value)
