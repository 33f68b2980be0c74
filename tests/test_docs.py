"""The pages: what they name exists, what they show works, and what is generated is up to date."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentrl.config.load import load_run_config
from agentrl.config.schema.fields import leaves
from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.run import RewardSection
from agentrl.config.schema.sft import SftConfig
from agentrl.config.schema.simulation import SimulationConfig
from agentrl.rewards.loader import build_reward, check_reward
from agentrl.tools.base import Episode
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.loader import load_tool_file
from agentrl.types import Deadline, ToolCall, ToolStatus
from code_judge_server.settings import Settings
from docs import make_configuration
from tests.test_architecture import ISLANDS, LAYERS

ROOT = Path(__file__).resolve().parent.parent
TOP_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
YOUR_OWN = ROOT / "docs" / "your_own.md"
READMES = sorted(path for folder in ("examples", "benchmarks") for path in (ROOT / folder).rglob("README.md"))
PAGES = [*TOP_PAGES, *sorted((ROOT / "docs").glob("*.md")), *READMES]
SOURCE_FOLDERS = (
    "agentrl",
    "code_judge_server",
    "configs",
    "tool_configs",
    "examples",
    "benchmarks",
    "tests",
    "docs",
    ".ci",
)
NAMES_TO_FILL_IN = re.compile(r"NAME|\.\.\.")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def in_backticks(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


@cache
def definitions(file: Path) -> frozenset[str]:
    """Names of the functions and classes of a file; methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return frozenset(found)


@cache
def all_tests() -> frozenset[str]:
    return frozenset(name for file in (ROOT / "tests").rglob("test_*.py") for name in definitions(file))


def config_keys(schema: type[BaseModel]) -> set[str]:
    """Full keys of a config tree, its sections included."""
    found = [key.replace("[]", "").replace(".NAME", "").split(".") for key, _ in leaves(schema)]
    return {".".join(parts[:length]) for parts in found for length in range(1, len(parts) + 1)}


def read_block(page: Path, first_line: str) -> str:
    """Return the code block that starts with this comment."""
    blocks = re.findall(r"^```\w+\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if block.startswith(f"# {first_line}\n"))


def test_the_reference_of_keys_is_what_the_schema_says():
    assert make_configuration.PAGE.read_text() == make_configuration.page(), "run `python docs/make_configuration.py`"


@every_page
def test_relative_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", linked.read_text(), flags=re.MULTILINE)
                assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_paths_and_the_names_in_them_exist(page: Path):
    for word in in_backticks(page):
        path, _, name = word.partition("::")
        if (
            path.split("/")[0] in SOURCE_FOLDERS
            and "/" in path
            and " " not in path
            and not NAMES_TO_FILL_IN.search(path)
        ):
            assert (ROOT / path).exists(), f"{page.name}: `{word}`"
            assert not name or name in definitions(ROOT / path), f"{page.name}: `{word}`"


@every_page
def test_named_tests_exist(page: Path):
    named = {word for word in in_backticks(page) if re.fullmatch(r"test_\w+", word)}
    assert named <= all_tests()


@every_page
def test_named_commands_exist(page: Path):
    text = page.read_text()
    for module in re.findall(r"python -m ((?:agentrl|code_judge_server|examples)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{page.name}: {module}"
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = re.findall(r"(?:`|^    )make ([a-z0-9-]+)", text, flags=re.MULTILINE)
    assert set(named) <= targets, f"{page.name}: {set(named) - targets}"


@every_page
def test_named_config_keys_exist(page: Path):
    known = config_keys(SimulationConfig) | config_keys(SftConfig)
    sections = "|".join(sorted({key.partition(".")[0] for key in known if "." in key}))
    for word in in_backticks(page):
        key = word.partition("=")[0].partition(":")[0]
        if re.fullmatch(rf"(?:{sections})\.[a-z_.]+", key) and not key.endswith((".py", ".yaml", ".jsonl", ".log")):
            assert key in known, f"{page.name}: `{word}`"


def test_named_settings_of_the_judge_exist():
    page = (ROOT / "docs" / "judge.md").read_text()
    flags = set(re.findall(r"--([a-z][a-z-]+)", page)) - {"help"}
    assert flags <= {name.replace("_", "-") for name in Settings.model_fields}


def test_the_pages_rooms_and_islands_are_those_that_are_checked():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| (.+) \|$", page, flags=re.MULTILINE)
    names = [set(re.findall(r"`(\w+)`", row[0])) for row in rows]
    assert names[: len(LAYERS)] == LAYERS
    shown = {
        name: tuple(re.findall(r"`([\w/.]+)`", row[1]))
        for group, row in zip(names, rows, strict=True)
        for name in group
    }
    assert {package: shown.get(package) for package in ISLANDS} == ISLANDS


@pytest.mark.parametrize(
    ("page", "name"),
    [(ROOT / "README.md", "own.yaml"), (YOUR_OWN, "my_run.yaml"), (ROOT / "docs" / "sinks.md", "tracked.yaml")],
)
def test_the_runs_that_pages_show_load(page: Path, name: str, tmp_path: Path):
    (tmp_path / name).write_text(read_block(page, name))
    (tmp_path / "my_tools.yaml").write_text(read_block(YOUR_OWN, "my_tools.yaml"))
    loaded = load_run_config(str(tmp_path / name))
    assert loaded.config.run.num_steps == 100


TOOLS = [
    (YOUR_OWN, "my_tools", {"word": "actor", "letter": "a"}, "1"),
    (ROOT / "docs" / "tools.md", "my_memory", {"note": "7 is prime"}, "7 is prime"),
    (ROOT / "docs" / "tools.md", "my_verl_tools", {"number": 7}, "right=True"),
]


@pytest.mark.parametrize(("page", "module", "arguments", "answer"), TOOLS, ids=lambda value: str(value)[-20:])
async def test_the_tools_that_pages_show_answer_a_call(
    page: Path, module: str, arguments: dict[str, Any], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in (f"{module}.py", f"{module}.yaml"):
        (tmp_path / name).write_text(read_block(page, name))
    monkeypatch.syspath_prepend(tmp_path)
    tools = build_tools(load_tool_file(tmp_path / f"{module}.yaml"))
    [name] = tools
    executor, episode = ToolExecutor(tools, timeout_s=20), Episode(episode_id="e", prompt_id="p")
    await executor.start()
    [result] = await executor.execute(
        [ToolCall(call_id="0", name=name, arguments=arguments)], episode, deadline=Deadline.after(20)
    )
    await executor.end_episode(episode)
    await executor.aclose()
    assert (result.status, result.text) == (ToolStatus.OK, answer)


def test_the_reward_that_the_page_shows_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_rewards.py").write_text(read_block(YOUR_OWN, "my_rewards.py"))
    monkeypatch.syspath_prepend(tmp_path)
    build_reward(RewardSection(class_name="my_rewards.ExactAnswer"))
    (tmp_path / "my_run.yaml").write_text(
        "data: {train_files: [a.jsonl]}\nmodel: {path: m}\n"
        + read_block(YOUR_OWN, "my_run.yaml: a weighted sum of several")
    )
    reward = load_run_config(str(tmp_path / "my_run.yaml")).config.reward
    check_reward(reward, JudgeSection())
    assert [part.weight for part in reward.parts] == [1.0, 0.1]
    build_reward(RewardSection(function="my_rewards.exact"))
