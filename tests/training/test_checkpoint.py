"""Background checkpoints of one rank, on disk and in a real object store."""

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

from agentrl.errors import CheckpointError, DamagedCheckpointError
from agentrl.training.checkpoint import CheckpointWriter, load_checkpoint, load_weights
from agentrl.training.parallel import Parallel
from tests.object_store import object_store
from tests.small_disk import fill, small_disk
from tests.training.training_cases import alone


@pytest.fixture
def parallel() -> Iterator[Parallel]:
    group = Parallel(alone())
    yield group
    group.close()


@pytest.fixture
def writer(parallel: Parallel) -> CheckpointWriter:
    return CheckpointWriter()


def trained(seed: int, *, steps: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        step(model, optimiser)
    return model, optimiser


def step(model: nn.Module, optimiser: torch.optim.Optimizer) -> float:
    loss = model(torch.rand(5, 4)).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return loss.item()


def test_a_checkpoint_has_the_state_at_its_start_while_training_goes_on(
    writer: CheckpointWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    may_write, write = threading.Event(), FsspecWriter.write_data

    def write_later(self, *arguments):
        assert may_write.wait(timeout=100)
        return write(self, *arguments)

    monkeypatch.setattr(FsspecWriter, "write_data", write_later)
    model, optimiser = trained(1)
    writer.begin(str(tmp_path / "a"), model, optimiser)
    losses = [step(model, optimiser) for _ in range(3)]
    assert not writer.is_done()
    assert not (tmp_path / "a" / ".metadata").exists()
    may_write.set()
    writer.wait()
    assert writer.is_done()

    restored, restored_optimiser = trained(2)
    load_checkpoint(str(tmp_path / "a"), restored, restored_optimiser)
    assert [step(restored, restored_optimiser) for _ in range(3)] == losses, (
        "weights, moments and generator are those at the start"
    )


def test_a_write_failure_is_raised_at_the_next_checkpoint_and_does_not_block_later_ones(
    writer: CheckpointWriter, tmp_path: Path
):
    (tmp_path / "file").write_text("in the way")
    model, optimiser = trained(1)
    writer.begin(str(tmp_path / "file" / "a"), model, optimiser)
    with pytest.raises(CheckpointError, match=r"file/a: not written: .*Not a directory"):
        writer.begin(str(tmp_path / "b"), model, optimiser)
    assert not (tmp_path / "b").exists()
    writer.begin(str(tmp_path / "c"), model, optimiser)
    writer.wait()
    load_checkpoint(str(tmp_path / "c"), model, optimiser)


def test_extra_state_is_restored(writer: CheckpointWriter, tmp_path: Path):
    model, optimiser = trained(1)
    writer.begin(str(tmp_path), model, optimiser, extra={"kl_coefficient": 0.125, "warmed_up_from": 85})
    writer.wait()
    assert load_checkpoint(str(tmp_path), model, optimiser) == {"kl_coefficient": 0.125, "warmed_up_from": 85}


def test_only_the_weights_are_loaded_into_another_model(writer: CheckpointWriter, tmp_path: Path):
    model, optimiser = trained(1)
    writer.begin(str(tmp_path), model, optimiser)
    writer.wait()
    other, _ = trained(2)
    load_weights(str(tmp_path), other)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_a_folder_without_a_checkpoint_is_named(parallel: Parallel, tmp_path: Path):
    model, optimiser = trained(1)
    with pytest.raises(CheckpointError, match=r"is damaged: `\.metadata` is missing"):
        load_checkpoint(str(tmp_path), model, optimiser)


def test_a_missing_part_is_named(writer: CheckpointWriter, tmp_path: Path):
    model, optimiser = trained(1)
    writer.begin(str(tmp_path), model, optimiser)
    writer.wait()
    next(tmp_path.glob("*.distcp")).unlink()
    with pytest.raises(
        DamagedCheckpointError, match=r"is damaged: `__0_0.distcp` is missing\. Remove the whole folder"
    ):
        load_checkpoint(str(tmp_path), model, optimiser)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeroed(content: bytes) -> bytes:
    """Zero the content, as a power failure may."""
    return bytes(len(content))


@pytest.mark.parametrize("damage", [cut, zeroed, lambda _: b""], ids=["cut", "zeroed", "empty"])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_damaged_file_is_named_with_the_way_out(
    writer: CheckpointWriter,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: Callable[[bytes], bytes],
):
    model, optimiser = trained(1)
    writer.begin(str(tmp_path), model, optimiser)
    writer.wait()
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    for load in (lambda: load_checkpoint(str(tmp_path), model, optimiser), lambda: load_weights(str(tmp_path), model)):
        with pytest.raises(DamagedCheckpointError) as raised:
            load()
        message = str(raised.value)
        assert message.startswith(f"checkpoint {tmp_path} is damaged: `{name}` cannot be read (")
        assert "Remove the whole folder of that step, and the run goes on from the one before it; if" in message
        assert "\n" not in message
        assert str(pickle.loads(pickle.dumps(raised.value))) == message
    assert not [record for record in caplog.records if record.exc_info], "torch prints no traceback"


def test_a_pickle_with_wrong_bytes_anywhere_is_damaged(writer: CheckpointWriter, tmp_path: Path):
    model, optimiser = trained(1)
    writer.begin(str(tmp_path), model, optimiser)
    writer.wait()
    file = tmp_path / ".metadata"
    content = file.read_bytes()
    for start in range(0, len(content), 97):
        file.write_bytes(content[:start] + b"\xaa" * 16 + content[start + 16 :])
        with pytest.raises(
            DamagedCheckpointError, match=r"`\.metadata` cannot be read \(.*\)\. Remove the whole folder"
        ):
            load_checkpoint(str(tmp_path), model, optimiser)


@pytest.mark.parametrize("other", [b"ctorch.distributed.checkpoint\nGone\n.", b"ctorch.gone\nMetadata\n."])
def test_an_unknown_class_is_reported_as_another_version_of_torch(parallel: Parallel, tmp_path: Path, other: bytes):
    model, _ = trained(1)
    (tmp_path / ".metadata").write_bytes(other)
    with pytest.raises(
        DamagedCheckpointError,
        match=r"is damaged, or was written by another version of torch \(try that one first\): `\.metadata` cannot be read \(",
    ):
        load_weights(str(tmp_path), model)


def test_a_file_that_cannot_be_opened_is_not_treated_as_damaged(writer: CheckpointWriter, tmp_path: Path):
    model, optimiser = trained(1)
    writer.begin(str(tmp_path), model, optimiser)
    writer.wait()
    for name in ("__0_0.distcp", ".metadata"):
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to(name)
        with pytest.raises(CheckpointError, match=r"cannot be read: OSError: .*symbolic links") as raised:
            load_weights(str(tmp_path), model)
        assert not isinstance(raised.value, DamagedCheckpointError)


@pytest.mark.parametrize("leave_bytes", [0, 4096, 16384, 65536, 262144])
def test_a_full_disk_is_named_wherever_the_write_fails(writer: CheckpointWriter, tmp_path: Path, leave_bytes: int):
    """Torch's own error names the full disk only in some of these cases; the state takes 600 kB."""
    model = nn.Linear(500, 100)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimiser.zero_grad()
    model(torch.rand(5, 500)).square().mean().backward()
    optimiser.step()
    with small_disk(tmp_path / "disk") as disk:
        fill(disk, leave_bytes=leave_bytes)
        writer.begin(str(disk / "a"), model, optimiser)
        with pytest.raises(
            CheckpointError, match=r"disk/a: not written: OSError: \[Errno 28\] No space left on device\. "
        ):
            writer.wait()
        (disk / "fill").unlink()
        writer.begin(str(disk / "b"), model, optimiser)
        writer.wait()
        load_checkpoint(str(disk / "b"), model, optimiser)


def test_checkpoints_work_in_an_object_store(writer: CheckpointWriter):
    with object_store() as bucket:
        model, optimiser = trained(1)
        writer.begin(f"{bucket}/run/step_000001/actor", model, optimiser, extra={"kl_coefficient": 0.5})
        losses = [step(model, optimiser) for _ in range(2)]
        writer.wait()
        restored, restored_optimiser = trained(2)
        extra = load_checkpoint(f"{bucket}/run/step_000001/actor", restored, restored_optimiser)
    assert extra == {"kl_coefficient": 0.5}
    assert [step(restored, restored_optimiser) for _ in range(2)] == losses


def test_writers_use_a_separate_process_group(writer: CheckpointWriter, tmp_path: Path):
    assert writer._group is not dist.group.WORLD
