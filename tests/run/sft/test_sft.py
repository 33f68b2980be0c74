import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.schema.sft import SftConfig
from agentrl.config.sft_load import load_sft_config
from agentrl.errors import ConfigError
from agentrl.models.tokenizer import load_tokenizer
from agentrl.observability.metrics_file import read_metrics, series
from agentrl.run.preflight.models.dtype import best_dtype
from agentrl.run.sft.check import check
from agentrl.run.sft.data import read_data, shuffled_forever
from agentrl.run.sft.run import prepare
from agentrl.run.stop_request import SignalledError, StopRequest
from agentrl.runners.sft import train

EXAMPLE = SHIPPED_FOLDER / "examples" / "arithmetic"
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
NOW = {
    "type": "function",
    "function": {"name": "now", "description": "Tell the time.", "parameters": {"type": "object"}},
}


def dialogue(number: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"Say {number}."},
            {"role": "assistant", "content": CALL},
            {"role": "tool", "content": "success"},
            {"role": "assistant", "content": f"It is {number}."},
        ]
    }


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


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
    write_rows(tmp_path / "dialogues.jsonl", [dialogue(n) for n in range(32)])
    write_rows(tmp_path / "held_out.jsonl", [dialogue(n) for n in range(100, 104)])
    (tmp_path / "sft.yaml").write_text(
        f"""
run: {{dir: {tmp_path / "run"}}}
data: {{train_files: [dialogues.jsonl]}}
model: {{path: model}}
training:
  {{initial_weights: random, num_steps: 6, examples_per_step: 8, learning_rate: 0.01, warmup_steps: 2, num_threads: 1}}
checkpoint: {{every_steps: 2}}
"""
    )
    return tmp_path


Loader = Callable[..., SftConfig]


@pytest.fixture
def load(folder: Path) -> Loader:
    return lambda *words: load_sft_config(str(folder / "sft.yaml"), words)


def losses(config: SftConfig, name: str = "sft/loss") -> list[float]:
    assert config.run.dir is not None
    return series(read_metrics(Path(config.run.dir, "metrics.jsonl")), name)[1]


def trained(config: SftConfig) -> list[float]:
    train(config, StopRequest())
    return losses(config)


def weights(run_dir: Path) -> bytes:
    return (run_dir / "policy" / "model.safetensors").read_bytes()


class StopsAfter(StopRequest):
    """A signal that comes after so many steps."""

    def __init__(self, num_steps: int) -> None:
        self._num_left = num_steps
        super().__init__()

    @property
    def requested(self) -> bool:
        self._num_left -= 1
        return self._num_left < 0


def test_the_loss_falls_and_every_step_has_its_line(load: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    config = load("training.num_steps=30")
    fell = trained(config)
    assert len(fell) == 30
    assert fell[-1] < 0.5 * fell[0]
    printed = capsys.readouterr()
    assert sum("  loss " in line for line in printed.out.splitlines()) == 30
    assert "trained model: " in printed.out


def test_a_learning_rate_of_zero_leaves_the_loss_where_it_was(load: Loader) -> None:
    values = trained(load("training.learning_rate=0", "training.num_steps=4"))
    assert values[-1] == pytest.approx(values[0], rel=0.05)


def test_the_same_command_gives_the_same_weights_and_another_seed_others(load: Loader, folder: Path) -> None:
    for name, seed in (("first", 0), ("second", 0), ("third", 1)):
        trained(load("training.num_steps=2", f"training.seed={seed}", f"run.dir={folder / name}"))
    assert weights(folder / "first") == weights(folder / "second") != weights(folder / "third")


def test_the_written_folder_is_a_whole_model(load: Loader, folder: Path) -> None:
    trained(load("training.num_steps=1"))
    policy = folder / "run" / "policy"
    AutoModelForCausalLM.from_pretrained(policy)
    assert len({file.stat().st_mode for file in policy.iterdir()}) == 1, "who reads one reads all"
    tokens = ChatTokens(load_tokenizer(str(policy)), [])
    assert tokens.prompt([{"role": "user", "content": "Say 1."}])


def test_pretrained_weights_are_where_training_goes_on(load: Loader, folder: Path) -> None:
    reached = trained(load("training.num_steps=20"))[-1]
    second = ["training.initial_weights=pretrained", f"model.path={folder / 'run' / 'policy'}", "training.num_steps=1"]
    assert trained(load(*second, f"run.dir={folder / 'second'}"))[0] == pytest.approx(reached, rel=0.2)


def test_the_model_is_written_to_output_dir_also_over_the_folder_that_describes_it(load: Loader, folder: Path) -> None:
    config = load("training.num_steps=1", f"output_dir={folder / 'model'}")
    trained(config)
    AutoModelForCausalLM.from_pretrained(folder / "model")
    train(config, StopRequest())  # finished, and shown


def test_pretrained_weights_are_not_written_over_and_no_other_files_are(load: Loader, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"`output_dir` is `model\.path`"):
        load("training.initial_weights=pretrained", f"output_dir={folder / 'model'}")
    with pytest.raises(ConfigError, match=r"output_dir: .* holds no model"):
        train(load(f"output_dir={folder}"), StopRequest())


def test_every_epoch_shows_each_dialogue_once_in_a_new_order() -> None:
    drawn = list(islice(shuffled_forever(50, seed=3), 100))
    assert sorted(drawn[:50]) == sorted(drawn[50:]) == list(range(50))
    assert drawn[:50] != drawn[50:]
    assert drawn == list(islice(shuffled_forever(50, seed=3), 100))
    assert drawn != list(islice(shuffled_forever(50, seed=4), 100))


def test_the_length_may_be_given_in_epochs(load: Loader) -> None:
    config = load("training.num_steps=null", "training.num_epochs=1.5")
    assert len(trained(config)) == 6, "32 dialogues, 8 at a time"
    with pytest.raises(ConfigError, match="keep one of them"):
        load("training.num_epochs=2")


@pytest.mark.parametrize("num_steps", [0, 3, 6])
def test_a_stopped_run_resumes_to_the_same_weights_and_numbers(load: Loader, folder: Path, num_steps: int) -> None:
    held_out = f"data.validation_files=[{folder / 'held_out.jsonl'}]"
    small = "training.max_tokens_per_micro_batch=200"  # two micro-batches a step
    words = [held_out, small, "validation.every_steps=2"]
    whole, stopped = load(*words, f"run.dir={folder / 'whole'}"), load(*words)
    trained(whole)
    with pytest.raises(SignalledError):
        train(stopped, StopsAfter(num_steps))
    train(stopped, StopRequest())
    assert weights(folder / "run") == weights(folder / "whole")
    for name in ("sft/loss", "validation/loss", "sft/learning_rate"):
        assert losses(stopped, name) == losses(whole, name)


@pytest.mark.slow
def test_the_same_command_goes_on_after_every_kind_of_signal(folder: Path, load: Loader) -> None:
    words = ["training.num_steps=80", "checkpoint.every_steps=10"]
    command = [sys.executable, "-m", "agentrl.runners.sft", str(folder / "sft.yaml"), *words]
    checkpoint, last = folder / "run" / "last_checkpoint.json", 0
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        last = wait_for_checkpoint(checkpoint, after=last)
        os.kill(process.pid, number)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), stderr
        if number != signal.SIGKILL:
            assert f"stopped by {number.name}; the same command resumes from its last checkpoint" in stderr
            assert "Traceback" not in stderr
        last = json.loads(checkpoint.read_bytes())["step"]
    assert last < 80
    subprocess.run(command, check=True, timeout=120)
    trained(load(*words, f"run.dir={folder / 'whole'}"))
    assert weights(folder / "run") == weights(folder / "whole")


def wait_for_checkpoint(file: Path, *, after: int) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if file.is_file() and (step := json.loads(file.read_bytes())["step"]) > after:
            return step
        time.sleep(0.005)
    raise TimeoutError(f"no checkpoint after step {after}")


def test_a_changed_config_is_refused_by_its_keys_and_a_faster_one_is_not(load: Loader) -> None:
    with pytest.raises(SignalledError):
        train(load(), StopsAfter(2))
    with pytest.raises(ConfigError, match=r"`training\.learning_rate` was 0\.01 and is 0\.1"):
        train(load("training.learning_rate=0.1"), StopRequest())
    with pytest.raises(ConfigError, match=r"`training\.num_steps` was 6 and is 7"):
        train(load("training.num_steps=7"), StopRequest())
    assert len(trained(load("checkpoint.every_steps=5", "training.activation_checkpointing=true"))) == 6


def test_changed_dialogues_are_refused(load: Loader, folder: Path) -> None:
    with pytest.raises(SignalledError):
        train(load(), StopsAfter(2))
    write_rows(folder / "dialogues.jsonl", [dialogue(n) for n in range(40)])
    with pytest.raises(ConfigError, match=r"read other content from `data\.train_files\[0\]`"):
        train(load(), StopRequest())


def test_a_finished_run_only_prints_its_result(load: Loader, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load("training.num_steps=1")
    trained(config)
    written = (folder / "run" / "policy" / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    train(config, StopRequest())
    printed = capsys.readouterr()
    assert "training loss" in printed.out
    assert "loss " not in printed.out.partition("●")[0]
    assert (folder / "run" / "policy" / "model.safetensors").stat().st_mtime_ns == written


def test_the_type_of_auto_is_chosen_once_and_written_down(load: Loader, folder: Path) -> None:
    trained(load("training.num_steps=1", "model.dtype=auto"))
    saved = load_sft_config(str(folder / "run" / "config.yaml"))
    assert saved.model.dtype == best_dtype()[0]


def test_files_may_be_named_by_a_pattern(load: Loader, folder: Path) -> None:
    words = ["data.train_files=['d*.jsonl']", "data.validation_files=['held_*.jsonl']"]
    data = load(*words).data
    assert (data.train_files, data.validation_files) == (
        [str(folder / "dialogues.jsonl")],
        [str(folder / "held_out.jsonl")],
    )
    with pytest.raises(ConfigError, match=r"`data\.train_files` holds `none/\*\.jsonl`, which matches no file"):
        load("data.train_files=['none/*.jsonl']")


def test_the_check_of_a_run_that_began_with_auto_logs_and_accepts_it(
    load: Loader, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load("training.num_steps=2", "model.dtype=auto", "checkpoint.every_steps=1")
    with pytest.raises(SignalledError):
        train(config, StopsAfter(2))
    capsys.readouterr()
    check(config)
    printed = capsys.readouterr().out
    assert f"model.dtype: auto is {best_dtype()[0]}, with which this run began" in printed
    assert "reading and tokenising" in printed
    assert "ok (nothing was built" in printed


def test_only_the_last_checkpoints_are_kept(load: Loader, folder: Path) -> None:
    trained(load("checkpoint.keep_last=2"))
    kept = {path.name for path in (folder / "run" / "checkpoints").glob("step_*")}
    assert kept == {"step_000004", "step_000006"}


def test_the_held_out_loss_is_measured_first_last_and_in_between(load: Loader, folder: Path) -> None:
    config = load(f"data.validation_files=[{folder / 'held_out.jsonl'}]", "validation.every_steps=4")
    trained(config)
    rows = read_metrics(folder / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "validation/loss" in row] == [0, 4, 6]
    assert losses(config, "validation/loss")[-1] < losses(config, "validation/loss")[0]


def test_lora_trains_factors_and_writes_them_merged_and_by_themselves(load: Loader, folder: Path) -> None:
    trained(load("training.num_steps=10"))
    base = folder / "run" / "policy"
    lora = ["training.initial_weights=pretrained", f"model.path={base}", "lora.rank=2", "training.num_steps=12"]
    for name in ("whole", "stopped"):
        config = load(*lora, f"run.dir={folder / name}")
        if name == "stopped":
            with pytest.raises(SignalledError):
                train(config, StopsAfter(2))
        trained(config)
        assert losses(config)[-1] < losses(config)[0]
    assert weights(folder / "whole") == weights(folder / "stopped") != (base / "model.safetensors").read_bytes()
    adapter = json.loads((folder / "whole" / "policy" / "adapter" / "adapter_config.json").read_text())
    assert adapter["r"] == 2
    with pytest.raises(ConfigError, match="random weights"):
        load("lora.rank=2")


def test_tools_of_the_config_are_listed_in_the_prompts_that_are_trained_on(load: Loader) -> None:
    tools = SHIPPED_FOLDER / "tool_configs" / "python_tool_config.yaml"
    data = read_data(load(f"tool_config_path={tools}"))
    assert "python_code_with_standard_io" in data.tokens.decode_all(data.training.dialogues[0].token_ids.tolist())


def test_tools_of_a_row_are_listed_for_that_row_alone(load: Loader, folder: Path) -> None:
    write_rows(folder / "dialogues.jsonl", [dialogue(0) | {"tools": json.dumps([NOW])}, dialogue(1)])
    data = read_data(load())
    texts = [data.tokens.decode_all(item.token_ids.tolist()) for item in data.training.dialogues]
    assert ["Tell the time." in text for text in texts] == [True, False]


def test_a_function_and_the_python_tool_are_listed_by_their_own_schemas(
    load: Loader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (folder / "listed_tools.py").write_text('def add(a: int) -> int:\n    """Add one."""\n    return a + 1\n')
    python = "{class_name: agentrl.tools.python_tool.PythonTool}"
    (folder / "tools.yaml").write_text(f"tools: [{{function: listed_tools.add}}, {python}]")
    data = read_data(load(f"tool_config_path={folder / 'tools.yaml'}"))
    text = data.tokens.decode_all(data.training.dialogues[0].token_ids.tolist())
    assert "Add one." in text
    assert "python_code_with_standard_io" in text


def test_a_class_without_a_written_schema_is_refused(load: Loader, folder: Path) -> None:
    (folder / "tools.yaml").write_text("tools: [{class_name: my_tools.Dictionary}]")
    with pytest.raises(ConfigError, match=r"`my_tools.Dictionary` has no `tool_schema`"):
        read_data(load(f"tool_config_path={folder / 'tools.yaml'}"))


def test_a_call_to_a_tool_that_the_prompt_does_not_list_is_refused_unless_it_is_not_trained(
    load: Loader, folder: Path
) -> None:
    def row(name: str, **more: Any) -> dict[str, Any]:
        turn = {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": {}}}], **more}
        answer = {"role": "assistant", "content": "noon"}
        return {"messages": [{"role": "user", "content": "when?"}, turn, {"role": "tool", "content": "12"}, answer]}

    write_rows(folder / "dialogues.jsonl", [row("now") | {"tools": [NOW]}, row("nwo", weight=0) | {"tools": [NOW]}])
    assert len(read_data(load()).training.dialogues) == 2
    write_rows(folder / "dialogues.jsonl", [dialogue(0), row("nwo") | {"tools": [NOW]}])
    with pytest.raises(ConfigError, match=r"dialogues\.jsonl:2: a call to `nwo`, and the prompt lists now;"):
        read_data(load())
    write_rows(folder / "dialogues.jsonl", [row("now")])
    with pytest.raises(ConfigError, match="a call to `now`, and the prompt lists no tools;"):
        read_data(load())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("training.learning_rat=1", "learning_rate"),
        ("training.num_steps=0", r"`training\.num_steps` is 0"),
        ("training.examples_per_step=0", r"`training\.examples_per_step` is 0"),
        ("data.max_tokens=0", r"`data\.max_tokens` is 0"),
        ("training.learning_rate=.nan", r"`training\.learning_rate` is nan"),
        ("training.learning_rate=1", r"`training\.learning_rate` is 1"),
        ("data.train_files=[]", r"`data\.train_files` is empty"),
        ("validation.every_steps=3", r"`data\.validation_files` is empty"),
        ("lora.alpha=3", r"`lora\.rank` is 0"),
        ("run.dir=s3://bucket/run", r"`run\.dir`"),
    ],
)
def test_a_wrong_key_is_named(load: Loader, words: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"sft\.yaml.*{problem}|{problem}"):
        load(words)


def test_a_missing_file_of_dialogues_is_named(load: Loader, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: no such file"):
        read_data(load(f"data.train_files=[{folder / 'nowhere.jsonl'}]"))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": []},
        {"messages": "text"},
        {"messages": [{"role": "user", "content": "Hi."}]},
        {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": 3}]},
    ],
)
def test_a_row_that_teaches_nothing_is_named_by_file_and_line(load: Loader, folder: Path, row: dict[str, Any]) -> None:
    write_rows(folder / "dialogues.jsonl", [dialogue(1), row])
    with pytest.raises(ConfigError, match=r"dialogues\.jsonl:2: "):
        train(load(), StopRequest())
    assert not (folder / "run").exists()


def test_a_dialogue_that_the_template_cannot_render_is_named_by_file_and_line(load: Loader, folder: Path) -> None:
    template = "{% if messages|length > 4 %}{{ raise_exception('too many') }}{% endif %}"
    file = folder / "model" / "chat_template.jinja"
    file.write_text(template + file.read_text())
    write_rows(folder / "dialogues.jsonl", [dialogue(1), {"messages": dialogue(2)["messages"] * 2}])
    with pytest.raises(ConfigError, match=r"dialogues\.jsonl:2: .*too many"):
        read_data(load())


def test_an_empty_file_of_dialogues_is_refused(load: Loader, folder: Path) -> None:
    (folder / "dialogues.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"data\.train_files: no dialogue"):
        read_data(load())


def test_longer_dialogues_are_refused_or_dropped_and_counted(load: Loader, folder: Path) -> None:
    long = {"messages": [{"role": "user", "content": "a b " * 200}, {"role": "assistant", "content": "Hi."}]}
    write_rows(folder / "dialogues.jsonl", [dialogue(1), long, dialogue(2)])
    with pytest.raises(ConfigError, match=r"1 of 3 dialogues have more than 100 tokens.*dialogues\.jsonl:2 "):
        read_data(load("data.max_tokens=100"))
    kept = read_data(load("data.max_tokens=100", "data.overlong_dialogues=drop")).training
    assert (len(kept.dialogues), kept.num_dropped) == (2, 1)
    assert "1 longer" in kept.describe()
    assert read_data(load()).training.num_dropped == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"max_position_embeddings": 16},
        {
            "max_position_embeddings": 4096,
            "rope_scaling": {
                "rope_type": "longrope",
                "original_max_position_embeddings": 16,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
            },
        },
    ],
)
def test_dialogues_longer_than_the_positions_of_the_model_are_refused(
    load: Loader, folder: Path, settings: dict[str, Any]
) -> None:
    config = folder / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    with pytest.raises(ConfigError, match="more than 16 tokens"):
        read_data(load())


def test_dialogues_within_the_positions_after_yarn_are_trained_on(load: Loader, folder: Path) -> None:
    config = folder / "model" / "config.json"
    yarn = {"rope_type": "yarn", "factor": 256.0, "original_max_position_embeddings": 16}
    settings = {"max_position_embeddings": 16, "rope_parameters": yarn}
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    assert len(read_data(load()).training.dialogues) == 32


@pytest.mark.parametrize(
    ("settings", "words", "problem"),
    [
        ({"num_experts": 4}, [], r"^lora\.rank: .* is a mixture of experts, .*; leave `lora` out"),
        ({"num_local_experts": 4}, ["lora.target_modules=[q_proj]"], r"^lora\.rank: .* is a mixture of experts"),
        ({}, ["lora.target_modules=[query]"], r"^lora\.target_modules: .* has no `query`; its layers have .*q_proj"),
    ],
)
def test_what_lora_does_not_adapt_is_refused_before_anything_starts(
    load: Loader, tmp_path: Path, settings: dict[str, Any], words: list[str], problem: str
) -> None:
    base = tmp_path / "base"
    shutil.copytree(EXAMPLE / "policy", base)
    config = base / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    lora = ["training.initial_weights=pretrained", f"model.path={base}", "lora.rank=2", *words]
    with pytest.raises(ConfigError, match=problem):
        check(load(*lora))
    with pytest.raises(ConfigError, match=problem):
        prepare(load(*lora))


def test_a_layer_that_cannot_be_adapted_is_named_by_the_key_of_a_warm_start(load: Loader) -> None:
    pretrained = ["training.initial_weights=pretrained", f"model.path={EXAMPLE / 'policy'}", "training.num_steps=1"]
    with pytest.raises(ConfigError, match=r"^`lora\.target_modules` is \['embed_tokens'\]: .* is no linear layer"):
        train(load(*pretrained, "lora.rank=2", "lora.target_modules=[embed_tokens]"), StopRequest())


def test_an_architecture_that_packing_would_break_is_refused_before_anything_starts(load: Loader, folder: Path) -> None:
    settings = {"model_type": "stablelm", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    (folder / "model" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"model\.path.*stablelm.*does not pass arguments on"):
        prepare(load())


def test_the_check_counts_shows_what_is_trained_and_writes_nothing(
    load: Loader, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(folder.rglob("*"))
    check(load(f"data.validation_files=[{folder / 'held_out.jsonl'}]"))
    printed = capsys.readouterr().out
    assert "training: 32 dialogues" in printed
    assert "held-out: 4 dialogues" in printed
    assert "steps: 6 of 8 dialogues, 1.50 passes" in printed
    assert f"run.dir: {folder / 'run'} can be written" in printed
    assert f"⟦{CALL}<|im_end|>⟧" in printed
    assert "⟦It is 0.<|im_end|>⟧" in printed
    assert set(folder.rglob("*")) == before


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


@pytest.mark.parametrize("name", ["arithmetic", "image_edit"])
def test_the_shipped_configs_are_valid(name: str) -> None:
    config = load_sft_config(str(SHIPPED_FOLDER / "examples" / name / "sft.yaml"))
    assert Path(config.model.path) == SHIPPED_FOLDER / "examples" / name / "policy"


def test_the_chat_template_of_the_config_is_trained_on_and_exported(load: Loader, folder: Path) -> None:
    config = load("model.chat_template=configs/templates/chatml_hermes.jinja", "training.num_steps=1")
    assert Path(config.model.chat_template or "").is_absolute()
    trained(config)
    exported = load_tokenizer(str(folder / "run" / "policy"))
    template = Path(config.model.chat_template or "").read_text()
    assert exported.chat_template == f'{{%- set turn_end_token = "<|im_end|>" -%}}\n{template}'
    assert exported.chat_template != load_tokenizer(config.model.path).chat_template
    assert "chat_template" not in json.loads((folder / "run" / "policy" / "tokenizer_config.json").read_text())


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.chat_template=nowhere.jinja", r"sft\.yaml: `model\.chat_template` is nowhere\.jinja, which is no file"),
    ],
)
def test_wrong_keys_of_the_template_are_refused(load: Loader, word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(word)


def test_a_template_that_drops_the_calls_of_the_dialogues_is_refused(load: Loader, folder: Path) -> None:
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    turn = {"role": "assistant", "content": "b", "tool_calls": [call]}
    row = {"messages": [{"role": "user", "content": "a"}, turn], "tools": [NOW]}
    write_rows(folder / "dialogues.jsonl", [dialogue(0), row])
    (folder / "drops.jinja").write_text(
        "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    problem = r"dialogues\.jsonl:2: .*drops the tool calls of an assistant's turn"
    with pytest.raises(ConfigError, match=problem):
        train(load("model.chat_template=drops.jinja"), StopRequest())
