import re
from pathlib import Path

import pytest

from agentrl.config.class_path import import_by_path
from agentrl.config.load import find_config_file, load_run_config
from agentrl.config.plain import flatten
from agentrl.config.schema.paths import resolve_path
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from tests.config.small_config import MINIMAL, refused


def test_defaults_file_and_command_line_merge_in_that_order(config_file: Path):
    config_file.write_text(MINIMAL + "rollout: {temperature: 0.5, max_turns: 3}\n")
    config = load_run_config(str(config_file), ["rollout.max_turns=4"]).config
    assert (config.rollout.temperature, config.rollout.max_turns, config.validation.top_p) == (0.5, 4, 1.0)


def test_an_unknown_key_is_refused_with_its_full_name_and_a_suggestion(config_file: Path):
    config_file.write_text(MINIMAL + "rollout: {temprature: 1.0}\n")
    message = refused(config_file)
    assert "small.yaml" in message
    assert "rollout.temprature" in message
    assert "temperature" in message


def test_a_key_of_another_section_is_named_in_full(config_file: Path):
    message = refused(config_file, "rollout.max_prompt_tokens=64")
    assert message.endswith("unknown key `rollout.max_prompt_tokens`. Did you mean `data.max_prompt_tokens`?")


def test_an_unknown_key_on_the_command_line_is_refused(config_file: Path):
    message = refused(config_file, "rollout.temprature=1")
    assert "command line" in message
    assert "temperature" in message


def test_a_wrong_type_is_refused_with_key_and_value(config_file: Path):
    message = refused(config_file, "run.num_steps=many")
    assert "run.num_steps" in message
    assert "many" in message


def test_a_value_outside_a_closed_set_is_refused(config_file: Path):
    assert "rollout.engine" in refused(config_file, "rollout.engine=warp_drive")


def test_a_missing_value_is_named(tmp_path: Path):
    file = tmp_path / "empty.yaml"
    file.write_text("run: {num_steps: 1}\n")
    message = refused(file)
    assert message == "empty.yaml: `model.path` is missing"


def test_a_missing_file_says_where_it_was_looked_for():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        load_run_config("nowhere.yaml")


@pytest.mark.parametrize("text", ["a: [1,", "- just\n- a list\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    assert refused(file).startswith("bad.yaml: ")


def test_a_word_without_equals_is_refused(config_file: Path):
    assert "`--fast`" in refused(config_file, "--fast")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["algorithm.selection.keep=64"], "rollout.samples_per_prompt"),
        (["validation.every_steps=5"], "data.validation_files"),
        (["rollout.max_infra_error_share=1.5"], "rollout.max_infra_error_share"),
        (["rollout.num_engines=0"], "rollout.num_engines"),
        (["rollout.tensor_parallel_size=0"], "rollout.tensor_parallel_size"),
        (["rollout.tensor_parallel_size=2"], "rollout.tensor_parallel_size"),
        (["rollout.data_parallel_size=2"], "rollout.data_parallel_size"),
        (["rollout.kv_memory_gb=-1"], "rollout.kv_memory_gb"),
        (["rollout.kv_memory_gb=1"], "rollout.kv_memory_gb"),
        (["actor.mini_batches_per_step=999"], "rollout.prompts_per_step"),
        (["actor.mini_batches_per_step=5"], "rollout.prompts_per_step"),
        (["algorithm.advantage=grop"], "algorithm.advantage"),
        (["algorithm.policy_loss=pop"], "algorithm.policy_loss"),
        (["algorithm.clip_ratio_dual=1.1"], "algorithm.clip_ratio_dual"),
        (["algorithm.entropy_coefficient=-1"], "algorithm.entropy_coefficient"),
        (["algorithm.rollout_correction.max_ratio=0.9"], "algorithm.rollout_correction"),
        (["algorithm.rollout_correction.min_ratio=1.1"], "algorithm.rollout_correction"),
        (["judge.token_env=TOKEN"], "judge.token_env"),
        (["judge.hosts=[a:1]", "judge.placement=per_node"], "judge.placement"),
        (["judge.hosts=[a]"], "judge.hosts[0]"),
        (["rollout.temperature=0"], "rollout.temperature"),
        (["actor.learning_rate=.nan"], "actor.learning_rate"),
        (["rollout.tool_timeout_s=.inf"], "rollout.tool_timeout_s"),
        (["actor.learning_rate=2"], "actor.learning_rate"),
        (["actor.decay_steps=20"], "actor.decay_steps"),
        (["rollout.stop=['']"], "rollout.stop[0]"),
        (["actor.decay_steps=-1"], "actor.decay_steps"),
        (["actor.final_learning_rate_fraction=0.5"], "actor.final_learning_rate_fraction"),
        (["actor.decay_steps=90", "actor.final_learning_rate_fraction=2"], "actor.final_learning_rate_fraction"),
        (["judge.num_slots=-1"], "judge.num_slots"),
        (["algorithm.selection.min_positives=-5"], "algorithm.selection.min_positives"),
        (["rollout.engine=openai", "rollout.openai.base_urls=['http://a:1/v1']"], "rollout.engine"),
        (["rollout.engine=openai"], "rollout.openai.base_urls"),
        (["rollout.openai.token_env=TOKEN"], "rollout.openai.token_env"),
    ],
)
def test_contradictions_and_ranges_are_refused_with_their_keys(config_file: Path, overrides: list[str], named: str):
    assert f"`{named}`" in refused(config_file, *overrides)


EVALUATION = [
    "data.validation_files=[held_out.jsonl]",
    "rollout.engine=openai",
    "rollout.openai.base_urls=['http://10.0.0.1:8000/v1']",
]


def test_an_evaluation_needs_no_training_prompts_and_samples_as_it_likes(tmp_path: Path):
    file = tmp_path / "measure.yaml"
    file.write_text("model: {path: policy}\n")
    words = [*EVALUATION, "rollout.temperature=0", "validation.top_p=0.9", "validation.top_k=20"]
    config = load_run_config(str(file), words, purpose=Purpose.EVALUATION).config
    assert (config.rollout.temperature, config.validation.top_k, config.data.train_files) == (0, 20, [])


def test_an_evaluation_of_a_training_config_has_a_folder_of_its_own(config_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(config_file.parent)
    config = load_run_config(str(config_file), EVALUATION, purpose=Purpose.EVALUATION).config
    assert config.run.dir == str(config_file.parent / "runs" / "small_evaluation")
    assert config.data.train_files == []


def test_an_export_needs_no_prompts_and_looks_into_the_folder_of_the_run(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
):
    config_file.write_text("model: {path: policy}\n")
    monkeypatch.chdir(config_file.parent)
    config = load_run_config(str(config_file), purpose=Purpose.EXPORT).config
    assert (config.run.dir, config.data.train_files) == (str(config_file.parent / "runs" / "small"), [])


@pytest.mark.parametrize("purpose", [Purpose.EVALUATION, Purpose.EXPORT])
def test_patterns_and_interpolations_of_files_that_are_not_read_may_match_nothing(config_file: Path, purpose: Purpose):
    words = [
        "data.train_files=['a/*.jsonl', '${oc.env:NOT_SET_HERE}/a.jsonl']",
        "stages=[{num_steps: 1, train_files: ['b/*.jsonl', '${oc.env:NOT_SET_HERE}/b.jsonl']}]",
    ]
    if purpose is Purpose.EXPORT:
        words.append("data.validation_files=['c/*.jsonl']")
    else:
        words += EVALUATION
    config = load_run_config(str(config_file), words, purpose=purpose).config
    assert (config.data.train_files, config.stages[0].train_files) == ([], [])
    assert bool(config.data.validation_files) == (purpose is Purpose.EVALUATION)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("data.validation_files=[]", "`data.validation_files` is empty"),
        ("rollout.temperature=-1", "`rollout.temperature` is -1"),
        ("rollout.openai.base_urls=[]", "`rollout.openai.base_urls` is empty"),
        ("rollout.openai.base_urls=['10.0.0.1:8000']", "`rollout.openai.base_urls[0]`"),
        ("rollout.openai.base_urls=['http://a:1','http://a:99999']", "`rollout.openai.base_urls[1]`"),
        ("rollout.openai.base_urls=['http://a/v1?key=x']", "`rollout.openai.base_urls[0]`"),
    ],
)
def test_an_evaluation_that_could_not_run_is_refused(config_file: Path, override: str, named: str):
    with pytest.raises(ConfigError) as caught:
        load_run_config(str(config_file), [*EVALUATION, override], purpose=Purpose.EVALUATION)
    assert named in str(caught.value)


def test_a_password_in_the_address_of_a_server_is_refused_and_not_repeated(config_file: Path):
    words = [*EVALUATION, "rollout.openai.base_urls=['http://me:hunter2@a:1/v1']"]
    with pytest.raises(ConfigError, match=r"token_env") as caught:
        load_run_config(str(config_file), words, purpose=Purpose.EVALUATION)
    assert "hunter2" not in str(caught.value)


def test_the_run_directory_is_named_after_the_config(config_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(config_file.parent)
    config = load_run_config(str(config_file)).config
    assert config.run.dir == str(config_file.parent / "runs" / "small")


def test_a_relative_path_is_looked_up_next_to_the_config_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    beside, working_folder = tmp_path / "configs", tmp_path / "here"
    for folder in (beside, working_folder):
        folder.mkdir()
        (folder / "train.jsonl").write_text("")
    (working_folder / "only_here.jsonl").write_text("")
    monkeypatch.chdir(working_folder)
    config_file = beside / "run.yaml"
    assert resolve_path("train.jsonl", config_file=config_file) == str(beside / "train.jsonl")
    assert resolve_path("only_here.jsonl", config_file=config_file) == str(working_folder / "only_here.jsonl")
    assert resolve_path("org/model-on-a-hub", config_file=config_file) == "org/model-on-a-hub"


def test_shipped_configs_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert find_config_file("configs/demo.yaml").is_file()


def test_two_trees_can_be_compared_key_by_key(config_file: Path):
    before = flatten(load_run_config(str(config_file)).config.model_dump())
    after = flatten(load_run_config(str(config_file), ["actor.learning_rate=0.5"]).config.model_dump())
    assert [key for key in before if before[key] != after[key]] == ["actor.learning_rate"]


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        (
            MINIMAL,
            ["run.dir=${a}"],
            r"small.yaml, command line: `run.dir`: Interpolation key 'a' not found.*`\\\$\{...}`",
        ),
        (
            MINIMAL + "reward: {config: {prompt: 'Is it ${answer}?'}}\n",
            [],
            r"small.yaml: `reward.config.prompt`:.*\\\$",
        ),
        (MINIMAL, ["run.dir=${run.dir}"], "`run.dir`: Recursive interpolation"),
        (MINIMAL, ["data.train_files[0]=x"], r"command line: .*`data.train_files` is .*, and must be a list"),
        (MINIMAL, ["data.train_files.0=x"], r"command line: .*`data.train_files` is .*, and must be a list"),
        (MINIMAL, ["data.train_files=[[x]]"], r"`data.train_files\[0\]` is \['x'\], and must be text"),
        (MINIMAL, ["data.train_files=x"], r"command line: .*`data.train_files` is 'x', .* such as \[x\]"),
        ("data: {train_files: x.jsonl}\n", [], r"small.yaml: `data.train_files` is .*a list, such as \[x.jsonl\]"),
        ("data: [a]\n", [], r"small.yaml: `data` is \['a'\], and must be a mapping, such as \{train_files: ...\}"),
        (MINIMAL + "run: 5\n", [], "small.yaml: `run` is 5, and must be a mapping"),
        (MINIMAL + "run:\n", [], "small.yaml: `run` is null, and must be a mapping"),
        (MINIMAL + "tools: {code_judge: 5}\n", [], "small.yaml: `tools.code_judge` is 5, and must be a mapping"),
        (MINIMAL, ["judge=null"], "command line: `judge` is null, and must be a mapping"),
        (MINIMAL, ["reward.config=[1]"], r"`reward.config` is \[1\], and must be a mapping, such as \{key: ...\}"),
        ("5", [], "small.yaml: cannot be read as a mapping of sections"),
        (MINIMAL, ["data.system_prompt=Answer after ####"], "` #` begins a YAML comment, so the rest would be lost"),
        (
            MINIMAL,
            ["checkpoint.dir=s3:/bucket/x"],
            "`checkpoint.dir` is 's3:/bucket/x', neither a folder nor the URL of a store",
        ),
        (MINIMAL, ["checkpoint.dir=memory://x"], "neither a folder nor the URL of a store"),
        (MINIMAL, ["rollout.max_turns=true"], "`rollout.max_turns` is True, and must be a number"),
        (MINIMAL, ["actor.lora={rank: on}"], "`actor.lora.rank` is True, and must be a number"),
        (MINIMAL, ["algorithm.kl_coefficient=true"], "`algorithm.kl_coefficient` is True, and must be a number"),
        (MINIMAL, ["model.path=\udcff"], r"command line: 'model.path=\\udcff': 'utf-8' codec can't encode"),
    ],
)
def test_a_value_of_the_wrong_shape_is_one_line_with_source_key_and_way_out(
    config_file: Path, text: str, overrides: list[str], said: str
):
    config_file.write_text(text)
    assert re.search(said, refused(config_file, *overrides))


@pytest.mark.parametrize("value", ['"/data/a #2"', "'/data/a #2'", "|-\n  /data/a #2"])
def test_a_number_sign_in_quotes_is_taken_as_it_is(config_file: Path, value: str):
    assert load_run_config(str(config_file), [f"run.dir={value}"]).config.run.dir == "/data/a #2"


def test_a_number_sign_within_a_word_and_in_lists_and_mappings_is_taken_as_it_is(config_file: Path):
    words = ["run.dir=/data/a#2", 'data.train_files=["a #1", b#2]', 'reward.config={prompt: "is it #1?", n: [1, "#2"]}']
    config = load_run_config(str(config_file), words).config
    assert config.run.dir == "/data/a#2"
    assert config.data.train_files == ["a #1", "b#2"]
    assert config.reward.config == {"prompt": "is it #1?", "n": [1, "#2"]}


def test_a_file_that_is_not_utf_8_is_refused(config_file: Path):
    config_file.write_bytes("model: {path: modèle}".encode("latin-1"))
    assert refused(config_file).startswith("small.yaml: not UTF-8 text: ")


def test_a_literal_dollar_brace_is_written_with_a_backslash(config_file: Path):
    config_file.write_text(MINIMAL + "reward: {config: {prompt: 'Is it \\${answer}?'}}\n")
    assert load_run_config(str(config_file)).config.reward.config == {"prompt": "Is it ${answer}?"}


@pytest.mark.parametrize("key", ["model.path", "run.num_steps"])
def test_question_marks_take_a_value_back_until_another_word_gives_one(config_file: Path, key: str):
    assert f"`{key}`: Missing mandatory value" in refused(config_file, f"{key}=???")
    assert load_run_config(str(config_file), [f"{key}=???", f"{key}=7"])


def test_question_marks_in_the_file_ask_for_a_value(config_file: Path):
    config_file.write_text(MINIMAL + "run:\n  num_steps: ???\n")
    assert "`run.num_steps`: Missing mandatory value" in refused(config_file)
    assert load_run_config(str(config_file), ["run.num_steps=3"]).config.run.num_steps == 3


@pytest.mark.parametrize("raised", ["1 / 0", "no_such_name", "raise RuntimeError('no GPU,\\nno fun')", "def"])
def test_a_users_module_that_raises_at_import_is_one_line_with_type_and_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
):
    (tmp_path / "raises_at_import.py").write_text(raised)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"`reward.class_name` is .* cannot be imported: \w+Error at raises_at_import\.py:1: "
    ) as caught:
        import_by_path("raises_at_import.Reward", key="reward.class_name")
    assert "\n" not in str(caught.value)
    assert type(caught.value.__cause__).__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("import nonexistent", "ModuleNotFoundError at imports_another.py:3: No module named 'nonexistent'. A module"),
        ("import imports_another.part", "ModuleNotFoundError at imports_another.py:3: No module named 'imports_a"),
        ("from json import nothing", "ImportError at imports_another.py:3: cannot import name 'nothing' from 'json'"),
    ],
)
def test_an_import_that_fails_in_a_users_module_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, cause: str
):
    (tmp_path / "imports_another.py").write_text(f"import os\n\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        import_by_path("imports_another.score", key="reward.function")
    assert f"module `imports_another` cannot be imported: {cause}" in str(refusal.value)


def test_an_engine_that_is_not_installed_is_refused_with_the_way_to_get_it(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
):
    options = ["rollout.engine=vllm", "rollout.tensor_parallel_size=2", "rollout.kv_memory_gb=0.5"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "`rollout.engine` is `vllm`, which is not installed: `pip install '.[vllm]'`" in refused(
        config_file, *options
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    rollout = load_run_config(str(config_file), options).config.rollout
    assert (rollout.engine, rollout.tensor_parallel_size, rollout.kv_memory_gb) == ("vllm", 2, 0.5)
