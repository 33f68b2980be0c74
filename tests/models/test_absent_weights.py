"""Model folders without some of their weights, which transformers would make up at random: refused by check and worker."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    FalconConfig,
    GPTJConfig,
    MixtralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.schema.run import ModelSection
from agentrl.config.sft_load import load_sft_config
from agentrl.engine.embedded.model import LanguageModel
from agentrl.errors import ConfigError
from agentrl.models.weight_files import tensor_shapes
from agentrl.run.plan import prepare
from agentrl.run.preflight.models.folders import check_weights
from agentrl.run.sft.run import prepare as prepare_warm_start
from agentrl.training.model.decoder import load_classifier, load_model
from agentrl.training.model.folder_trial import try_model
from agentrl.training.model.sharded_model import open_model

DEMO, POLICY = str(SHIPPED_FOLDER / "configs" / "demo.yaml"), SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"
CRITIC = ["algorithm.advantage=gae"]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
NO_HEAD = r"has no weights `lm_head\.weight`, which would be random numbers\. Save .*`tie_word_embeddings`"


def saved(folder: Path, config: Any = None, kind: Any = AutoModelForCausalLM, **settings: Any) -> Path:
    """Write a random model, by default with a head of its own."""
    kind.from_config(config or Qwen3Config(**SIZES, tie_word_embeddings=False)).save_pretrained(folder, **settings)
    return folder


def renamed(folder: Path, name_of: Callable[[str], str | None]) -> Path:
    """Give the tensors of a folder other names, or leave some out."""
    file = folder / "model.safetensors"
    tensors = {name_of(name): tensor for name, tensor in load_file(file).items()}
    save_file({name: tensor for name, tensor in tensors.items() if name}, file, metadata={"format": "pt"})
    return folder


def without_head(folder: Path) -> Path:
    return renamed(saved(folder), lambda name: None if name == "lm_head.weight" else name)


def check(path: Path, *words: str, key: str = "model.path") -> None:
    check_weights(load_run_config(DEMO, [f"{key}={path}", *words]).config, load=True)


def refused_as_policy(folder: Path, says: str) -> None:
    """See that check, actor and engine refuse a folder with these words."""
    with pytest.raises(ConfigError, match=rf"^`model\.path`: {folder} {says}"):
        check(folder)
    with pytest.raises(ConfigError, match=rf"^`model\.path`: {folder} {says}"):
        open_model(ModelSection(path=str(folder)))
    with pytest.raises(ConfigError, match=rf"^`model\.path`: {folder} {says}"):
        LanguageModel(ModelSection(path=str(folder)), num_rows=1, max_tokens=512)


def test_a_policy_without_its_head_is_refused_from_the_headers_and_in_the_workers(tmp_path: Path):
    refused_as_policy(without_head(tmp_path), NO_HEAD)


def test_a_critic_needs_no_head_and_all_the_rest(tmp_path: Path):
    folder = without_head(tmp_path)
    check(folder, *CRITIC, key="critic.path")
    assert open_model(ModelSection(path=str(folder)), needs_head=False).model.base_model is not None
    renamed(folder, lambda name: None if name == "model.norm.weight" else name)
    with pytest.raises(ConfigError, match=r"^`critic\.path`: .* has no weights `model\.norm\.weight`, which"):
        check(folder, *CRITIC, key="critic.path")
    with pytest.raises(ConfigError, match=r"^`model\.path`: .* has no weights `model\.norm\.weight`, which"):
        open_model(ModelSection(path=str(folder)), needs_head=False)


def test_names_that_a_compiled_model_was_saved_under_are_reported(tmp_path: Path):
    folder = renamed(saved(tmp_path), lambda name: f"_orig_mod.{name}")
    with pytest.raises(ConfigError, match=r"and 22 more, which .* and has `_orig_mod\.lm_head.* does not know"):
        check(folder)
    with pytest.raises(ConfigError, match=r"and 22 more, which .* and has `_orig_mod\.lm_head.* does not know"):
        open_model(ModelSection(path=str(folder)))


def test_the_trial_needs_names_and_shapes_and_none_of_the_files_that_hold_the_values(tmp_path: Path):
    folder = saved(tmp_path, max_shard_size="20KB")
    files = list(folder.glob("model-*.safetensors"))
    shapes = tensor_shapes(str(folder))
    assert len(files) > 2
    assert shapes
    for file in files:
        file.unlink()
    try_model(str(folder), shapes, key="model.path")


def test_a_tensor_that_no_shard_has_and_a_shard_that_is_not_there_are_refused(tmp_path: Path):
    folder = saved(tmp_path, max_shard_size="20KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    lost = index["weight_map"]["model.norm.weight"]
    (folder / lost).rename(folder / "consolidated.safetensors")
    with pytest.raises(ConfigError, match=rf"`model\.path`: .* its weights cannot be read: .*{lost}"):
        check(folder)
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file != lost}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"^`model\.path`: .* has no weights `lm_head\.weight`, .* and 2 more"):
        check(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_and_a_decoder_under_names_of_its_own_are_all_there(tied: bool, tmp_path: Path):
    config = Qwen3Config(**SIZES, tie_word_embeddings=tied)
    whole, decoder = saved(tmp_path / "whole", config), saved(tmp_path / "decoder", config, AutoModel)
    check(whole)
    check(decoder, *CRITIC, key="critic.path")
    if tied:
        check(decoder)
        check(renamed(whole, lambda name: "lm_head.weight" if "embed_tokens" in name else name))
    else:
        with pytest.raises(ConfigError, match=NO_HEAD):
            check(decoder)


MOE = Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)


def test_a_mixture_without_one_expert_is_refused_by_name(tmp_path: Path):
    lost = r"model\.layers\.1\.mlp\.experts\.2\."
    folder = renamed(saved(tmp_path, MOE), lambda name: None if re.match(lost, name) else name)
    refused_as_policy(folder, r"has other shapes .*`model\.layers\.1\.mlp\.experts\.down_proj`")


def test_a_mixture_without_a_part_of_an_expert_is_refused_by_the_workers(tmp_path: Path):
    lost = "model.layers.0.mlp.experts.2.up_proj.weight"
    folder = renamed(saved(tmp_path, MOE), lambda name: None if name == lost else name)
    with pytest.raises(ConfigError, match=r"^`model\.path`: cannot load a causal LM"):
        open_model(ModelSection(path=str(folder)))


@pytest.mark.parametrize(
    "config",
    [
        GPTJConfig(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
        FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    ],
)
def test_an_architecture_that_takes_no_other_attention_is_refused_with_the_key_that_names_it(
    config: Any, tmp_path: Path
):
    folder = saved(tmp_path, config)
    refusal = (
        rf"cannot load a causal LM from {folder}: its architecture takes no other attention .*another architecture"
    )
    with pytest.raises(ConfigError, match=rf"^`model\.path`: {refusal}"):
        check(folder)
    with pytest.raises(ConfigError, match=rf"^`critic\.path`: {refusal}"):
        check(folder, *CRITIC, key="critic.path")
    with pytest.raises(ConfigError, match=rf"^`critic\.path`: {refusal}"):
        open_model(ModelSection(path=str(folder)), needs_head=False, key="critic.path")
    with pytest.raises(ConfigError, match=rf"^`model\.path`: {refusal}"):
        load_model(ModelSection(path=str(folder)))
    with pytest.raises(ConfigError, match=rf"^`model\.path`: {refusal}"):
        LanguageModel(ModelSection(path=str(folder)), num_rows=1, max_tokens=512)


def test_a_classifier_that_cannot_be_loaded_is_refused_with_its_key(tmp_path: Path):
    config = GPTJConfig(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
    config.num_labels = 1
    folder = saved(tmp_path, config, AutoModelForSequenceClassification)
    refusal = rf"^`reward\.model\.path`: cannot load a sequence classifier from {folder}: its architecture"
    with pytest.raises(ConfigError, match=refusal):
        try_model(str(folder), {}, key="reward.model.path")
    with pytest.raises(ConfigError, match=refusal):
        load_classifier(str(folder))


def test_a_config_that_transformers_chokes_on_is_reported_in_one_line(tmp_path: Path):
    folder = saved(tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"hidden_act": "no_such"}))
    with pytest.raises(
        ConfigError, match=r"^`model\.path`: cannot load .*: KeyError: .*no_such.*\. Name a folder"
    ) as refusal:
        load_model(ModelSection(path=str(folder)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("config", [MixtralConfig(**SIZES, num_local_experts=2, sliding_window=None), MOE])
def test_experts_that_transformers_stacks_are_all_there(config: Any, tmp_path: Path):
    folder = saved(tmp_path, config)
    shapes = tensor_shapes(str(folder))
    assert any(".experts.1." in name for name in shapes)
    try_model(str(folder), shapes, key="model.path")
    renamed(folder, lambda name: None if name.startswith("model.layers.1.") and ".experts." in name else name)
    with pytest.raises(ConfigError, match=r"has no weights `model\.layers\.1\..*experts\."):
        check(folder)


def test_weights_in_another_format_are_left_to_the_workers(tmp_path: Path):
    folder = without_head(tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    check(folder)
    with pytest.raises(ConfigError, match=NO_HEAD):
        open_model(ModelSection(path=str(folder)))


def test_a_reward_model_without_its_backbone_is_refused(tmp_path: Path):
    kept, config = "algorithm.selection.drop_equal_reward=false", Qwen3Config(**SIZES)
    config.num_labels = 1
    folder = saved(tmp_path, config, AutoModelForSequenceClassification)
    check(folder, kept, key="reward.model.path")
    renamed(folder, lambda name: name if name == "score.weight" else f"_orig_mod.{name}")
    with pytest.raises(ConfigError, match=r"^`reward\.model\.path`: .* has no weights `model\.embed_tokens\.weight`"):
        check(folder, kept, key="reward.model.path")


def test_a_check_and_a_warm_start_refuse_it_before_anything_starts(tmp_path: Path):
    shutil.copytree(POLICY, tmp_path / "policy")
    folder = renamed(tmp_path / "policy", lambda name: None if name == "model.norm.weight" else name)
    missing = r"^`model\.path`: .* has no weights `model\.norm\.weight`"
    with pytest.raises(ConfigError, match=missing):
        check(folder)
    (tmp_path / "dialogues.jsonl").write_text(json.dumps({"messages": [{"role": "assistant", "content": "1"}]}) + "\n")
    (tmp_path / "sft.yaml").write_text(
        f"data: {{train_files: [dialogues.jsonl]}}\nmodel: {{path: {folder}}}\ntraining: {{num_steps: 1}}\n"
        f"run: {{dir: {tmp_path / 'out'}}}\n"
    )
    with pytest.raises(ConfigError, match=missing):
        prepare_warm_start(load_sft_config(str(tmp_path / "sft.yaml")))
    assert not (tmp_path / "out").exists()


def test_a_quantised_model_is_refused_before_anything_starts(tmp_path: Path):
    shutil.copytree(POLICY, tmp_path / "policy")
    file = tmp_path / "policy" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ConfigError, match=r"^model\.path: .* is quantised .*Name the folder of the model in bfloat16"):
        prepare(load_run_config(DEMO, [f"model.path={tmp_path / 'policy'}", f"run.dir={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()
