"""Checks of the models that a run names, as far as their folders tell, before any process starts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.schema.algorithm import LoraSection
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.attention_support import TESTED, exact_positions, has_sinks, num_positions
from agentrl.models.tokenizer import light_tokenizer_class, load_tokenizer, read_model_file
from agentrl.models.weight_files import tensor_shapes

_NUMBERS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names under which architectures store the number of experts of a layer."""
_HUB_TIMEOUT_S = 5.0


def check_models(config: RunConfig) -> None:
    """Refuse models of a training run that do not exist, or that cannot be trained or asked.

    Raises:
        ConfigError: names the key and the problem.
    """
    for key, path in trained_or_asked(config).items():
        check_model_path(path, key=key)
        if key != "model.path":
            _check_tokens(path, config.model.path, key=key)
        _check_context(config, path, key=key)
        _check_heads(config, path, key=key)
    _check_policy(config)
    for key, path in trained_or_asked(config).items():
        check_architecture(path, key=key)


def trained_or_asked(config: RunConfig) -> dict[str, str]:
    """Return the folders (or hub names) of all models of a training run, by the key that names each."""
    paths = {
        "model.path": config.model.path,
        "critic.path": config.critic.path,
        "reward.model.path": config.reward.model.path,
    }
    return {key: path for key, path in paths.items() if path is not None}


def check_model_path(path: str, *, key: str = "model.path") -> None:
    """Refuse a model folder that does not exist or lacks files, and a model on a hub that cannot be fetched.

    Raises:
        ConfigError: names the missing files.
    """
    folder = Path(path)
    if os.path.isdir(folder):
        missing = [name for name in ("config.json", "tokenizer.json") if not os.path.isfile(folder / name)]
        if missing:
            raise ConfigError(f"{key}: {path} has no {' and no '.join(missing)}. Name a Hugging Face model folder.")
    elif folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ConfigError(f"{key}: {path}: no such folder. Name a Hugging Face model folder, or a model on a hub.")
    else:
        _require_hub_model(path, key=key)


def _require_hub_model(name: str, *, key: str) -> None:
    """Ask the hub once, with a short limit: the libraries would try for a minute, in every process."""
    # Here and not above: it takes half a second, and most runs name a folder.
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    try:
        if not constants.HF_HUB_OFFLINE:
            HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
        elif not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise FileNotFoundError("it is not in the cache (`HF_HUB_OFFLINE` is set)")
    except Exception as error:
        # What fails without a network depends on the HTTP library of this version of `huggingface_hub`.
        cause = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{key}: `{name}` is no folder (next to the config, or in {Path.cwd()}), and as a model on the hub it cannot be "
            f"asked for: {cause}. Correct the name; or fetch the model (`hf download`), and name its folder or set "
            "`HF_HUB_OFFLINE=1`"
        ) from error


def check_evaluated(config: RunConfig) -> None:
    """Refuse a policy without weights or with too few positions for an evaluation by the embedded engine."""
    check_weights_of(config.model.path)
    _check_context(config.model_copy(update={"stages": []}), config.model.path, key="model.path")


def check_weights(config: RunConfig, *, load: bool = False) -> None:
    """Refuse model folders without weights, and layers for LoRA that the policy does not have.

    Args:
        config: of the run.
        load: True to build each model from the headers of its files, which imports torch; else a worker refuses a folder
            that lacks some of its weights.

    Raises:
        ConfigError: names the key, and the files or weights.
    """
    check_lora(config.actor.lora, config.model.path, key="actor.lora")
    for key, path in trained_or_asked(config).items():
        check_weights_of(path, key=key, load=load)


def check_weights_of(path: str, *, key: str = "model.path", load: bool = False) -> None:
    """Refuse a model folder without weights; see `check_weights`. A model on a hub is left to the workers."""
    folder = Path(path)
    if not folder.is_dir():
        return
    if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        raise ConfigError(
            f"{key}: {path} has no weights, neither `*.safetensors` nor `*.bin`; fetch them, or name another folder"
        )
    shapes = tensor_shapes(path, key=key)
    if shapes and load:
        # It imports torch and transformers, which takes seconds, and nothing else in a driver needs them.
        from agentrl.training.model.folder_trial import try_model

        try_model(path, shapes, key=key)


def check_architecture(path: str, *, key: str = "model.path") -> None:
    """Refuse a quantised model, and an architecture that packed training would compute wrongly.

    Raises:
        ConfigError: names the key and the problem.
    """
    settings = read_model_file(path, "config.json")
    if settings.get("quantization_config") is not None:
        raise ConfigError(
            f"{key}: {path} is quantised (`quantization_config` in its `config.json`), and only plain weights can be "
            "trained. Name the folder of the model in bfloat16 or float32"
        )
    if settings.get("model_type") not in TESTED:
        # It imports torch and transformers, as above.
        from agentrl.training.model.folder_trial import try_model

        try_model(path, key=key)


def check_lora(lora: LoraSection, path: str, *, key: str) -> None:
    """Refuse LoRA for stacked experts, and target layers that the policy's files do not have.

    Raises:
        ConfigError: a key of the section, which the command calls `key`, and the problem.
    """
    if lora.rank and _has_experts(language_settings(path) or {}):
        raise ConfigError(
            f"{key}.rank: {path} is a mixture of experts, which LoRA does not adapt here; leave `{key}` out to train all "
            "of its weights"
        )
    if not (lora.rank and lora.target_modules):
        return
    modules = {name.removesuffix(".weight") for name in tensor_shapes(path, key="model.path")}
    # PEFT takes a name for that of a module, or for the end of one.
    for target in lora.target_modules:
        if modules and not any(f".{module}".endswith(f".{target}") for module in modules):
            ends = sorted({module.rpartition(".")[2] for module in modules if ".layers." in f".{module}"})
            raise ConfigError(
                f"{key}.target_modules: {path} has no `{target}`; its layers have {', '.join(ends)}. Leave "
                "the key out to adapt all of their linear ones"
            )


def language_settings(path: str) -> dict[str, Any] | None:
    """Return the settings of the language model in the `config.json` of a folder or hub model; None without one.

    Call `check_model_path` first: without a network the hub would be tried for a minute.
    """
    settings = read_model_file(path, "config.json")
    return settings.get("text_config", settings) or None


def _check_policy(config: RunConfig) -> None:
    """Refuse a policy that its engine or its update would compute wrongly."""
    path = config.model.path
    if has_sinks(language_settings(path) or {}) and config.rollout.engine == "transformers":
        raise ConfigError(
            f"model.path: {path} has attention sinks, which `rollout.engine: transformers` does not compute; use the engine "
            "`vllm`, or a model without them"
        )
    router_loss, replays = config.actor.router_aux_loss_coef > 0, config.rollout.replay_routing
    if router_loss or replays:
        # It imports torch and transformers, as above.
        from agentrl.training.model.folder_trial import try_model

        try_model(path, key="model.path", router_loss=router_loss, replays_routing=replays)


def _has_experts(settings: Mapping[str, Any]) -> bool:
    return any(settings.get(name) for name in _NUMBERS_OF_EXPERTS)


def _check_context(config: RunConfig, path: str, *, key: str) -> None:
    """Refuse trajectories longer than the positions that a model's configuration declares."""
    settings = language_settings(path) or {}
    own = config.rollout.max_response_tokens
    lengths = [own if stage.max_response_tokens is None else stage.max_response_tokens for stage in config.stages]
    longest = config.data.max_prompt_tokens + max(lengths or [own])
    # Several sequences of a batch are computed together, which `longrope` and `dynamic` scaling allow up to a length only.
    limits = [limit for limit in (num_positions(settings), exact_positions(settings)) if limit is not None]
    if limits and longest > min(limits):
        raise ConfigError(
            f"{key}: {path} has {min(limits)} positions without scaling by length (`max_position_embeddings` in its "
            f"`config.json`), and a trajectory may have {longest} tokens (`data.max_prompt_tokens` + the longest "
            "`max_response_tokens` of the run and its `stages`); lower these, or use a model with a longer context"
        )


def _check_heads(config: RunConfig, path: str, *, key: str) -> None:
    """Refuse attention heads that cannot be divided over the ranks of a sequence."""
    num_heads, size = (language_settings(path) or {}).get("num_attention_heads", 0), config.actor.sequence_parallel_size
    if num_heads % size:
        raise ConfigError(
            f"`actor.sequence_parallel_size` is {size}, which does not divide the {num_heads} attention heads of `{key}`; take "
            f"a divisor of {num_heads}"
        )


def _check_tokens(path: str, policy: str, *, key: str) -> None:
    """Refuse a model that reads a token of the policy as another one; it may have further tokens, or another padding."""
    if not (Path(path).is_dir() and Path(policy).is_dir()):
        return  # a model on a hub is not fetched for this
    reader, writer = (load_tokenizer(folder, light_tokenizer_class(folder)) for folder in (path, policy))
    known = {token_id: token for token, token_id in reader.get_vocab().items()}
    fills_rows = writer.pad_token not in (writer.bos_token, writer.eos_token, writer.unk_token)
    for token, token_id in sorted(writer.get_vocab().items(), key=lambda entry: entry[1]):
        if known.get(token_id) != token and not (fills_rows and token == writer.pad_token):
            token_in_model = f"`{known[token_id]}`" if token_id in known else "none of its tokens"
            raise ConfigError(
                f"{key}: {path} has another vocabulary than `model.path` ({policy}), whose token ids it is to read: {token_id} "
                f"is {token_in_model}, and `{token}` in the policy; name a model with the same tokenizer"
            )
