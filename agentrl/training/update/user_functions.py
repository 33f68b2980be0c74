"""Check of what an algorithm function returned, which may be the user's own."""

from typing import Any

from torch import Tensor

from agentrl.errors import ConfigError


def require_result(value: Any, like: Tensor, where: str) -> None:
    """Raise ConfigError for a result that is not shaped as `like`, or without a gradient where `like` has one.

    Torch broadcasts, so such a result would train silently with a wrong gradient. `where` is config key and function.
    """
    if not isinstance(value, Tensor) or value.shape != like.shape:
        shown = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(
            f"{where} gave {shown}; it must be a tensor of shape {list(like.shape)} (`docs/algorithms.md`)"
        )
    if like.requires_grad and not value.requires_grad:
        raise ConfigError(
            f"{where} gave a result without a gradient; compute it from `logprobs_N` (`docs/algorithms.md`)"
        )
