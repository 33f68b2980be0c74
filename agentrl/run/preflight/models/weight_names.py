"""Quick check that weight names form a complete decoder, to avoid the seconds that transformers needs for it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

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
