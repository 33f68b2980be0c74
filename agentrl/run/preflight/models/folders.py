"""Checks of the models that a run names: can each be what it is named for, as far as its folder tells."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from agentrl.cluster.placement.gpus import gpus_here
from agentrl.config.schema.algorithm import LoraSection
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.attention_support import TESTED, exact_positions, has_sinks, num_positions, unsupported_attention
from agentrl.models.tokenizer import read_model_file
from agentrl.models.weight_files import tensor_shapes
from agentrl.run.preflight.models.hub import require_hub_model
from agentrl.run.preflight.models.settings import check_model_settings, check_token_ids

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


_AROUND = frozenset({"model.embed_tokens.weight", "model.norm.weight"})


_HEADS = frozenset({"lm_head.weight", "score.weight"})


def is_plainly_whole(names: Iterable[str], settings: Mapping[str, Any], *, needs_head: bool) -> bool:
    """Return True if all layers have the same weights and the weights around them are complete; False means unknown.

    A kind of weight that all layers lack is not detected here, but when the model is loaded.

    Args:
        names: names of the weights.
        settings: contents of `config.json`.
        needs_head: whether the model needs a language-model head.
    """
    layers: dict[int, set[str]] = defaultdict(set)
    around: set[str] = set()
    for name in names:
        if match := _LAYER.fullmatch(name):
            layers[int(match[1])].add(match[2])
        else:
            around.add(name)
    has_head = not needs_head or "lm_head.weight" in around or settings.get("tie_word_embeddings") is True
    all_there = set(layers) == set(range(settings.get("num_hidden_layers", 0))) and around - _HEADS == _AROUND
    return has_head and all_there and all(kinds == layers[0] for kinds in layers.values())


_NUMBERS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names under which architectures store the number of experts of a layer."""


def check_models(config: RunConfig) -> None:
    """Refuse models of a training run that are not there, or that cannot be trained or asked.

    Raises:
        ConfigError: which key, and what is wrong.
    """
    check_model_path(config.model.path)
    for key, path in {"critic.path": config.critic.path, "reward.model.path": config.reward.model.path}.items():
        if path is not None:
            check_model_path(path, key=key)
            _check_tokens(path, config.model.path, key=key)
    for key, path in trained_or_asked(config).items():
        _check_attention(config, path, key=key)
        _check_context(config, path, key=key)
    _check_experts(config)


def trained_or_asked(config: RunConfig) -> dict[str, str]:
    """Return the folders (or hub names) of all models of a training run, by the key that names each."""
    paths = {
        "model.path": config.model.path,
        "critic.path": config.critic.path,
        "reward.model.path": config.reward.model.path,
    }
    return {key: path for key, path in paths.items() if path is not None}


def check_model_path(path: str, *, key: str = "model.path") -> None:
    """Refuse a model folder that is not there, and a model on a hub that cannot be fetched.

    Raises:
        ConfigError: `path` is no folder with a `config.json` and a `tokenizer.json`, and no model on a hub either; or the
            first has values of a wrong kind.
    """
    folder = Path(path)
    if os.path.isdir(folder):
        missing = [name for name in ("config.json", "tokenizer.json") if not os.path.isfile(folder / name)]
        if missing:
            raise ConfigError(f"{key}: {path} has no {' and no '.join(missing)}. Name a Hugging Face model folder.")
        for name in ("config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json"):
            if os.path.isfile(folder / name):
                _check_object(folder / name, key=key)
        check_model_settings(read_model_file(path, "config.json"), where=f"{key}: {folder / 'config.json'}")
        file = "generation_config.json"
        check_token_ids(read_model_file(path, file), where=f"{key}: {folder / file}")
    elif folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ConfigError(f"{key}: {path}: no such folder. Name a Hugging Face model folder, or a model on a hub.")
    else:
        require_hub_model(path, key=key)


def check_evaluated(config: RunConfig) -> None:
    """Refuse a policy that the embedded engine of an evaluation could not load, or whose positions end the engine.

    Raises:
        ConfigError: `model.path`, and what is wrong.
    """
    path = config.model.path
    _check_context(replace(config, stages=[]), path, key="model.path")
    check_weights_of(path)


def check_weights(config: RunConfig, *, load: bool = False) -> None:
    """Refuse model folders without weights, without some, or with others than a run needs.

    Args:
        config: of the run.
        load: whether to have transformers load each folder, without values, even where all names are there.

    Raises:
        ConfigError: which key, and which files or weights are wanted.
    """
    check_lora(config.actor.lora, config.model.path, key="actor.lora")
    _check_classifier(config)
    for key, path in trained_or_asked(config).items():
        check_weights_of(path, key=key, load=load)


def check_weights_of(path: str, *, key: str = "model.path", load: bool = False) -> None:
    """Refuse a model folder without weights, or without some of them; see `check_weights`.

    Of files that are no safetensors, and of a model on a hub, it is left to the workers whether they hold all.
    """
    folder = Path(path)
    if not folder.is_dir():
        return
    if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        raise ConfigError(
            f"{key}: {path} has no weights, neither `*.safetensors` nor `*.bin`; fetch them, or name another folder"
        )
    shapes = read_shapes(path, key=key)
    if not shapes:
        return
    if load or not is_plainly_whole(shapes, language_settings(path) or {}, needs_head=key == "model.path"):
        # It imports torch and transformers, which takes seconds, and nothing else in a driver needs them.
        from agentrl.training.model.folder_trial import try_folder

        try_folder(path, shapes, key=key)


def check_lora(lora: LoraSection, path: str, *, key: str) -> None:
    """Refuse LoRA beside stacked experts, and layers for it that the files of the policy do not have.

    Raises:
        ConfigError: a key of the section, which the command calls `key`, and what is wrong.
    """
    if lora.rank and _has_experts(language_settings(path) or {}):
        raise ConfigError(
            f"{key}.rank: {path} is a mixture of experts, which LoRA does not adapt here; leave `{key}` out to train all "
            "of its weights"
        )
    if not (lora.rank and lora.target_modules):
        return
    modules = {name.removesuffix(".weight") for name in read_shapes(path, key="model.path")}
    # PEFT takes a name for that of a module, or for the end of one.
    for target in lora.target_modules:
        if modules and not any(f".{module}".endswith(f".{target}") for module in modules):
            ends = sorted({module.rpartition(".")[2] for module in modules if ".layers." in f".{module}"})
            raise ConfigError(
                f"{key}.target_modules: {path} has no `{target}`; its layers have {', '.join(ends)}. Leave "
                "the key out to adapt all of their linear ones"
            )


def _check_classifier(config: RunConfig) -> None:
    """Refuse a reward model whose files have no trained head of one label; a critic gets a new one."""
    path = config.reward.model.path
    shapes = {} if path is None else read_shapes(path, key="reward.model.path")
    if not shapes:
        return
    if (head := shapes.get("score.weight")) is None:
        raise ConfigError(
            f"reward.model.path: {path} is no trained sequence classifier: it has no weights `score.weight`, which would be "
            "random numbers. Name a folder that `AutoModelForSequenceClassification` has saved"
        )
    if head[0] != 1:
        raise ConfigError(
            f"reward.model.path: {path} has {head[0]} labels (the rows of `score.weight`), and must have one, the score; train "
            "it with `num_labels: 1`"
        )


def read_shapes(path: str, *, key: str) -> dict[str, list[int]]:
    """Return the shapes of all tensors in the safetensors files of a folder, by name; nothing where there are none.

    Raises:
        ConfigError: a file is missing or broken.
    """
    try:
        return tensor_shapes(Path(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{key}: {path}: its weights cannot be read: {error}; fetch them again") from error


def _check_object(file: Path, *, key: str) -> None:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{key}: {file} cannot be read as JSON: {error}; fetch it again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{key}: {file} holds a {type(content).__name__}, and must hold an object; fetch it again")


def language_settings(path: str) -> dict[str, Any] | None:
    """Return what the `config.json` of a folder, or of a model on a hub, says of its language model; None without one.

    Call `check_model_path` first: without a network the hub would be tried for a minute.
    """
    settings = read_model_file(path, "config.json")
    return settings.get("text_config", settings) or None


def _check_attention(config: RunConfig, path: str, *, key: str) -> None:
    """Refuse a model whose attention would end the first update, or the first completion."""
    settings, rollout = language_settings(path), config.rollout
    if settings is None:
        return
    missing = unsupported_attention(settings)
    if missing is not None:
        raise ConfigError(
            f"{key}: {path} needs {missing}, which packed training does not compute; use a model with plain attention, such as "
            "Qwen3 or Llama"
        )
    if has_sinks(settings) and key == "model.path" and rollout.engine == "transformers":
        raise ConfigError(
            f"{key}: {path} has attention sinks, which `rollout.engine: transformers` does not compute; use the engine `vllm`, "
            "or a model without them"
        )
    check_architecture(path, key=key)


def check_architecture(path: str, *, key: str = "model.path") -> None:
    """Refuse a model that packed training would compute wrongly: the one place where an architecture without tests is tried."""
    if read_model_file(path, "config.json").get("model_type") not in TESTED:
        # It imports torch and transformers, as above.
        from agentrl.training.model.folder_trial import try_architecture

        try_architecture(path, key=key)


def _check_experts(config: RunConfig) -> None:
    """Refuse router settings that the policy cannot have, and experts whose new weights would not reach vLLM on a CPU."""
    path = config.model.path
    if config.actor.router_aux_loss_coef:
        # It imports torch and transformers, as below.
        from agentrl.training.model.folder_trial import try_router_loss

        try_router_loss(path)
    if config.rollout.replay_routing:
        from agentrl.training.model.folder_trial import try_routing_replay

        try_routing_replay(path)
    # There vLLM computes with packed copies of the experts.
    if (
        config.rollout.engine == "vllm"
        and _has_experts(language_settings(path) or {})
        and not _engines_may_have_gpus(config)
    ):
        raise ConfigError(
            f"model.path: {path} is a mixture of experts, to which `rollout.engine: vllm` takes no new weights on a CPU; use "
            "the engine `transformers`, or GPUs for the engines"
        )


def _has_experts(settings: dict[str, Any]) -> bool:
    return any(settings.get(name) for name in _NUMBERS_OF_EXPERTS)


def _engines_may_have_gpus(config: RunConfig) -> bool:
    """Return False where the engines certainly compute on CPUs; a cluster that is not this machine may have GPUs."""
    cluster = config.cluster
    pool = next((pool for role, pool in cluster.roles.items() if "rollout" in role.split("_")), None)
    if pool is not None and cluster.pools[pool].num_gpus == 0:
        return False
    return cluster.address is not None or gpus_here() > 0


def _check_context(config: RunConfig, path: str, *, key: str) -> None:
    """Refuse trajectories that do not fit the positions of a model, where its configuration says how many it has."""
    settings, longest = language_settings(path) or {}, _longest(config)
    exact = exact_positions(settings)
    if exact is not None and longest > exact:
        raise ConfigError(
            f"{key}: {path} scales its positions by the length of a sequence beyond {exact} tokens (`longrope` or `dynamic` in "
            f"its `config.json`), and a trajectory may have {longest} (`data.max_prompt_tokens` + the longest "
            f"`max_response_tokens`), which is not computed for several sequences together; make these {exact} together, or "
            "use a model with `yarn` or no scaling"
        )
    positions = num_positions(settings)
    if positions is not None and longest > positions:
        raise ConfigError(
            f"{key}: {path} has {positions} positions (`max_position_embeddings` in its `config.json`), and "
            f"a trajectory may have {longest} tokens (`data.max_prompt_tokens` + the longest `max_response_tokens` of the "
            "run and its `stages`); lower these, or use a model with a longer context"
        )


def _longest(config: RunConfig) -> int:
    """Return the tokens that a trajectory may have, its prompt too, in any stage."""
    own = config.rollout.max_response_tokens
    lengths = [own if stage.max_response_tokens is None else stage.max_response_tokens for stage in config.stages]
    return config.data.max_prompt_tokens + max(lengths or [own])


def _check_tokens(path: str, policy: str, *, key: str) -> None:
    """Refuse a model that reads a token of the policy as another one.

    It may have tokens of its own, which the policy never writes, and another one to fill rows with: rows are packed.
    """
    known, written, padding = _tokens_by_id(path), _tokens_by_id(policy), _padding(policy)
    if known is None or written is None:
        return
    differs = next((id_ for id_, token in written.items() if known.get(id_) != token and token != padding), None)
    if differs is not None:
        token_in_model = f"`{known[differs]}`" if differs in known else "none of its tokens"
        raise ConfigError(
            f"{key}: {path} has another vocabulary than `model.path` ({policy}), whose token ids it is to read: {differs} is "
            f"{token_in_model}, and `{written[differs]}` in the policy; name a model with the same tokenizer"
        )


def _padding(path: str) -> str | None:
    """Return the token that does nothing but fill up rows, where the tokenizer of a folder names one."""
    file = Path(path, "tokenizer_config.json")
    if not file.is_file():
        return None
    _check_object(file, key="model.path")
    settings = json.loads(file.read_text())
    named = {key: token.get("content") if isinstance(token, dict) else token for key, token in settings.items()}
    padding = named.get("pad_token")
    return None if padding in (named.get(key) for key in ("bos_token", "eos_token", "unk_token")) else padding


def _tokens_by_id(path: str) -> dict[int, str] | None:
    """Return the vocabulary of a folder, special tokens too; None of a model on a hub, which is not fetched for this."""
    file = Path(path, "tokenizer.json")
    if not file.is_file():
        return None
    described = json.loads(file.read_text())
    vocabulary = described.get("model", {}).get("vocab", {})
    # Some kinds (Unigram) have a list of tokens with their scores.
    plain = (
        vocabulary.items()
        if isinstance(vocabulary, dict)
        else ((entry[0], index) for index, entry in enumerate(vocabulary))
    )
    special = ((entry["content"], entry["id"]) for entry in described.get("added_tokens", []))
    return {token_id: token for tokens in (plain, special) for token, token_id in tokens}
