"""Recognition of a whole decoder by the names of its weights."""

import json
from pathlib import Path

import pytest

from agentrl.models.weight_files import tensor_shapes
from agentrl.run.preflight.models.folders import is_plainly_whole

POLICY = Path(__file__).resolve().parents[4] / "examples" / "arithmetic" / "policy"
NAMES = frozenset(tensor_shapes(POLICY))
TIED = json.loads((POLICY / "config.json").read_text())
UNTIED = TIED | {"tie_word_embeddings": False}


def test_the_policy_of_the_demo_is():
    assert is_plainly_whole(NAMES, TIED, needs_head=True)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_folder_that_lacks_a_weight_is(name: str):
    assert not is_plainly_whole(NAMES - {name}, TIED, needs_head=True)


def test_a_head_is_needed_where_tokens_come_out_and_it_is_not_tied():
    assert not is_plainly_whole(NAMES, UNTIED, needs_head=True)
    assert not is_plainly_whole(
        NAMES, {key: value for key, value in TIED.items() if key != "tie_word_embeddings"}, needs_head=True
    )
    assert is_plainly_whole(NAMES, UNTIED, needs_head=False)
    assert is_plainly_whole(NAMES | {"lm_head.weight"}, UNTIED, needs_head=True)


def test_what_has_other_names_or_another_number_of_layers_is_left_to_transformers():
    assert not is_plainly_whole({f"_orig_mod.{name}" for name in NAMES}, TIED, needs_head=True)
    assert not is_plainly_whole(NAMES | {"model.vision.weight"}, TIED, needs_head=True)
    assert not is_plainly_whole(NAMES, TIED | {"num_hidden_layers": 4}, needs_head=True)
    assert not is_plainly_whole(NAMES, TIED | {"num_hidden_layers": 2}, needs_head=True)
    assert not is_plainly_whole(NAMES, {}, needs_head=True)
