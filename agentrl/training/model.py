"""The policy as a Hugging Face model: loaded for packed training, and written back as a folder that others can load.

The only file of this room that loads and writes models of transformers. They stay in evaluation mode: reinforcement learning
compares log-probabilities of two passes over the same tokens, which dropout would make differ.
"""

import contextlib
import copy
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from agentrl.config.chat_template import read_chat_template
from agentrl.errors import ConfigError
from agentrl.training.absent_weights import require_weights
from agentrl.training.attention_support import unsupported_attention
from agentrl.training.causal_lm import load_causal_lm
from agentrl.training.loading_errors import telling_why
from agentrl.training.model_flops import ModelShape
from agentrl.training.packed_attention import packed_attention

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection

_ATTENTION = "agentrl_packed"
_CLASSIFIER_KEY = "reward.model.path"
_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "additional_chat_templates/*",
)


def load_model(
    model: "ModelSection",
    *,
    initial_weights: Literal["pretrained", "random"] = "pretrained",
    needs_head: bool = True,
    key: str = "model.path",
) -> PreTrainedModel:
    """Build the model of `model.path` on the CPU, with float32 weights and packed attention.

    Args:
        model: where it is; its `dtype` is the type of the computation, which `Parallel.shard` takes care of.
        initial_weights: `random` needs only a `config.json`, and draws from torch's global generator.
        needs_head: whether the files must hold more than the backbone.
        key: of the config that names the folder.

    Raises:
        ConfigError: it is not there, no causal LM, lacks weights, or has layers that packing would break.
    """
    AttentionInterface.register(_ATTENTION, packed_attention)
    if initial_weights == "random":
        with telling_why("a causal LM", model.path, key=key, attention=_ATTENTION):
            built = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(model.path, trust_remote_code=False),
                dtype=torch.float32,
                attn_implementation=_ATTENTION,
            )
    else:
        built = load_causal_lm(model.path, key=key, dtype=torch.float32, attention=_ATTENTION, needs_head=needs_head)
    _require_attention_only(built, f"`{key}`: {model.path}")
    return built.eval()


def outline_model(model: "ModelSection", *, key: str = "model.path") -> PreTrainedModel:
    """Build what `load_model` would, with weights that have a shape and no memory (device `meta`).

    Raises:
        ConfigError: it is not there, no causal LM, or has layers that packing would break.
    """
    with telling_why("a causal LM", model.path, key=key, attention=_ATTENTION):
        built = _outlined(AutoModelForCausalLM, model.path)
    with contextlib.suppress(OSError):  # a folder need not have any
        built.generation_config = GenerationConfig.from_pretrained(model.path)
    _require_attention_only(built, f"`{key}`: {model.path}")
    return built.eval()


def _outlined(kind: Any, path: str) -> Any:
    AttentionInterface.register(_ATTENTION, packed_attention)
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    with torch.device("meta"):
        return kind.from_config(config, dtype=torch.float32, attn_implementation=_ATTENTION)


def _require_attention_only(built: PreTrainedModel, where: str) -> None:
    """Refuse layers that carry a state along the row: in a packed row, a sequence would go on from its neighbour's.

    Attention of a kind that packing does not compute is refused as well.

    Raises:
        ConfigError: there are such layers.
    """
    kinds = set(getattr(built.config.get_text_config(), "layer_types", None) or ()) - _ATTENTION_LAYERS
    if kinds or getattr(built, "_is_stateful", False):
        found = ", ".join(f"`{kind}`" for kind in sorted(kinds)) or "a recurrent state"
        raise ConfigError(
            f"{where} ({built.config.model_type}) has layers of {found}, which see across the sequences of "
            "a packed row; use a model whose layers are full or sliding attention"
        )
    missing = unsupported_attention(built.config.get_text_config().to_dict())
    if missing is not None:
        raise ConfigError(f"{where} needs {missing}, which packed training does not compute; use another architecture")


def load_classifier(path: str, *, num_labels: int | None = None) -> PreTrainedModel:
    """Build the sequence classifier of a folder as `load_model` builds the policy.

    Args:
        path: the folder, or hub name. One of a causal LM will do, too: the classifier on top of it is then new, drawn from
            torch's global generator.
        num_labels: outputs of a new one; absent: those that the folder declares.

    Raises:
        ConfigError: it is not there, its architecture has no such form, it lacks weights of its own where none are to be new,
            or packing would break its layers.
    """
    AttentionInterface.register(_ATTENTION, packed_attention)
    labels = {} if num_labels is None else {"num_labels": num_labels}
    with telling_why("a sequence classifier", path, key=_CLASSIFIER_KEY, attention=_ATTENTION):
        built, found = AutoModelForSequenceClassification.from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation=_ATTENTION,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **labels,
        )
    # A new head is for a policy or a critic, whose backbone is to be there all the same.
    where = f"`{_CLASSIFIER_KEY}`: {path}"
    require_weights(built, found, f"{where} is no trained sequence classifier: it", needs_head=num_labels is None)
    _require_attention_only(built, where)
    return built.eval()


def outline_classifier(path: str) -> PreTrainedModel:
    """Build what `load_classifier` would, with weights that have a shape and no memory.

    Raises:
        ConfigError: it is not there, its architecture has no such form, or packing would break its layers.
    """
    with telling_why("a sequence classifier", path, key=_CLASSIFIER_KEY, attention=_ATTENTION):
        built = _outlined(AutoModelForSequenceClassification, path)
    _require_attention_only(built, f"`{_CLASSIFIER_KEY}`: {path}")
    return built.eval()


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that are sharded one by one."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def compile_layers(model: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile what each block computes but its attention, which calls kernels of its own."""
    AttentionInterface.register(_ATTENTION, torch.compiler.disable(packed_attention))
    for layer in decoder_layers(model):
        # Rows differ in length; one program is to serve all.
        layer.forward = torch.compile(layer.forward, backend=backend, dynamic=True)


def recompute_activations(model: nn.Module) -> None:
    """Keep of each block only what goes in, and compute the rest again in the backward pass: the gradients are the same."""
    for layer in decoder_layers(model):
        # Nothing here draws random numbers, whose state would have to be kept as well.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def shape_of(model: nn.Module) -> ModelShape:
    """Return what decides how much a model computes."""
    assert isinstance(model, PreTrainedModel)
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(
        layer_weights=sum(_used_weights(layer, config) for layer in decoder_layers(model)),
        head_weights=config.vocab_size * config.hidden_size,
        num_layers=config.num_hidden_layers,
        heads_width=config.num_attention_heads * head_dim,
    )


def _used_weights(layer: nn.Module, config: Any) -> int:
    """Return how many weights of a block a token goes through: of its experts, so many as the router chooses."""
    used = 0
    for name, weight in layer.named_parameters():
        is_of_experts = ".experts." in f".{name}"  # whose first dimension they are
        used += weight.numel() // weight.shape[0] * config.num_experts_per_tok if is_of_experts else weight.numel()
    return used


def export_model(model: nn.Module, weights: Mapping[str, Tensor], source: "ModelSection", path: str) -> None:
    """Write `weights` as a Hugging Face folder that `AutoModelForCausalLM` and `AutoTokenizer` load.

    Args:
        model: gives the configuration; its own weights may be sharded and are not read.
        weights: full tensors by name; of tied ones either name is enough.
        source: gives the type that the folder declares, the tokenizer files that travel along, and the chat template.
        path: folder to write, made if absent.
    """
    assert isinstance(model, PreTrainedModel)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=getattr(torch, source.dtype))
    shell.generation_config = model.generation_config
    shell.save_pretrained(folder, state_dict=dict(weights))
    give_usual_rights(folder)
    origin = Path(source.path)
    if not origin.is_dir():
        origin = Path(snapshot_download(source.path, allow_patterns=list(_TOKENIZER_FILES)))
    for pattern in _TOKENIZER_FILES:
        for file in origin.glob(pattern):
            target = folder / file.relative_to(origin)
            if file.is_file() and file.resolve() != target.resolve():
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)  # whose rights are the usual ones too
    if source.chat_template is not None:
        template = read_chat_template(source, AutoTokenizer.from_pretrained(folder))
        _replace_chat_template(folder, str(template))


def _replace_chat_template(folder: Path, template: str) -> None:
    """Leave `template` as the only one in the folder."""
    for file in [*folder.glob("chat_template*"), *folder.glob("additional_chat_templates/*")]:
        file.unlink()
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    file = folder / "tokenizer_config.json"
    if file.is_file():
        settings = json.loads(file.read_text())
        settings.pop("chat_template", None)
        file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def give_usual_rights(folder: Path) -> None:
    """Give the weights in `folder` the rights of any file that is made there: safetensors shuts out all but their owner."""
    usual = folder / ".usual_rights"
    usual.touch()  # as the umask can be asked for only by changing it, for all threads, and a disk may have rules of its own
    for file in folder.glob("*.safetensors"):
        shutil.copymode(usual, file)
    usual.unlink()
