from pathlib import Path

import pytest

from agentrl.config.schema.judge import CodeJudgeTools, JudgeSection, ToolsSection
from agentrl.config.schema.run import DataSection, ModelSection, RewardSection, RolloutSection, RunConfig
from agentrl.errors import ConfigError
from agentrl.judge.client import JudgeClient
from agentrl.judge.connection import JudgeAddress
from agentrl.run.judges import needs_judge
from agentrl.tools.base import ToolConfig
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.tools.jupyter_tool import JUPYTER_TOOL
from agentrl.tools.loader import load_tool_configs, load_tool_file
from agentrl.tools.python_tool import PYTHON_TOOL, PYTHON_TOOL_SCHEMA, PythonToolConfig

SHIPPED = Path(__file__).parents[2] / "tool_configs" / "python_tool_config.yaml"

RSTAR2_FILE = """
tools:
  - class_name: agentrl.tools.python_tool.PythonTool
    config:
      type: native
      request_processor_concurrency: 16
      request_processor_batch_size: 32
      request_processor_batch_timeout_seconds: 20
      host_addr: localhost
      host_port: 8088
    tool_schema:
      type: function
      function:
        name: run_it
        description: Run it.
        parameters:
          type: object
          properties: {code: {type: string}}
          required: [code]
"""


def run_config(
    *,
    tools: ToolsSection | None = None,
    at_root: str | None = None,
    under_rollout: str | None = None,
    judge: JudgeSection | None = None,
) -> RunConfig:
    return RunConfig(
        data=DataSection(train_files=[]),
        model=ModelSection(path=""),
        rollout=RolloutSection(tool_config_path=under_rollout),
        judge=judge or JudgeSection(),
        tools=tools,
        tool_config_path=at_root,
    )


def write(folder: Path, text: str) -> str:
    file = folder / "tools.yaml"
    file.write_text(text)
    return str(file)


def test_form_1_the_short_form_in_the_run_config() -> None:
    judge = CodeJudgeTools(host_addr="10.0.0.1", host_port=9, batch_size=5, concurrency=6, batch_timeout_seconds=7.0)
    (tool,) = load_tool_configs(run_config(tools=ToolsSection(code_judge=judge)))
    assert tool.class_name == PYTHON_TOOL
    assert tool.config["host_addr"] == "10.0.0.1"
    assert tool.config["host_port"] == 9
    assert tool.config["request_processor_batch_size"] == 5
    assert tool.config["request_processor_concurrency"] == 6
    assert tool.config["request_processor_batch_timeout_seconds"] == 7.0


@pytest.mark.parametrize("place", ["at_root", "under_rollout"])
def test_form_2_a_path_at_the_root_or_under_rollout(tmp_path: Path, place: str) -> None:
    (tool,) = load_tool_configs(run_config(**{place: write(tmp_path, RSTAR2_FILE)}))  # pyright: ignore[reportArgumentType] - one of two str keys
    assert tool.config["request_processor_batch_size"] == 32


def test_form_3_the_tool_file_itself(tmp_path: Path) -> None:
    (tool,) = load_tool_file(Path(write(tmp_path, RSTAR2_FILE)))
    assert tool.config["request_processor_batch_timeout_seconds"] == 20
    assert tool.tool_schema is not None
    assert tool.tool_schema["function"]["name"] == "run_it"


def test_the_shipped_file_says_what_the_tool_says_of_itself() -> None:
    (tool,) = load_tool_file(SHIPPED)
    assert tool.tool_schema == PYTHON_TOOL_SCHEMA.as_template_dict()
    (short,) = load_tool_configs(run_config(tools=ToolsSection(code_judge=CodeJudgeTools())))
    assert tool.config == short.config


def test_no_tools_is_a_run_without_tools() -> None:
    assert load_tool_configs(run_config()) == []


def test_a_function_is_named_by_its_path(tmp_path: Path) -> None:
    (tool,) = load_tool_file(Path(write(tmp_path, "tools: [{function: my_tools.look_up}]")))
    assert tool == ToolConfig(class_name=FUNCTION_TOOL, config={"type": "native", "function": "my_tools.look_up"})


def test_a_class_of_the_users_keeps_its_own_keys(tmp_path: Path) -> None:
    text = "tools: [{class_name: my_tools.Search, config: {index: wiki, top_k: 3}}]"
    (tool,) = load_tool_file(Path(write(tmp_path, text)))
    assert tool == ToolConfig(class_name="my_tools.Search", config={"index": "wiki", "top_k": 3})


def test_the_same_path_twice_is_fine(tmp_path: Path) -> None:
    path = write(tmp_path, RSTAR2_FILE)
    assert len(load_tool_configs(run_config(at_root=path, under_rollout=path))) == 1


def test_two_different_paths_are_a_config_error() -> None:
    with pytest.raises(
        ConfigError, match=r"`tool_config_path` \(a.yaml\) and `rollout.tool_config_path` \(b.yaml\) differ"
    ):
        load_tool_configs(run_config(at_root="a.yaml", under_rollout="b.yaml"))


def test_tools_beside_tool_config_path_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="`tools` and `tool_config_path`"):
        load_tool_configs(run_config(tools=ToolsSection(code_judge=CodeJudgeTools()), at_root="a.yaml"))


def test_the_short_form_adds_the_notebook_on_request() -> None:
    judge = CodeJudgeTools(host_addr="10.0.0.1", host_port=8088, enable_jupyter=True)
    python, jupyter = load_tool_configs(run_config(tools=ToolsSection(code_judge=judge)))
    assert [python.class_name, jupyter.class_name] == [PYTHON_TOOL, JUPYTER_TOOL]
    assert (jupyter.config["host_addr"], jupyter.config["host_port"]) == ("10.0.0.1", 8088)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools: [", r"tools\.yaml: not valid YAML"),
        ("tools: '${answer}'", r"tools\.yaml: .*`tools`: Interpolation key 'answer' not found.*\\\$\{"),
        ("5", r"tools\.yaml: cannot be read: Invalid loaded object type: int"),
        ("tools: []", r"tools\.yaml: the file must hold one key, `tools`"),
        ("tool: [{class_name: a.B}]", r"tools\.yaml: the file must hold one key, `tools`"),
        ("tools: [a.B]", r"tools\.yaml: `tools\[0\]` is 'a.B'"),
        (
            "tools: [{config: {}}]",
            r"tools\.yaml: `tools\[0\]` has the keys config; name the tool by `class_name`, `function`",
        ),
        (
            "tools: [{class_name: a.B, function: a.b}]",
            r"`tools\[0\]` .*; name the tool by `class_name`, `function`",
        ),
        ("tools: [{class_name: a.B, confg: {}}]", r"unknown key `tools\[0\]\.confg`. Did you mean `config`\?"),
        ("tools: [{class_name: a.B, config: {type: mcp}}]", r"`tools\[0\]\.config\.type` is 'mcp'.*`native` only"),
        ("tools: [{class_name: a.B, config: 3}]", r"`tools\[0\]\.config` is 3"),
        (
            f"tools: [{{class_name: {PYTHON_TOOL}, config: {{host_prt: 1}}}}]",
            r"unknown key `tools\[0\]\.config\.host_prt`. Did you mean `host_port`\?",
        ),
        (
            f"tools: [{{class_name: {PYTHON_TOOL}, config: {{request_processor_batch_size: many}}}}]",
            r"`tools\[0\]\.config\.request_processor_batch_size` is 'many'",
        ),
        (
            "tools: [{class_name: a.B, tool_schema: {type: function}}]",
            r"`tools\[0\]\.tool_schema\.function` is missing",
        ),
    ],
)
def test_a_wrong_tool_file_is_one_line_with_file_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_tool_file(Path(write(tmp_path, text)))
    assert "\n" not in str(caught.value)


def test_a_tool_file_that_is_not_utf_8_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_bytes("tools: [{class_name: modèle.B}]".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"tools\.yaml: not valid YAML: .utf-8. codec"):
        load_tool_file(tmp_path / "tools.yaml")


def test_a_file_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_tool_file(tmp_path / "none.yaml")


def test_an_address_that_contradicts_the_runs_judge_is_a_config_error(tmp_path: Path) -> None:
    judge = JudgeSection(hosts=["localhost:9999"])
    with pytest.raises(
        ConfigError,
        match=r"tools\[0\]\.config` names the judge http://localhost:8088, but `judge.hosts` names http://localhost:9999",
    ):
        load_tool_configs(run_config(at_root=write(tmp_path, RSTAR2_FILE), judge=judge))


def test_half_an_address_is_a_config_error() -> None:
    half = ToolsSection(code_judge=CodeJudgeTools(host_addr="localhost"))
    with pytest.raises(ConfigError, match=r"`tools\[0\]\.config`: only one of `host_addr` and `host_port` is set"):
        load_tool_configs(run_config(tools=half))


def client_of(tool: ToolConfig) -> JudgeClient:
    """Return the client of a tool in a run whose judge listens on port 4321."""
    return PythonToolConfig(**tool.config).client(JudgeAddress(urls=("http://localhost:4321",)), owner="tool")


def test_without_an_address_the_runs_judge_is_asked() -> None:
    (tool,) = load_tool_configs(run_config(tools=ToolsSection(code_judge=CodeJudgeTools())))
    assert needs_judge([tool], RewardSection())
    assert client_of(tool).urls == ["http://localhost:4321"]


def test_an_address_of_its_own_wins(tmp_path: Path) -> None:
    (tool,) = load_tool_configs(run_config(at_root=write(tmp_path, RSTAR2_FILE)))
    assert not needs_judge([tool], RewardSection())
    assert client_of(tool).urls == ["http://localhost:8088"]


def test_a_tool_of_the_users_asks_for_the_runs_judge_by_an_address_of_null(tmp_path: Path) -> None:
    configs = load_tool_file(Path(write(tmp_path, "tools: [{class_name: a.B}, {function: a.b}]")))
    assert not needs_judge(configs, RewardSection())
    configs = load_tool_file(Path(write(tmp_path, "tools: [{class_name: a.B, config: {host_addr: null}}]")))
    assert needs_judge(configs, RewardSection())
