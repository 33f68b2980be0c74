"""The driver's part of a checkpoint, with models that are written as slowly as a test wants."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.store import CheckpointStore
from agentrl.checkpoints.writer import PASS_RATES, CheckpointKeeper
from agentrl.config.schema.run import CheckpointSection
from agentrl.data.pass_rates import PassRates
from agentrl.errors import CheckpointError, ModelDiedError
from agentrl.training.checkpoint import CheckpointWriter
from agentrl.training.parallel import Parallel
from tests.small_disk import fill, small_disk
from tests.training.training_cases import alone


class ScriptedModels:
    """Says what it is told about whether it has written its part."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.noted: list[int] = []
        self.is_done = False
        self.error: Exception | None = None
        self.asked = asyncio.Event()

    async def save(self, url: str) -> None:
        self.urls.append(url)

    async def saved(self) -> bool:
        self.asked.set()
        if self.error is not None:
            raise self.error
        return self.is_done


class OneGroupInHand:
    """A stream of rollouts with one group to keep."""

    async def save(self, folder: Path) -> None:
        (folder / "groups.json").write_text('[{"number": 3}]')


IN_HAND: Any = OneGroupInHand()


class OneRank:
    """A model of one rank, written by the real writer; it takes 350 kB with its optimiser."""

    def __init__(self) -> None:
        self._model = nn.Linear(300, 100)
        self._optimiser = torch.optim.AdamW(self._model.parameters(), lr=0.1)
        self._model(torch.rand(5, 300)).square().mean().backward()
        self._optimiser.step()
        self._writer = CheckpointWriter()

    async def save(self, url: str) -> None:
        self._writer.begin(f"{url}/actor", self._model, self._optimiser)

    async def saved(self) -> bool:
        return self._writer.is_done()


@pytest.fixture
def one_rank() -> Iterator[OneRank]:
    parallel = Parallel(alone())
    yield OneRank()
    parallel.close()


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "checkpoints"))


@pytest.fixture
def models() -> ScriptedModels:
    return ScriptedModels()


@pytest.fixture
def keeper(store: CheckpointStore, models: ScriptedModels, tmp_path: Path) -> CheckpointKeeper:
    config = CheckpointSection(keep_last=1, keep_best=0)
    return CheckpointKeeper(store, config, models, note=models.noted.append, scratch=tmp_path / "in_hand")


async def test_training_goes_on_while_a_checkpoint_is_written_and_it_counts_when_all_ranks_are_done(
    keeper: CheckpointKeeper, models: ScriptedModels, store: CheckpointStore, tmp_path: Path
):
    pass_rates = PassRates({"p": 0.5})
    await keeper.save(RunState(step=1), IN_HAND, pass_rates)
    await models.asked.wait()
    assert models.urls == [store.url_of(1)]
    assert (store.latest(), models.noted) == (None, [])
    pass_rates.leave_out_above(0.0)  # what happens meanwhile is not in it
    models.is_done = True
    await keeper.settle()
    assert (store.latest(), models.noted) == (RunState(step=1), [1])
    assert store.read(1, PASS_RATES, PassRates.decode).left_out == frozenset()
    assert store.read(1, "rollouts/groups.json", bytes) == b'[{"number": 3}]'
    assert list((tmp_path / "in_hand").iterdir()) == []
    assert set(keeper.metrics()) == {"time/checkpoint_blocking_s", "time/checkpoint_s"}
    assert keeper.metrics() == {}


async def test_a_failure_to_write_is_raised_at_the_next_checkpoint(
    keeper: CheckpointKeeper, models: ScriptedModels, store: CheckpointStore
):
    models.is_done = True
    await keeper.save(RunState(step=1), IN_HAND, PassRates())
    await keeper.settle()
    models.error = CheckpointError("checkpoint step_000002/actor: not written: no space left on device")
    await keeper.save(RunState(step=2), IN_HAND, PassRates())
    with pytest.raises(CheckpointError, match="no space left"):
        await keeper.save(RunState(step=3), IN_HAND, PassRates())
    assert store.latest() == RunState(step=1)
    assert models.urls == [store.url_of(1), store.url_of(2)]


async def test_a_failure_to_write_is_logged_at_once_and_raised_at_the_next_step(
    keeper: CheckpointKeeper, models: ScriptedModels, caplog: pytest.LogCaptureFixture
):
    models.error = CheckpointError("checkpoint step_000002/actor: not written: [Errno 28] No space left on device")
    await keeper.save(RunState(step=2), IN_HAND, PassRates())
    await models.asked.wait()  # and the error comes in the same turn of the loop
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "checkpoint of step 2: not written; there is no space left where it is written" in caplog.text
    with pytest.raises(CheckpointError, match="No space left"):
        await keeper.raise_failure()
    await keeper.raise_failure()  # once is enough


FULL = "checkpoint of step 2: not written; there is no space left where it is written: CheckpointError: "


async def test_a_full_disk_of_the_driver_is_named(
    models: ScriptedModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    models.is_done = True
    with small_disk(tmp_path / "disk") as disk:
        keeper = CheckpointKeeper(
            CheckpointStore(str(disk)),
            CheckpointSection(),
            models,
            note=models.noted.append,
            scratch=tmp_path / "in_hand",
        )
        await keeper.save(RunState(step=2), IN_HAND, PassRates())
        fill(disk, leave_bytes=0)
        with pytest.raises(CheckpointError, match=r"cannot be used: OSError: .*No space left on device"):
            await keeper.settle()
    assert FULL in caplog.text


@pytest.mark.parametrize("leave_bytes", [4096, 65536, 262144])
async def test_a_full_disk_of_the_ranks_is_named_and_the_checkpoint_before_it_counts(
    one_rank: OneRank, tmp_path: Path, caplog: pytest.LogCaptureFixture, leave_bytes: int
):
    """Torch removes what it wrote of a file, so that there is room again when it tells; and its words are often others."""
    with small_disk(tmp_path / "disk") as disk:
        store = CheckpointStore(str(disk))
        keeper = CheckpointKeeper(
            store, CheckpointSection(), one_rank, note=lambda step: None, scratch=tmp_path / "in_hand"
        )
        await keeper.save(RunState(step=1), IN_HAND, PassRates())
        await keeper.settle()
        caplog.clear()
        url = store.begin(2)  # the folder and the file that the driver makes there have their room
        fill(disk, leave_bytes=leave_bytes)
        await keeper.save(RunState(step=2), IN_HAND, PassRates())
        with pytest.raises(CheckpointError, match=r"actor: not written: OSError: .* No space left on device") as raised:
            await keeper.settle()
        assert url in str(raised.value)
        assert store.latest() == RunState(step=1)
    assert FULL in caplog.text


async def test_a_step_neither_waits_for_what_is_being_written_nor_fails_by_what_is_whole(
    keeper: CheckpointKeeper, models: ScriptedModels, store: CheckpointStore
):
    await keeper.raise_failure()
    await keeper.save(RunState(step=1), IN_HAND, PassRates())
    await models.asked.wait()
    await asyncio.wait_for(keeper.raise_failure(), timeout=5)
    models.is_done = True
    await keeper.settle()
    await keeper.raise_failure()
    assert store.latest() == RunState(step=1)


async def test_ranks_that_died_are_raised_at_the_next_step_as_what_sends_the_run_back(
    keeper: CheckpointKeeper, models: ScriptedModels
):
    models.error = ModelDiedError("actor 1: its process died")
    await keeper.save(RunState(step=1), IN_HAND, PassRates())
    await models.asked.wait()  # and the error comes in the same turn of the loop
    with pytest.raises(ModelDiedError, match="actor 1"):
        await keeper.raise_failure()


async def test_ranks_that_died_while_they_wrote_send_the_run_back_even_after_its_last_update(
    keeper: CheckpointKeeper, models: ScriptedModels, store: CheckpointStore, caplog: pytest.LogCaptureFixture
):
    models.error = ModelDiedError("actor 1: its process died")
    await keeper.save(RunState(step=1), IN_HAND, PassRates())
    with pytest.raises(ModelDiedError, match="actor 1"):
        await keeper.settle()
    assert store.latest() is None
    assert "checkpoint of step 1: not written: ModelDiedError: actor 1: its process died" in caplog.text


async def test_a_run_that_ends_in_the_middle_of_one_leaves_none_that_counts(
    keeper: CheckpointKeeper, models: ScriptedModels, store: CheckpointStore
):
    await keeper.save(RunState(step=1), IN_HAND, PassRates())
    await models.asked.wait()
    await keeper.aclose()
    models.is_done = True
    assert store.latest() is None


async def test_what_is_about_to_count_is_not_given_up_half_way(
    keeper: CheckpointKeeper, models: ScriptedModels, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    begun, may_go_on, commit = threading.Event(), threading.Event(), store.commit

    def slow_commit(state: RunState) -> None:
        begun.set()
        may_go_on.wait()
        commit(state)

    monkeypatch.setattr(store, "commit", slow_commit)
    models.is_done = True
    await keeper.save(RunState(step=1), IN_HAND, PassRates())
    await asyncio.to_thread(begun.wait)
    closing = asyncio.create_task(keeper.aclose())
    closed_early, _ = await asyncio.wait([closing], timeout=0.2)
    may_go_on.set()
    await closing
    assert not closed_early
    assert store.latest() == RunState(step=1)


async def test_only_what_the_config_asks_for_is_kept(models: ScriptedModels, store: CheckpointStore, tmp_path: Path):
    models.is_done = True
    config = CheckpointSection(keep_last=1, keep_best=1)
    keeper = CheckpointKeeper(store, config, models, note=models.noted.append, scratch=tmp_path, pinned={2})
    for step, accuracy in enumerate([0.9, 0.2, 0.3, 0.4], start=1):
        await keeper.save(RunState(step=step, accuracy=accuracy), IN_HAND, PassRates())
    await keeper.settle()
    assert [state.step for state in store.states()] == [1, 2, 4]
