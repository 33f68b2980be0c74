"""The commands of `python -m agentrl.tools`, each as a process in an empty folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, read_block

POLICY = Path(__file__).resolve().parents[2] / "examples" / "arithmetic" / "policy"


def tools(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentrl.tools", *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tool")
    assert tools(folder, "init", "look_up").returncode == 0
    return folder


def test_a_new_tool_comes_with_a_yaml_file_and_a_test_that_passes(folder: Path) -> None:
    assert sorted(file.name for file in folder.glob("*look_up*")) == ["look_up.py", "look_up.yaml", "test_look_up.py"]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "1 passed" in tested.stdout


def test_files_that_exist_are_not_overwritten(folder: Path) -> None:
    second = tools(folder, "init", "look_up")
    assert second.returncode == 2
    assert "look_up.py, look_up.yaml, test_look_up.py: exists already" in second.stderr


def test_check_prints_the_schema_that_the_policy_sees(folder: Path) -> None:
    shown = tools(folder, "check", "look_up.yaml").stdout
    schema = json.loads(shown[shown.index("{") :])
    assert schema["function"]["name"] == "look_up"
    assert schema["function"]["description"] == "Count the letters of a text."
    assert schema["function"]["parameters"]["properties"] == {"text": {"type": "string", "description": "any text."}}


def test_check_with_a_model_prints_its_prompt_and_format(folder: Path) -> None:
    shown = tools(folder, "check", "look_up.yaml", "--model", str(POLICY)).stdout
    assert "calls have the format `hermes`" in shown
    assert "Count the letters of a text." in shown.partition("<|im_start|>system")[2]


def test_a_model_that_is_not_there_is_refused_at_once(folder: Path) -> None:
    refused = tools(folder, "check", "look_up.yaml", "--model", str(folder / "absent"))
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "no such folder" in refused.stderr


def test_check_names_a_tool_that_cannot_be_built(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("tools:\n  - function: no_such_module.tool\n")
    refused = tools(tmp_path, "check", "bad.yaml")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "`no_such_module` cannot be imported" in refused.stderr


def test_call_prints_what_the_policy_would_read(folder: Path) -> None:
    called = tools(folder, "call", "look_up.yaml", '{"text": "abcd"}')
    assert called.stdout.startswith("ok in ")
    assert called.returncode == 0


@pytest.mark.parametrize("arguments", ["3", "{text: 1}"])
def test_arguments_that_are_no_json_object_are_refused(folder: Path, arguments: str) -> None:
    refused = tools(folder, "call", "look_up.yaml", arguments)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_one_of_several_tools_is_chosen_by_name(folder: Path) -> None:
    (folder / "two.py").write_text(
        'def one() -> str:\n    """Say one."""\n    return "1"\n\n\ndef two() -> str:\n    """Say two."""\n    return "2"\n'
    )
    (folder / "two.yaml").write_text("tools:\n  - function: two.one\n  - function: two.two\n")
    assert "choose one of its tools with `--tool`: one, two" in tools(folder, "call", "two.yaml", "{}").stderr
    assert tools(folder, "call", "two.yaml", "{}", "--tool", "two").stdout.endswith("\n2\n")


def test_arguments_that_the_schema_refuses_end_with_the_reason_and_a_status_that_is_not_zero(folder: Path) -> None:
    refused = tools(folder, "call", "look_up.yaml", '{"words": "x"}')
    assert refused.returncode == 2
    assert "look_up: invalid arguments: " in refused.stderr
    assert refused.stdout == ""


@pytest.mark.slow
def test_the_server_that_the_page_about_mcp_shows_is_checked_and_called(tmp_path: Path) -> None:
    for name in ("library.py", "tools.yaml"):
        (tmp_path / name).write_text(read_block(ROOT / "docs" / "mcp.md", name))
    shown = tools(tmp_path, "check", "tools.yaml", "--model", str(POLICY)).stdout
    assert '"name": "find_book"' in shown.partition("<|im_start|>system")[2]
    called = tools(tmp_path, "call", "tools.yaml", '{"title": "Emma"}')
    assert called.stdout.splitlines()[1:] == ["Emma appeared in 1815."]
    failed = tools(tmp_path, "call", "tools.yaml", '{"title": "Emmas"}')
    assert "no such book" in failed.stdout
    assert (failed.returncode, failed.stderr) == (1, "error: find_book: the call failed (`error`)\n")
    refused = tools(tmp_path, "call", "tools.yaml", '{"author": "Austen"}')
    assert refused.returncode == 2
    assert "find_book: invalid arguments: 'title' is a required property" in refused.stderr
