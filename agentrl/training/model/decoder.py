"""Loading of Hugging Face models for packed training, and export as a folder that others can load.

Models stay in evaluation mode: training compares log-probabilities of two passes over the same tokens, which dropout would
change.
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
from agentrl.models.loading import load_causal_lm, refuse_unloadable, require_weights
from agentrl.training.attention.packed import packed_attention
from agentrl.training.model.flops import ModelShape

if TYPE_CHECKING:
    from agentrl.config.schema.run import ModelSection

_ATTENTION = "agentrl_packed"
CLASSIFIER_KEY = "reward.model.path"
"""Config key of the only model that is a sequence classifier."""
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

    `random` weights need only a `config.json`, and are drawn from torch's global generator. With `needs_head` the files must
    hold more than the backbone. `key` is the config key that names the folder.

    Raises:
        ConfigError: the model does not exist, is no causal LM, lacks weights, or has layers that packing would break.
    """
    AttentionInterface.register(_ATTENTION, packed_attention)
    if initial_weights == "random":
        with refuse_unloadable("a causal LM", model.path, key=key, attention=_ATTENTION):
            built = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(model.path, trust_remote_code=False),
                dtype=torch.float32,
                attn_implementation=_ATTENTION,
            )
    else:
        built = load_causal_lm(model.path, key=key, dtype=torch.float32, attention=_ATTENTION, needs_head=needs_head)
    _require_attention_only(built, f"`{key}`: {model.path}")
    return built.eval()


def outline_model(path: str, *, key: str = "model.path") -> PreTrainedModel:
    """Build the model of `load_model`, or of `load_classifier` for its key, without memory for its weights (device `meta`)."""
    AttentionInterface.register(_ATTENTION, packed_attention)
    kind: Any = AutoModelForSequenceClassification if key == CLASSIFIER_KEY else AutoModelForCausalLM
    what = "a sequence classifier" if key == CLASSIFIER_KEY else "a causal LM"
    with refuse_unloadable(what, path, key=key, attention=_ATTENTION), torch.device("meta"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        built = kind.from_config(config, dtype=torch.float32, attn_implementation=_ATTENTION)
    with contextlib.suppress(OSError):  # optional
        built.generation_config = GenerationConfig.from_pretrained(path)
    _require_attention_only(built, f"`{key}`: {path}")
    return built.eval()


def _require_attention_only(built: PreTrainedModel, where: str) -> None:
    """Refuse layers with a state along the row, which would leak between packed sequences, and unsupported attention."""
    kinds = set(getattr(built.config.get_text_config(), "layer_types", None) or ()) - _ATTENTION_LAYERS
    if kinds or getattr(built, "_is_stateful", False):
        names = ", ".join(f"`{kind}`" for kind in sorted(kinds)) or "a recurrent state"
        raise ConfigError(
            f"{where} ({built.config.model_type}) has layers of {names}, which see across the sequences of "
            "a packed row; use a model whose layers are full or sliding attention"
        )
    if getattr(built.config.get_text_config(), "attn_logit_softcapping", None):
        raise ConfigError(
            f"{where} needs capped scores (`attn_logit_softcapping`), which packed training does not compute; use another "
            "architecture"
        )


def load_classifier(path: str, *, num_labels: int | None = None) -> PreTrainedModel:
    """Build the sequence classifier of a folder as `load_model` builds the policy.

    With `num_labels`, a causal LM gets a new classifier of as many outputs, drawn from torch's global generator.

    Raises:
        ConfigError: the model does not exist, its architecture has no classifier, weights are missing (unless the classifier is
            new), or packing would break its layers.
    """
    AttentionInterface.register(_ATTENTION, packed_attention)
    labels = {} if num_labels is None else {"num_labels": num_labels}
    with refuse_unloadable("a sequence classifier", path, key=CLASSIFIER_KEY, attention=_ATTENTION):
        built, loading_info = AutoModelForSequenceClassification.from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation=_ATTENTION,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **labels,
        )
    # Even with a new head the backbone must be complete.
    where = f"`{CLASSIFIER_KEY}`: {path}"
    require_weights(
        built, loading_info, f"{where} is no trained sequence classifier: it", needs_head=num_labels is None
    )
    _require_attention_only(built, where)
    return built.eval()


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return a model's blocks, in order."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def compile_layers(model: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each block except its attention, which calls custom kernels."""
    AttentionInterface.register(_ATTENTION, torch.compiler.disable(packed_attention))
    for layer in decoder_layers(model):
        # Rows differ in length, and one program must serve all.
        layer.forward = torch.compile(layer.forward, backend=backend, dynamic=True)


def recompute_activations(model: nn.Module) -> None:
    """Keep only the input of each block, and recompute the rest in the backward pass."""
    for layer in decoder_layers(model):
        # No block draws random numbers.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def shape_of(model: nn.Module) -> ModelShape:
    """Return the sizes that determine a model's amount of computation."""
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
    """Return the number of a block's weights that a token uses: of its experts only those that the router chooses."""
    return sum(
        # Experts are stacked along the first dimension.
        weight.numel() // weight.shape[0] * config.num_experts_per_tok if ".experts." in f".{name}" else weight.numel()
        for name, weight in layer.named_parameters()
    )


def export_model(model: nn.Module, weights: Mapping[str, Tensor], source: "ModelSection", path: str) -> None:
    """Write `weights` as a Hugging Face folder that `AutoModelForCausalLM` and `AutoTokenizer` load.

    Of `model` only the configuration is read. `weights` are full tensors; either name of tied ones is enough. `source` gives
    the declared type, the tokenizer files and the chat template.
    """
    assert isinstance(model, PreTrainedModel)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=getattr(torch, source.dtype))
    shell.generation_config = model.generation_config
    shell.save_pretrained(folder, state_dict=dict(weights))
    apply_umask(folder)
    origin = Path(source.path)
    if not origin.is_dir():
        origin = Path(snapshot_download(source.path, allow_patterns=list(_TOKENIZER_FILES)))
    for pattern in _TOKENIZER_FILES:
        for file in origin.glob(pattern):
            target = folder / file.relative_to(origin)
            if file.is_file() and file.resolve() != target.resolve():
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)  # gets the umask's permissions
    if source.chat_template is not None:
        template = read_chat_template(source, AutoTokenizer.from_pretrained(folder))
        _replace_chat_template(folder, str(template))


def _replace_chat_template(folder: Path, template: str) -> None:
    for file in [*folder.glob("chat_template*"), *folder.glob("additional_chat_templates/*")]:
        file.unlink()
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    file = folder / "tokenizer_config.json"
    if file.is_file():
        settings = json.loads(file.read_text())
        settings.pop("chat_template", None)
        file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def apply_umask(folder: Path) -> None:
    """Give the weights in `folder` the permissions of any new file there; safetensors lets only the owner read them."""
    probe = folder / ".permissions_probe"
    probe.touch()  # the umask cannot be read without changing it for all threads, and a disk may have rules of its own
    for file in folder.glob("*.safetensors"):
        shutil.copymode(probe, file)
    probe.unlink()
