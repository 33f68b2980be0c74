"""Refusals of an environment before a run starts."""

import pytest

from agentrl.config.schema.run import AgentLoopSection
from agentrl.environments.loader import build_environment, check_environment
from agentrl.errors import ConfigError

GAMES = "tests.environments.games"


def section(name: str, **config: object) -> AgentLoopSection:
    return AgentLoopSection(environment=f"{GAMES}.{name}", environment_config=config)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Absent", "has no `Absent`"),
        ("function", "is no class; name a subclass of `agentrl.environments.base.Environment`"),
        ("Silent", "has no `async def observe`"),
        ("Episode", "has no `async def observe`"),
    ],
)
def test_a_class_that_is_no_environment_is_refused_by_its_key(name: str, words: str):
    with pytest.raises(ConfigError, match=r"`agent_loop\.environment` is `tests.environments.games") as error:
        check_environment(section(name))
    assert words in str(error.value)


def test_a_config_without_an_environment_is_refused():
    with pytest.raises(ConfigError, match=r"`agent_loop\.environment_config` is set without `agent_loop\.environment`"):
        check_environment(AgentLoopSection(environment_config={"size": 3}))


def test_a_method_with_other_parameters_is_refused_when_it_is_built():
    with pytest.raises(ConfigError, match=r"`observe` must take `\(episode, prompt, turns, \*, deadline\)`"):
        build_environment(section("Narrow"), timeout_s=1)


def test_without_an_environment_none_is_built():
    check_environment(AgentLoopSection())
    assert build_environment(AgentLoopSection(), timeout_s=1) is None
