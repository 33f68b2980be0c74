import pytest
from pydantic import Field

from agentrl.config.class_path import import_by_path
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.errors import ConfigError


class Example(PlainConfig):
    """Two keys."""

    num_things: int = Field(ge=1)
    name: str = "x"


def test_a_dict_becomes_a_typed_object() -> None:
    assert read_plain_config(Example, {"num_things": 2}, source="f") == Example(num_things=2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "f.yaml: `a.num_things` is missing"),
        ({"num_things": "2"}, "f.yaml: `a.num_things` is '2', and must be a whole number"),
        ({"num_things": 0}, "f.yaml: `a.num_things` is 0, and must be at least 1"),
        ({"num_things": 1, "nam": "y"}, "f.yaml: unknown key `a.nam`. Did you mean `name`?"),
        ({"num_things": 1, "zzz": 1}, "f.yaml: unknown key `a.zzz`. Known keys: `num_things`, `name`"),
    ],
)
def test_what_is_wrong_is_named_with_its_full_key_and_value(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_plain_config(Example, config, source="f.yaml", prefix="a.")
    assert str(caught.value) == message


def test_an_import_path_gives_what_it_names() -> None:
    assert import_by_path("agentrl.errors.ConfigError", key="k") is ConfigError


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ConfigError", "`k` is `ConfigError`; it must be an import path"),
        ("not a path.X", "it must be an import path"),
        ("agentrl.no_such.X", "module `agentrl.no_such` cannot be imported"),
        ("agentrl.errors.Nothing", "has no `Nothing`"),
    ],
)
def test_an_import_path_that_names_nothing_is_a_config_error(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        import_by_path(path, key="k")
