"""docs/environments.md: the simulated user asks a real HTTP server, and a server that fails is the infrastructure's fault."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.config.schema.run import AgentLoopSection
from agentrl.environments.loader import build_environment
from agentrl.errors import RolloutError
from agentrl.tools.base import Episode
from agentrl.types import Deadline, Prompt, Turn
from tests.test_docs import ROOT, read_block

EPISODE = Episode(episode_id="e", prompt_id="p")
PROMPT = Prompt(prompt_id="p", messages=[{"role": "user", "content": "Hi."}], extra={"wish": "You want a red hat."})


async def test_the_pages_simulated_user_shows_its_model_the_dialogue_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Any] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json())
        if len(asked) == 3:
            raise web.HTTPInternalServerError
        text = "Another colour, please." if len(asked) == 1 else "DONE"
        return web.json_response({"choices": [{"message": {"content": text}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    (tmp_path / "my_user.py").write_text(read_block(ROOT / "docs" / "environments.md", "my_user.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    async with TestServer(app) as server:
        config = {"base_url": str(server.make_url("/v1")), "model": "user"}
        user = build_environment(
            AgentLoopSection(environment="my_user.SimulatedUser", environment_config=config), timeout_s=20
        )
        assert user is not None
        await user.start()
        first = await user.observe(EPISODE, PROMPT, (Turn(text="A blue hat?"),), deadline=Deadline.after(20))
        assert first is not None
        turns = (Turn(text="A blue hat?", observation=first.text), Turn(text="A red hat?"))
        last = await user.observe(EPISODE, PROMPT, turns, deadline=Deadline.after(20))
        assert last is not None
        with pytest.raises(RolloutError, match="simulated user: 500"):
            await user.observe(EPISODE, PROMPT, turns, deadline=Deadline.after(20))
        await user.aclose()
    assert (first.reward, first.done, last.reward, last.done) == (0.0, False, 1.0, True)
    assert [(message["role"], message["content"]) for message in asked[1]["messages"]] == [
        ("system", "You want a red hat. Say DONE when you have it."),
        ("user", "A blue hat?"),
        ("assistant", "Another colour, please."),
        ("user", "A red hat?"),
    ]
