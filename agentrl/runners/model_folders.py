"""Whether the models that a run names can be what they are named for, as far as their folders tell."""

import json
from pathlib import Path

from agentrl.config.schema import RunConfig
from agentrl.errors import ConfigError


def check_models(config: RunConfig) -> None:
    """Refuse models of a training run that are not there, or that read other tokens than the policy writes.

    Raises:
        ConfigError: which key, and what is wrong.
    """
    check_model_path(config.model.path)
    for key, path in {"critic.path": config.critic.path, "reward.model.path": config.reward.model.path}.items():
        if path is not None:
            check_model_path(path, key=key)
            if _vocabulary(path) != _vocabulary(config.model.path):
                raise ConfigError(
                    f"{key}: {path} has another vocabulary than `model.path` ({config.model.path}), whose token ids it is to "
                    "read; name a model with the same tokenizer"
                )


def check_model_path(path: str, *, key: str = "model.path") -> None:
    """Refuse a model folder that is not there; the name of a model on a hub is left to the workers.

    Raises:
        ConfigError: `path` is no folder with a `config.json` and a `tokenizer.json`, and no hub name either.
    """
    folder = Path(path)
    if folder.is_dir():
        missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
        if missing:
            raise ConfigError(f"{key}: {path} has no {' and no '.join(missing)}. Name a Hugging Face model folder.")
    elif folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ConfigError(f"{key}: {path}: no such folder. Name a Hugging Face model folder, or a model on a hub.")


def _vocabulary(path: str) -> object:
    """Return ids by token, of a folder; None of a model on a hub, which is not fetched for this."""
    file = Path(path, "tokenizer.json")
    return json.loads(file.read_text())["model"].get("vocab") if file.is_file() else None
