import pytest
from pydantic import ValidationError

from agentrl.config.load import load_run_config
from agentrl.config.schema.judge import JudgeSection
from agentrl.errors import ConfigError


def urls(*hosts: str) -> list[str]:
    return JudgeSection(hosts=[*hosts]).hosts


def test_hosts_are_pairs_or_urls() -> None:
    assert urls("10.0.0.1:80", "https://j.example:443/", "[::1]:9") == [
        "http://10.0.0.1:80",
        "https://j.example:443",
        "http://[::1]:9",
    ]


@pytest.mark.parametrize("address", ["a", "ftp://a:1", "http://a:1/path", "a:1?q", "a:99999", "a:0", "a:-1", ":80", ""])
def test_what_is_no_address_is_named_with_its_key(address: str) -> None:
    with pytest.raises(ValidationError, match=r"hosts\.1"):
        urls("fine:1", address)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"`judge\.hosts\[0\]` holds a password; .*token_env") as refusal:
        load_run_config("configs/demo.yaml", ["judge.hosts=['http://me:s3cret@a:1']"])
    assert "s3cret" not in str(refusal.value)
