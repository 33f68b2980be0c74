"""The policy as a Hugging Face model: loaded for packed training, and written back as a folder that others can load.

The only file of this room that knows transformers. Models stay in evaluation mode: reinforcement learning compares
log-probabilities of two passes over the same tokens, which dropout would make differ.
"""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.errors import ConfigError
from agentrl.training.packed_attention import packed_attention

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection

_ATTENTION = "agentrl_packed"
_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
)


def load_model(
    model: "ModelSection", *, initial_weights: Literal["pretrained", "random"] = "pretrained"
) -> PreTrainedModel:
    """Build the model of `model.path` on the CPU, with float32 weights and packed attention.

    Args:
        model: where it is; its `dtype` is the type of the computation, which `Parallel.shard` takes care of.
        initial_weights: `random` needs only a `config.json`, and draws from torch's global generator.

    Raises:
        ConfigError: it is not there, or no causal LM.
    """
    AttentionInterface.register(_ATTENTION, packed_attention)
    try:
        if initial_weights == "random":
            config = AutoConfig.from_pretrained(model.path)
            built = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=_ATTENTION)
        else:
            built = AutoModelForCausalLM.from_pretrained(
                model.path, dtype=torch.float32, attn_implementation=_ATTENTION
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"`model.path`: cannot load a causal LM from {model.path}: {error}") from error
    return built.eval()


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that are sharded one by one."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def export_model(model: nn.Module, weights: Mapping[str, Tensor], source: "ModelSection", path: str) -> None:
    """Write `weights` as a Hugging Face folder that `AutoModelForCausalLM` and `AutoTokenizer` load.

    Args:
        model: gives the configuration; its own weights may be sharded and are not read.
        weights: full tensors by name; of tied ones either name is enough.
        source: gives the type that the folder declares, and the tokenizer files that travel along.
        path: folder to write, made if absent.
    """
    assert isinstance(model, PreTrainedModel)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=getattr(torch, source.dtype))
    shell.generation_config = model.generation_config
    shell.save_pretrained(folder, state_dict=dict(weights))
    origin = Path(source.path)
    if not origin.is_dir():
        origin = Path(snapshot_download(source.path, allow_patterns=list(_TOKENIZER_FILES)))
    for pattern in _TOKENIZER_FILES:
        for file in origin.glob(pattern):
            if file.is_file() and file.resolve() != (folder / file.name).resolve():
                shutil.copy2(file, folder / file.name)
