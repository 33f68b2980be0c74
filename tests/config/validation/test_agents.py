from pathlib import Path

import pytest

from tests.config.small_config import refused

AGENT = "agent_loop.agent.callable=a.b"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent_loop.agent.command=[c]", "has `callable` and `command`"),
        ("tool_config_path=tools.yaml", "brings tools of its own"),
        ("agent_loop.environment=c.d", "leave one out"),
        ("rollout.replay_routing=true", "are not recorded"),
    ],
)
def test_what_excludes_an_agent_is_refused(config_file: Path, override: str, message: str):
    assert message in refused(config_file, AGENT, override)
