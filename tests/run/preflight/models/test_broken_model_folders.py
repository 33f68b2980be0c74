import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.errors import ConfigError
from agentrl.run.plan import prepare, training_warnings
from agentrl.run.preflight.memory import check_memory, read_size
from agentrl.run.preflight.models.folders import check_models, check_weights
from agentrl.run.preflight.policy_chat import check_policy_chat

DEMO, POLICY = str(SHIPPED_FOLDER / "configs" / "demo.yaml"), SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"


def broken(folder: Path, name: str, text: str) -> str:
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy2(POLICY / file, folder)
    (folder / name).write_text(text)
    return f"model.path={folder}"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{oops", r"model\.path: .*config\.json cannot be read as JSON"),
        ("tokenizer.json", "{oops", r"model\.path: no tokenizer in .*; fetch it again"),
        ("tokenizer_config.json", "", r"model\.path: .*tokenizer_config\.json cannot be read as JSON"),
        ("generation_config.json", "", r"model\.path: .*generation_config\.json cannot be read as JSON"),
    ],
)
def test_a_broken_file_of_a_model_is_refused_with_its_name(name: str, text: str, message: str, tmp_path: Path):
    config = load_run_config(DEMO, [broken(tmp_path, name, text)]).config
    with pytest.raises(ConfigError, match=message):
        check_policy_chat(config.model, [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_attention_heads": 3}, r"has other shapes than its `config\.json` says"),
        ({"vocab_size": 2000}, r"\[1024, 128\] instead of \[2000, 128\]"),
        ({"hidden_act": "nope"}, "cannot load a causal LM .*KeyError: 'nope'"),
        ({"rms_norm_eps": "1e-6"}, "cannot load a causal LM .*'rms_norm_eps' expected float, got str"),
        ({"dtype": "float7"}, "cannot load a causal LM .*no attribute 'float7'"),
    ],
)
def test_a_check_refuses_settings_with_which_transformers_cannot_load_the_weights(
    settings: dict[str, object], message: str, tmp_path: Path
):
    plain = json.loads((POLICY / "config.json").read_text())
    config = load_run_config(DEMO, [broken(tmp_path, "config.json", json.dumps(plain | settings))]).config
    with pytest.raises(ConfigError, match=message):
        check_weights(config, load=True)


def test_cut_weights_and_absent_ones_are_refused(tmp_path: Path):
    config = load_run_config(DEMO, [broken(tmp_path, "model.safetensors", "cut")]).config
    with pytest.raises(ConfigError, match=r"model\.path`: .* its weights cannot be read"):
        check_memory(config)
    with pytest.raises(ConfigError, match=r"model\.path`: .* its weights cannot be read"):
        check_weights(config)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.path: .* has no weights"):
        check_weights(config)


def test_layers_for_lora_that_the_policy_does_not_have_are_refused_with_those_that_it_has():
    lora = ["actor.lora.rank=4", "actor.lora.target_modules=[q_proj,query]"]
    with pytest.raises(
        ConfigError, match=r"actor\.lora\.target_modules: .* has no `query`; its layers have .*down_proj.*q_proj"
    ):
        check_weights(load_run_config(DEMO, lora).config)
    check_weights(load_run_config(DEMO, [*lora[:1], "actor.lora.target_modules=[q_proj,self_attn.k_proj]"]).config)


def test_lora_beside_the_experts_of_a_mixture_is_refused(tmp_path: Path):
    settings = json.loads((POLICY / "config.json").read_text()) | {"num_experts": 4}
    folder = broken(tmp_path, "config.json", json.dumps(settings))
    with pytest.raises(ConfigError, match=r"actor\.lora\.rank: .* is a mixture of experts, which LoRA does not adapt"):
        check_weights(load_run_config(DEMO, [folder, "actor.lora.rank=4"]).config)


def test_a_reward_model_without_a_trained_head_of_one_label_is_refused(tmp_path: Path):
    words = ["algorithm.selection.drop_equal_reward=false", f"reward.model.path={tmp_path}"]
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy2(POLICY / file, tmp_path)
    config = load_run_config(DEMO, words).config
    with pytest.raises(
        ConfigError, match=r"^`reward\.model\.path`: .* has no weights `score\.weight`, which would be random"
    ):
        check_weights(config, load=True)
    AutoModelForSequenceClassification.from_pretrained(POLICY, num_labels=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"^`reward\.model\.path`: .* with 2 labels; a reward model is .* one label"):
        check_weights(config, load=True)
    AutoModelForSequenceClassification.from_pretrained(POLICY, num_labels=1).save_pretrained(tmp_path)
    check_weights(config, load=True)
    (tmp_path / "model.safetensors").write_text("cut")
    with pytest.raises(ConfigError, match=r"`reward\.model\.path`: .* its weights cannot be read"):
        check_weights(config)


def test_a_critic_needs_no_head_for_it_gets_a_new_one():
    check_weights(load_run_config(DEMO, ["algorithm.advantage=gae", f"critic.path={POLICY}"]).config)


@pytest.mark.parametrize("name", ["num_attention_heads", "vocab_size"])
def test_a_model_that_names_its_sizes_otherwise_has_no_estimate(name: str, tmp_path: Path):
    settings = json.loads((POLICY / "config.json").read_text())
    assert read_size(str(POLICY)) is not None
    del settings[name]
    broken(tmp_path, "config.json", json.dumps(settings))
    assert read_size(str(tmp_path)) is None


def test_trajectories_longer_than_the_context_are_refused_unless_it_is_scaled(tmp_path: Path):
    settings = json.loads((POLICY / "config.json").read_text()) | {"max_position_embeddings": 256}
    words = [broken(tmp_path, "config.json", json.dumps(settings))]
    with pytest.raises(ConfigError, match=r"model\.path: .* has 256 positions .* may have 512 tokens"):
        check_models(load_run_config(DEMO, words).config)
    scaled = settings | {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps(scaled))
    check_models(load_run_config(DEMO, words).config)
    longer = "stages=[{num_steps: 60, max_response_tokens: 257}]"
    with pytest.raises(ConfigError, match=r"has 512 positions .* may have 513 tokens"):
        check_models(load_run_config(DEMO, [*words, longer]).config)


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("policy_loss", "os.sep", r"`algorithm\.policy_loss` is `os\.sep`, which is no function"),
        ("aggregation", "os.sep", r"`algorithm\.aggregation` is `os\.sep`, which is no function"),
        ("aggregation", "os.nowhere", r"`algorithm\.aggregation` is `os\.nowhere`: .* has no `nowhere`"),
        ("kl_estimator", "os.sep", r"`algorithm\.kl_estimator` is `os\.sep`, which is no function"),
    ],
)
def test_what_is_no_function_is_refused(key: str, name: str, message: str):
    loaded = load_run_config(DEMO, ["algorithm.kl_coefficient=0.1", f"algorithm.{key}={name}"])
    with pytest.raises(ConfigError, match=message):
        training_warnings(loaded.config)


def test_functions_by_their_import_path_are_accepted():
    own = {
        "policy_loss": "policy_loss.ppo_loss",
        "advantage": "advantage.grpo",
        "aggregation": "aggregation.trajectory_mean",
        "kl_estimator": "kl_divergence.k2",
    }
    words = [f"algorithm.{key}=agentrl.algorithms.{path}" for key, path in own.items()]
    loaded = load_run_config(DEMO, ["algorithm.kl_coefficient=0.1", *words])
    assert training_warnings(loaded.config) == []


def test_a_run_with_k1_in_the_loss_has_one_warning(tmp_path: Path):
    words = ["algorithm.kl_coefficient=0.1", f"run.dir={tmp_path}"]
    [message] = prepare(load_run_config(DEMO, [*words, "algorithm.kl_estimator=k1"])).warnings
    assert message.startswith("`algorithm.kl_estimator` is `k1`, whose gradient in the loss is 0 on average")
