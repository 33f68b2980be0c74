"""The agent of docs/agents.md, with OpenAI's SDK, plays an episode."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from agentrl.agent_loop.gateway.agents import agent_of
from agentrl.config.schema.agent_loop import AgentLoopSection
from agentrl.types import Prompt
from tests.agent_loop.gateway.gateway_stage import GatewayStage
from tests.fakes import ScriptedEngine

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "agents.md").read_text()


@pytest.mark.slow
async def test_the_agent_of_the_page_is_trained_as_it_is(
    stage: GatewayStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    [code] = re.findall(r"```python\n# my_agent.py\n(.*?)```", PAGE, re.DOTALL)
    [config] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_agent.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    section = AgentLoopSection(**yaml.safe_load(config)["agent_loop"]).agent
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 20, "b": 22}}\n</tool_call>'
    engine = ScriptedEngine([stage.ids(call), stage.ids("It is 42.")])
    prompt = Prompt(prompt_id="p0", messages=[{"role": "user", "content": "20 + 22?"}], answer="42")
    trajectory = await stage.play(None, engine, player=agent_of(section), prompt=prompt)
    assert [result.text for result in trajectory.tool_results] == ["42"]
    assert trajectory.turns[-1].text == "It is 42."
    assert trajectory.row_starts == ()
