"""Models named by their place on a hub: asked for once, with a short limit, before anything is loaded."""

import functools
from pathlib import Path

from agentrl.errors import ConfigError

_TIMEOUT_S = 5.0
_FETCH = "Fetch it where there is a network (`hf download`), and name its folder"


def require_hub_model(name: str, *, key: str = "model.path") -> None:
    """Refuse a model that cannot be fetched, at once: the libraries would try for a minute, in every process.

    Raises:
        ConfigError: there is no such model, or the hub cannot be reached.
    """
    where = f"{key}: `{name}` is no folder (next to the config, or in {Path.cwd()}), and as a model on the hub"
    try:
        problem = _problem(name)
    except Exception as error:
        # What fails without a network depends on the HTTP library of this version of `huggingface_hub`.
        cause = " ".join(str(error).split()) or type(error).__name__
        way_out = "Set `HF_HUB_OFFLINE=1` to use the copy in its cache" if _is_cached(name) else _FETCH
        raise ConfigError(f"{where} it cannot be asked for: {cause}. {way_out}") from error
    if problem is not None:
        raise ConfigError(f"{where} {problem}")


@functools.cache
def _problem(name: str) -> str | None:
    """Return why a model cannot be fetched; None: it can, or it is in the cache and no hub will be asked."""
    # Here and not above: it takes half a second, and most runs name a folder.
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return None if _is_cached(name) else f"it is not in the cache (`HF_HUB_OFFLINE` is set). {_FETCH}"
    try:
        HfApi().model_info(name, timeout=_TIMEOUT_S)
    except RepositoryNotFoundError:
        return "it does not exist, or is private. Correct the name, or log in with `hf auth login`"
    except HFValidationError:
        return "its name is not valid. Name a folder, or a model as `owner/name`"
    return None


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False
