"""Engines that share GPUs with the models start when these are there."""

import asyncio
from typing import cast

import pytest

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.launch import start_all
from agentrl.cluster.learner import Learner


class Starting:
    """Takes a moment to start, and records that."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    async def start(self) -> None:
        self.events.append(f"{self.name} begins")
        await asyncio.sleep(0.01)
        self.events.append(f"{self.name} is ready")


@pytest.mark.parametrize("in_turn", [True, False])
async def test_engines_that_share_gpus_wait_for_the_models(in_turn: bool):
    events: list[str] = []
    learner, engines = cast(Learner, Starting("learner", events)), cast(EngineFleet, Starting("engines", events))
    await start_all(learner, engines, in_turn=in_turn)
    assert (events.index("learner is ready") < events.index("engines begins")) == in_turn
