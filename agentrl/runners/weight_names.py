"""Whether the names of weights are plainly those of a whole decoder, which saves the seconds that transformers takes to say."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_AROUND = frozenset({"model.embed_tokens.weight", "model.norm.weight"})
_HEADS = frozenset({"lm_head.weight", "score.weight"})


def is_plainly_whole(names: Iterable[str], settings: Mapping[str, Any], *, needs_head: bool) -> bool:
    """Return whether there is what decoders have around their layers, and of each layer the same; False says nothing.

    A kind of weight that all layers lack is not seen: whoever loads the model refuses that.

    Args:
        names: of the weights.
        settings: the `config.json`.
        needs_head: whether tokens are to come out of it.
    """
    layers: dict[int, set[str]] = defaultdict(set)
    around: set[str] = set()
    for name in names:
        if found := _LAYER.fullmatch(name):
            layers[int(found[1])].add(found[2])
        else:
            around.add(name)
    has_head = not needs_head or "lm_head.weight" in around or settings.get("tie_word_embeddings") is True
    all_there = set(layers) == set(range(settings.get("num_hidden_layers", 0))) and around - _HEADS == _AROUND
    return has_head and all_there and all(kinds == layers[0] for kinds in layers.values())
