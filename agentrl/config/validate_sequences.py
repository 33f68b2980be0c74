"""Whether the attention heads of the models can be divided over `actor.sequence_parallel_size` ranks."""

import json
from pathlib import Path

from agentrl.config.schema import RunConfig


def head_problems(config: RunConfig) -> list[str]:
    """Return which models cannot be divided; one that is not in a folder here is examined when it is loaded."""
    size = config.actor.sequence_parallel_size
    if size <= 1:
        return []
    models = {
        "model.path": config.model.path,
        "critic.path": config.critic.path,
        "reward.model.path": config.reward.model.path,
    }
    problems = []
    for key, path in models.items():
        num_heads = _num_heads(path)
        if num_heads is not None and num_heads % size:
            problems.append(
                f"`actor.sequence_parallel_size` is {size}, which does not divide the {num_heads} attention heads of `{key}`; "
                f"take a divisor of {num_heads}"
            )
    return problems


def _num_heads(path: str | None) -> int | None:
    file = Path(path or "", "config.json")
    if path is None or not file.is_file():
        return None
    try:
        described = json.loads(file.read_text())
        described = described.get("text_config", described)
        return int(described["num_attention_heads"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # what is wrong with the folder, the loading of the model says better
