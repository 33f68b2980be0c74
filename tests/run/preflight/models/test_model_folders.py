import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.errors import ConfigError
from agentrl.run.preflight.models.folders import check_models

DEMO, POLICY = str(SHIPPED_FOLDER / "configs" / "demo.yaml"), SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"


def check(*words: str) -> None:
    check_models(load_run_config(DEMO, words).config)


def test_a_reward_model_with_the_same_tokens_is_accepted(tmp_path: Path):
    for name in ("config.json", "tokenizer.json"):
        shutil.copy2(POLICY / name, tmp_path)
    check(f"reward.model.path={tmp_path}", "algorithm.selection.drop_equal_reward=false")


def with_tokens(folder: Path, **changes: int) -> str:
    """Write the demo's policy, without its weights, with other or more special tokens; returns its folder."""
    path = policy_with(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {entry["content"]: entry for entry in tokenizer["added_tokens"]}
    for token, token_id in changes.items():
        special[token] = special["<|im_end|>"] | special.get(token, {}) | {"content": token, "id": token_id}
        if token in tokenizer["model"]["vocab"]:
            tokenizer["model"]["vocab"][token] = token_id
    tokenizer["added_tokens"] = list(special.values())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def test_a_critic_and_a_reward_model_with_other_special_tokens_are_refused(tmp_path: Path):
    tokens = {
        entry["content"]: entry["id"] for entry in json.loads((POLICY / "tokenizer.json").read_text())["added_tokens"]
    }
    first, second = "<|im_start|>", "<|im_end|>"
    path = with_tokens(tmp_path, **{first: tokens[second], second: tokens[first]})
    words = rf"has another vocabulary than .*: {tokens[first]} is `{re.escape(second)}`, and `{re.escape(first)}` in the policy"
    with pytest.raises(ConfigError, match=rf"reward\.model\.path: .* {words}"):
        check(f"reward.model.path={path}", "algorithm.selection.drop_equal_reward=false")
    with pytest.raises(ConfigError, match=rf"critic\.path: .* {words}"):
        check("algorithm.advantage=gae", f"critic.path={path}")


def test_a_special_token_that_the_policy_does_not_have_is_no_problem_and_one_that_is_missing_is(tmp_path: Path):
    words = ["algorithm.advantage=gae", f"critic.path={with_tokens(tmp_path, padding=100_000)}"]
    check(*words)
    with pytest.raises(ConfigError, match=r"critic\.path: .* \d+ is none of its tokens, and `padding` in the policy"):
        check("algorithm.advantage=gae", f"critic.path={POLICY}", f"model.path={tmp_path}")


@pytest.mark.parametrize(("ends_turns", "refused"), [(False, False), (True, True)])
def test_a_token_that_only_fills_rows_may_be_another_one(tmp_path: Path, ends_turns: bool, refused: bool):
    path = with_tokens(tmp_path, padding=100_000)
    settings = {"pad_token": "padding", "eos_token": "padding" if ends_turns else "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    words = ["algorithm.advantage=gae", f"critic.path={POLICY}", f"model.path={path}"]
    with pytest.raises(ConfigError, match="another vocabulary") if refused else contextlib.nullcontext():
        check(*words)


def test_a_critic_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"critic\.path: .* no such folder"):
        check("algorithm.advantage=gae", f"critic.path={tmp_path / 'absent'}")
    with pytest.raises(ConfigError, match=r"critic\.path: .* has no config\.json and no tokenizer\.json"):
        check("algorithm.advantage=gae", f"critic.path={tmp_path}")


def policy_with(folder: Path, **settings: object) -> str:
    """Write the demo's policy, without its weights, with other settings; returns its folder."""
    shutil.copy2(POLICY / "tokenizer.json", folder)
    known = json.loads((POLICY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | settings))
    return str(folder)


def test_attention_heads_that_cannot_be_divided_over_the_ranks_of_a_sequence_are_refused(tmp_path: Path):
    path = policy_with(tmp_path, num_attention_heads=6)
    with pytest.raises(
        ConfigError, match=r"`actor\.sequence_parallel_size` is 4, which does not divide the 6 attention heads"
    ):
        check(f"model.path={path}", "actor.num_workers=4", "actor.sequence_parallel_size=4")


@pytest.mark.usefixtures("vllm_is_installed")
def test_attention_sinks_are_refused_where_the_embedded_engine_would_compute_them(tmp_path: Path):
    path = policy_with(tmp_path, model_type="gpt_oss")
    with pytest.raises(
        ConfigError, match=r"attention sinks, which `rollout.engine: transformers` does not compute; use"
    ):
        check(f"model.path={path}")
    check(f"model.path={path}", "rollout.engine=vllm")


@pytest.mark.usefixtures("vllm_is_installed")
def test_a_replay_of_routing_is_refused_where_it_cannot_be(tmp_path: Path):
    replay = ["rollout.replay_routing=true", "rollout.engine=vllm"]
    with pytest.raises(ConfigError, match=r"replay_routing` is set, but `model\.path`: .*\(`qwen3`\) has no experts"):
        check(*replay)
    mixtral = {"model_type": "mixtral", "num_local_experts": 4, "architectures": ["MixtralForCausalLM"]}
    path = f"model.path={policy_with(tmp_path, **mixtral)}"
    check(*replay, path)
    with pytest.raises(
        ConfigError, match=r"`rollout\.replay_routing` is True, but only `rollout\.engine: vllm` can do that"
    ):
        check(*replay[:1], path)
    with pytest.raises(
        ConfigError, match=r"`rollout\.replay_routing` and `actor\.compile` are set, which exclude each other"
    ):
        check(*replay, path, "actor.compile=true")


def test_a_loss_of_routers_is_refused_where_the_policy_has_none(tmp_path: Path):
    loss = "actor.router_aux_loss_coef=0.01"
    with pytest.raises(
        ConfigError, match=r"`actor\.router_aux_loss_coef` is set, but `model\.path`: .*\(`qwen3`\) has no"
    ):
        check(loss)
    mixtral = {"model_type": "mixtral", "num_local_experts": 4, "architectures": ["MixtralForCausalLM"]}
    check(loss, f"model.path={policy_with(tmp_path, **mixtral)}")
    with pytest.raises(ConfigError, match=r"`actor\.router_aux_loss_coef` is -0\.01"):
        check("actor.router_aux_loss_coef=-0.01")


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 500},
        {
            "rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 4.0}},
            "max_position_embeddings": 500,
        },
        {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 500},
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 500}},
    ],
)
def test_positions_that_depend_on_the_length_are_refused_beyond_the_length_where_they_do(
    settings: dict[str, object], tmp_path: Path
):
    path = policy_with(tmp_path, **{"max_position_embeddings": 8000, **settings})
    with pytest.raises(
        ConfigError, match=r"has 500 positions without scaling by length .* may have 512 tokens .* use a model"
    ):
        check(f"model.path={path}")
    check(f"model.path={path}", "rollout.max_response_tokens=244")
    stages = "stages=[{num_steps: 59}, {num_steps: 1, max_response_tokens: 1000}]"
    with pytest.raises(ConfigError, match="may have 1256"):
        check(f"model.path={path}", "rollout.max_response_tokens=244", stages)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": None}, "Transformers does not recognize this architecture"),
        ({"model_type": "no_such_model"}, "Transformers does not recognize this architecture"),
        ({"model_type": "t5"}, "Unrecognized configuration class"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "bart"),
        ({"model_type": "vit"}, "Unrecognized configuration class"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "mine.C"}}, "contains custom code"),
    ],
)
def test_a_config_json_that_describes_no_model_to_train_is_refused(
    settings: dict[str, object], words: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=words) as caught:
        check(f"model.path={policy_with(tmp_path, **settings)}")
    assert "model.path" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("bert", "differ by"),
        ("mamba", "see across"),
        ("bloom", "differ by"),
        ("stablelm", "does not pass arguments on"),
    ],
)
def test_an_architecture_that_packing_would_break_is_refused_by_name(kind: str, why: str, tmp_path: Path):
    shutil.copy2(POLICY / "tokenizer.json", tmp_path)
    settings = {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "n_layer": 2}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=rf"model\.path.*`?{kind}.*{why}"):
        check(f"model.path={tmp_path}")


def test_a_sliding_window_shorter_than_a_trajectory_is_no_problem(tmp_path: Path):
    check(f"model.path={policy_with(tmp_path, sliding_window=16, use_sliding_window=True)}")
