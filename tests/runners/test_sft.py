import json
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.load import SHIPPED_FOLDER
from agentrl.config.sft_schema import SftConfig
from agentrl.engine.tokenizer import load_tokenizer
from agentrl.errors import ConfigError
from agentrl.runners.sft import load_sft_config, read_dialogues, shuffled_forever, warm_start

EXAMPLE = SHIPPED_FOLDER / "examples" / "arithmetic"
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def dialogue(number: int) -> dict:
    return {
        "messages": [
            {"role": "user", "content": f"Say {number}."},
            {"role": "assistant", "content": CALL},
            {"role": "tool", "content": "success"},
            {"role": "assistant", "content": f"It is {number}."},
        ]
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config, 32 dialogues and a tiny model without weights."""
    load_tokenizer(str(EXAMPLE / "policy")).save_pretrained(tmp_path / "model")
    Qwen3Config(
        vocab_size=1024,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=True,
    ).save_pretrained(tmp_path / "model")
    (tmp_path / "dialogues.jsonl").write_text("".join(json.dumps(dialogue(n)) + "\n" for n in range(32)))
    (tmp_path / "sft.yaml").write_text(
        f"""
data: {{train_files: [dialogues.jsonl]}}
model: {{path: model}}
training:
  {{initial_weights: random, num_steps: 30, examples_per_step: 8, learning_rate: 0.01, warmup_steps: 5, num_threads: 1}}
output_dir: {tmp_path / "out"}
"""
    )
    return tmp_path


@pytest.fixture
def config(folder: Path) -> SftConfig:
    return load_sft_config(str(folder / "sft.yaml"))


def with_training(config: SftConfig, **changes: object) -> SftConfig:
    return replace(config, training=replace(config.training, **changes))


def test_the_loss_falls(config: SftConfig) -> None:
    losses = warm_start(config)
    assert len(losses) == 30
    assert losses[-1] < 0.5 * losses[0]


def test_a_learning_rate_of_zero_leaves_the_loss_where_it_was(config: SftConfig) -> None:
    losses = warm_start(with_training(config, learning_rate=0.0, num_steps=8))
    assert losses[-1] == pytest.approx(losses[0], rel=0.05)


def test_the_same_command_gives_the_same_weights(config: SftConfig, tmp_path: Path) -> None:
    weights = []
    for name in ("first", "second"):
        warm_start(replace(with_training(config, num_steps=4), output_dir=str(tmp_path / name)))
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_another_seed_gives_other_weights(config: SftConfig, tmp_path: Path) -> None:
    weights = []
    for seed in (0, 1):
        changed = with_training(config, num_steps=1, seed=seed)
        warm_start(replace(changed, output_dir=str(tmp_path / str(seed))))
        weights.append((tmp_path / str(seed) / "model.safetensors").read_bytes())
    assert weights[0] != weights[1]


def test_the_written_folder_is_a_whole_model(config: SftConfig) -> None:
    warm_start(with_training(config, num_steps=1))
    AutoModelForCausalLM.from_pretrained(config.output_dir)
    assert len({file.stat().st_mode for file in Path(config.output_dir).iterdir()}) == 1, "who reads one reads all"
    tokens = ChatTokens(load_tokenizer(config.output_dir), [])
    assert tokens.prompt([{"role": "user", "content": "Say 1."}])


def test_pretrained_weights_are_where_training_goes_on(config: SftConfig) -> None:
    reached = warm_start(config)[-1]
    again = replace(config, model=replace(config.model, path=config.output_dir))
    losses = warm_start(with_training(again, initial_weights="pretrained", num_steps=1))
    assert losses[0] == pytest.approx(reached, rel=0.2)


def test_the_model_may_be_written_over_its_own_folder(config: SftConfig) -> None:
    warm_start(replace(with_training(config, num_steps=1), output_dir=config.model.path))
    assert (Path(config.model.path) / "model.safetensors").is_file()
    load_tokenizer(config.model.path)


def test_every_epoch_shows_each_dialogue_once_in_a_new_order() -> None:
    drawn = list(islice(shuffled_forever(50, seed=3), 100))
    assert sorted(drawn[:50]) == sorted(drawn[50:]) == list(range(50))
    assert drawn[:50] != drawn[50:]
    assert drawn == list(islice(shuffled_forever(50, seed=3), 100))
    assert drawn != list(islice(shuffled_forever(50, seed=4), 100))


def test_tools_of_the_config_are_listed_in_the_prompts_that_are_trained_on(config: SftConfig) -> None:
    without = warm_start(with_training(config, num_steps=1))
    tools = str(SHIPPED_FOLDER / "tool_configs" / "python_tool_config.yaml")
    with_tools = warm_start(replace(with_training(config, num_steps=1), tool_config_path=tools))
    assert with_tools != without


def test_a_tool_without_a_written_schema_is_refused(config: SftConfig, tmp_path: Path) -> None:
    tools = tmp_path / "tools.yaml"
    tools.write_text("tools: [{class_name: agentrl.tools.python_tool.PythonTool}]")
    with pytest.raises(ConfigError, match="tool_schema"):
        warm_start(replace(config, tool_config_path=str(tools)))


def test_an_unknown_key_is_named_with_a_suggestion(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"sft\.yaml.*learning_rat|learning_rat.*learning_rate"):
        load_sft_config(str(folder / "sft.yaml"), ["training.learning_rat=1"])


def test_zero_steps_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"`training\.num_steps` is 0"):
        load_sft_config(str(folder / "sft.yaml"), ["training.num_steps=0"])


def test_a_missing_file_of_dialogues_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl` does not exist"):
        read_dialogues([str(folder / "nowhere.jsonl")], "messages")


@pytest.mark.parametrize(
    "row", [{"prompt": []}, {"messages": "text"}, {"messages": [{"role": "user", "content": "Hi."}]}]
)
def test_a_row_that_teaches_nothing_is_named_by_file_and_line(tmp_path: Path, row: dict) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(dialogue(1)) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: "):
        read_dialogues([str(file)], "messages")


def test_an_empty_file_of_dialogues_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(ConfigError, match="no dialogue"):
        read_dialogues([str(tmp_path / "rows.jsonl")], "messages")


def test_the_command_line_ends_a_mistake_of_the_user_with_one_line(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "agentrl.runners.sft", str(folder / "sft.yaml"), "training.num_step=3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert "num_steps" in ended.stderr


def test_the_shipped_config_is_valid() -> None:
    config = load_sft_config(str(EXAMPLE / "sft.yaml"))
    assert Path(config.model.path) == EXAMPLE / "policy"


def test_the_chat_template_of_the_config_is_trained_on_and_exported(folder: Path) -> None:
    words = ["model.chat_template=configs/templates/chatml_hermes.jinja", "training.num_steps=1"]
    config = load_sft_config(str(folder / "sft.yaml"), words)
    assert Path(config.model.chat_template or "").is_absolute()
    warm_start(config)
    exported = load_tokenizer(config.output_dir)
    assert exported.chat_template == Path(config.model.chat_template or "").read_text()
    assert exported.chat_template != load_tokenizer(config.model.path).chat_template
    assert "chat_template" not in json.loads(Path(config.output_dir, "tokenizer_config.json").read_text())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.chat_template=nowhere.jinja", r"sft\.yaml: `model\.chat_template` is nowhere\.jinja, which is no file"),
        (
            "model.template_kwargs={tools: null}",
            r"sft\.yaml: `model\.template_kwargs\.tools` is an argument that agentrl sets",
        ),
    ],
)
def test_wrong_keys_of_the_template_are_refused(folder: Path, word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sft_config(str(folder / "sft.yaml"), [word])


def test_a_template_that_drops_the_calls_of_the_dialogues_is_refused(folder: Path) -> None:
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    turn = {"role": "assistant", "content": "b", "tool_calls": [call]}
    row = {"messages": [{"role": "user", "content": "a"}, turn]}
    (folder / "dialogues.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "drops.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = load_sft_config(str(folder / "sft.yaml"), ["model.chat_template=drops.jinja", "training.num_steps=1"])
    with pytest.raises(ConfigError, match=r"message 1: .*which a rollout would not read as these calls"):
        warm_start(config)
