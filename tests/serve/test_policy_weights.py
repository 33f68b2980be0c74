"""Weights from folders, for engines that are there and for those that come late."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from agentrl.config.schema.run import ModelSection, RunConfig
from agentrl.errors import AgentRLError, EngineError
from agentrl.models.weight_files import ModelFolder
from agentrl.serve.requests import BadRequestError
from agentrl.serve.weights import PolicyWeights
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.receiver import WeightReceiver
from agentrl.weight_sync.transports.folder import folder_source

POLICY = Path("examples/arithmetic/policy").absolute()


class RecordedFleet:
    """Notes what is loaded; the test says when an engine comes late."""

    def __init__(self) -> None:
        self.came_late = asyncio.Event()
        self.loaded: list[WeightSource] = []
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.error: AgentRLError | None = None
        self.takes_work = True
        self.failure: AgentRLError | None = None

    async def load(self, source: WeightSource) -> None:
        self.began.set()
        await self.may_end.wait()
        if self.error:
            raise self.error
        self.loaded.append(source)

    def fail(self, error: AgentRLError) -> None:
        self.failure = error


def weights_of(fleet: RecordedFleet, model: Path) -> PolicyWeights:
    return PolicyWeights(RunConfig(model=ModelSection(path=str(model))), cast(Any, fleet))


async def late(fleet: RecordedFleet, weights: PolicyWeights) -> None:
    async with weights.serving_late_engines():
        fleet.came_late.set()
        while fleet.came_late.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(POLICY, tmp_path / "policy"))


async def test_an_engine_that_restarts_gets_the_last_version(folder: Path):
    fleet = RecordedFleet()
    weights = weights_of(fleet, POLICY)
    await late(fleet, weights)
    assert [(source.address, source.version) for source in fleet.loaded] == [(str(POLICY), 0)]
    await weights.load(str(folder))
    await late(fleet, weights)
    assert [(source.address, source.version) for source in fleet.loaded[1:]] == [(str(folder), 1)] * 2


async def test_an_engine_that_restarts_never_gets_other_weights_under_an_old_version(folder: Path):
    fleet = RecordedFleet()
    weights = weights_of(fleet, POLICY)
    await weights.load(str(folder))
    (folder / "model.safetensors").touch()
    await late(fleet, weights)
    assert len(fleet.loaded) == 1
    await weights.load(str(folder))
    await late(fleet, weights)
    assert [source.version for source in fleet.loaded] == [1, 2, 2]
    assert fleet.failure is None


async def test_requests_fail_where_no_engine_is_open_and_the_weights_of_a_restarted_one_are_gone(folder: Path):
    fleet = RecordedFleet()
    weights = weights_of(fleet, POLICY)
    await weights.load(str(folder))
    shutil.rmtree(folder)
    fleet.takes_work = False
    await late(fleet, weights)
    assert "version 1, whose folder is gone" in str(fleet.failure)


async def test_a_client_that_leaves_does_not_interrupt_a_load(folder: Path):
    fleet = RecordedFleet()
    weights = weights_of(fleet, POLICY)
    fleet.may_end.clear()
    request = asyncio.create_task(weights.load(str(folder)))
    await fleet.began.wait()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert request.cancelled()
    fleet.may_end.set()
    assert await weights.load(str(folder)) == 2
    assert [source.version for source in fleet.loaded] == [1, 2]


async def test_the_end_of_the_service_cancels_a_load(folder: Path):
    fleet = RecordedFleet()
    weights = weights_of(fleet, POLICY)
    fleet.may_end.clear()
    async with weights.serving_late_engines():
        request = asyncio.create_task(weights.load(str(folder)))
        await fleet.began.wait()
    await asyncio.wait({request}, timeout=1)
    assert request.cancelled()
    assert weights.version == 0


async def test_a_version_that_an_engine_refused_is_not_given_to_other_weights(folder: Path):
    """Another engine may sample with it already."""
    fleet = RecordedFleet()
    weights = weights_of(fleet, POLICY)
    fleet.error = EngineError("engine 1: these are not the model's weights")
    with pytest.raises(BadRequestError, match="engine 1"):
        await weights.load(str(folder))
    assert weights.version == 0
    fleet.error = None
    assert await weights.load(str(folder)) == 2


def test_a_receiver_reads_the_folders_tensors(folder: Path):
    source, expected = folder_source(folder, version=1), ModelFolder(str(folder))
    receiver = WeightReceiver(torch.device("cpu"))
    receiver.prepare(source)
    received = dict(receiver.tensors(source))
    assert received.keys() == expected.keys()
    assert all(torch.equal(received[name], expected[name]) for name in expected)


def test_a_folder_that_changed_since_is_refused_before_weights_are_overwritten(folder: Path):
    source = folder_source(folder, version=1)
    (folder / "model.safetensors").touch()
    with pytest.raises(EngineError, match="have changed since"):
        WeightReceiver(torch.device("cpu")).prepare(source)
