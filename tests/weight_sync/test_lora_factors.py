"""Received factors are merged into the weights of the model's files, and other weights stay as they are."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from agentrl.engine.embedded.resident_weights import ResidentWeights, check_weights
from agentrl.errors import EngineError
from agentrl.weight_sync.base import LoraBase, TensorSpec, Transport, WeightSource
from agentrl.weight_sync.lora_factors import whole_model
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher

SHAPES = {"first.weight": (4, 3), "second.weight": (2, 4)}
FACTORS = {"first.lora_A": torch.randn(2, 3), "first.lora_B": torch.randn(4, 2)}


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Tensor]:
    tensors = {name: torch.randn(shape).bfloat16() for name, shape in SHAPES.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return tensors


def test_the_product_is_added_to_the_weight_and_scaled(weights: dict[str, Tensor], tmp_path: Path):
    base = LoraBase(folder=str(tmp_path), scale=0.5)
    expected = weights["first.weight"].float() + 0.5 * FACTORS["first.lora_B"] @ FACTORS["first.lora_A"]
    whole = dict(whole_model(FACTORS.items(), base))
    assert whole.keys() == weights.keys()
    torch.testing.assert_close(whole["first.weight"], expected)
    assert torch.equal(whole["second.weight"], weights["second.weight"])


def test_an_engine_that_dropped_its_weights_loads_the_same_as_one_that_kept_them(
    weights: dict[str, Tensor], tmp_path: Path
):
    """The files are bfloat16, and the engine computes in float32."""
    layers = {name.removesuffix(".weight"): nn.Linear(shape[1], shape[0], bias=False) for name, shape in SHAPES.items()}
    model, publisher = nn.ModuleDict(layers).requires_grad_(False), SharedMemoryPublisher()
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    small = {name: factor * 1e-3 for name, factor in FACTORS.items()}
    source = replace(publisher.publish(small.items()), lora=LoraBase(folder=str(tmp_path), scale=0.5))
    engine = ResidentWeights(model, "cpu")
    engine.load(source)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine.drop()
    engine.load(source)
    publisher.close()
    assert not torch.equal(kept["first.weight"], weights["first.weight"].float())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name]), name


def test_factors_may_be_views_of_a_reused_buffer(weights: dict[str, Tensor], tmp_path: Path):
    def reused_buffer() -> Iterator[tuple[str, Tensor]]:
        buffer = torch.empty(8)
        for name, factor in FACTORS.items():
            yield name, buffer[: factor.numel()].view(factor.shape).copy_(factor)

    base = LoraBase(folder=str(tmp_path), scale=0.5)
    merged, expected = dict(whole_model(reused_buffer(), base)), dict(whole_model(FACTORS.items(), base))
    assert torch.equal(merged["first.weight"], expected["first.weight"])


def test_factors_of_no_weight_in_the_files_are_refused(weights: dict[str, Tensor], tmp_path: Path):
    other = {name.replace("first", "third"): factor for name, factor in FACTORS.items()}
    with pytest.raises(EngineError, match=r"lacks weights that LoRA changes: third\.weight"):
        next(whole_model(other.items(), LoraBase(folder=str(tmp_path), scale=0.5)))


def offered(**shapes: tuple[int, ...]) -> WeightSource:
    specs = tuple(
        TensorSpec(name=name.replace("__", "."), shape=shape, dtype="float32", offset_bytes=0)
        for name, shape in shapes.items()
    )
    lora = LoraBase(folder="base", scale=1.0)
    return WeightSource(transport=Transport.SHARED_MEMORY, address="", size_bytes=0, tensors=specs, lora=lora)


def test_factors_of_other_weights_are_refused():
    own = {name: torch.empty(shape, device="meta") for name, shape in SHAPES.items()}
    check_weights(own, offered(first__lora_A=(2, 3), first__lora_B=(4, 2)))
    with pytest.raises(EngineError, match=r"`first\.weight` has shape \[5, 3\], not \[4, 3\]"):
        check_weights(own, offered(first__lora_A=(2, 3), first__lora_B=(5, 2)))
    with pytest.raises(EngineError, match=r"unknown `third\.weight`"):
        check_weights(own, offered(third__lora_A=(2, 3), third__lora_B=(4, 2)))
