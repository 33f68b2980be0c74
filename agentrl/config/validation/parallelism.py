"""Checks that models can be divided over sequence-parallel ranks, and over engines of several GPUs."""

import json
import os
from pathlib import Path
from typing import Any

from agentrl.config.schema.run import RunConfig

_VOCABULARY_STEP = 64
"""vLLM pads the vocabulary to a multiple of this."""


def head_problems(config: RunConfig) -> list[str]:
    """Return models that cannot be divided over a sequence group; those on a hub are checked when they are loaded."""
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
        num_heads = _counts(path).get("num_attention_heads")
        if num_heads is not None and num_heads % size:
            problems.append(
                f"`actor.sequence_parallel_size` is {size}, which does not divide the {num_heads} attention heads of `{key}`; "
                f"take a divisor of {num_heads}"
            )
    return problems


def engine_problems(config: RunConfig) -> list[str]:
    """Return parts of the policy that vLLM cannot divide over `rollout.tensor_parallel_size` processes."""
    size, counts = config.rollout.tensor_parallel_size, _counts(config.model.path)
    if config.rollout.engine != "vllm":
        return []
    smaller = ", ".join(str(number) for number in range(1, size) if not _undivided(number, counts))
    return [
        f"`rollout.tensor_parallel_size` is {size}, which {problem} of `model.path`; below it, {smaller} will do"
        for problem in _undivided(size, counts)
    ]


def _undivided(size: int, counts: dict[str, int]) -> list[str]:
    """Return parts that vLLM's layers cannot divide over `size` processes."""
    divided = {
        "attention heads": counts.get("num_attention_heads"),
        f"tokens of the vocabulary (filled up to a multiple of {_VOCABULARY_STEP})": _filled_up(
            counts.get("vocab_size")
        ),
    }
    if not any("expert" in name for name in counts):  # experts' parts are rounded up
        divided["numbers of each feed-forward part (`intermediate_size`)"] = counts.get("intermediate_size")
    problems = [f"does not divide the {number} {what}" for what, number in divided.items() if number and number % size]
    kv_heads = counts.get("num_key_value_heads")
    if kv_heads and kv_heads % size and size % kv_heads:  # fewer heads are copied
        problems.append(f"neither divides nor is a multiple of the {kv_heads} key-value heads")
    return problems


def _filled_up(vocabulary: int | None) -> int | None:
    return None if vocabulary is None else -(-vocabulary // _VOCABULARY_STEP) * _VOCABULARY_STEP


def _counts(path: str | None) -> dict[str, int]:
    """Return the integers in a folder's `config.json` about its language model; empty for a model on a hub."""
    file = Path(path or "", "config.json")
    if path is None or not os.path.isfile(file):
        return {}
    try:
        described: dict[str, Any] = json.loads(file.read_text())
        settings = described.get("text_config", described)
        return {name: value for name, value in settings.items() if type(value) is int}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}  # loading the model reports the problem better
