"""The house rules: who may import whom, where heavy packages live, how long files may be, and that no config key is idle."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from pydantic import BaseModel

from agentrl.config.schema.fields import leaves
from agentrl.config.schema.sft import SftConfig
from agentrl.config.schema.simulation import SimulationConfig

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ROOT.glob("agentrl/**/*.py"), *ROOT.glob("code_judge_server/**/*.py")])

LAYERS: list[set[str]] = [
    {"runners", "serve", "dashboard"},
    {"evaluation", "replay"},
    {"run"},
    {"pages"},
    {"checkpoints"},
    {"agent_loop"},
    {"cluster"},
    {"simulation"},
    {"environments"},
    {"tools"},
    {"detectors"},
    {"rewards"},
    {"engine"},
    {"training"},
    {"weight_sync"},
    {"judge", "models"},
    {"servers"},
    {"algorithms", "formats"},
    {"data", "trajectories"},
    {"observability"},
    {"config"},
    {"types", "errors"},
    {"clock", "guardian", "timing", "user_code"},
]
"""From top to bottom: a room imports rooms below its own line only. The same list as in docs/architecture.md."""

JUDGE_FORMATS = {"code_judge_server.schemas", "code_judge_server.sessions.schemas"}

JUDGE_LAYERS: list[set[str]] = [
    {"__main__"},
    {"serving", "app"},
    {"compatible"},
    {"sessions"},
    {"api"},
    {"queueing"},
    {"judging", "settings_table", "tier_choice"},
    {"settings", "metrics"},
    {"limits", "languages"},
    {"jail_executor", "process_executor"},
    {"jail"},
    {"sandbox"},
    {"schemas", "preload_sets"},
    {"wire_fields"},
]
"""The same of the judge; `__init__` has its version."""

ISLANDS = {
    "ray": ("agentrl/cluster/",),
    "torch": ("agentrl/algorithms/", "agentrl/training/", "agentrl/models/", "agentrl/weight_sync/", "agentrl/engine/"),
    "transformers": (
        "agentrl/training/",
        "agentrl/models/",
        "agentrl/engine/",
        "agentrl/agent_loop/chat_template.py",
        "agentrl/agent_loop/chat_tokens.py",
    ),
    "peft": ("agentrl/training/model/lora.py",),
    "omegaconf": ("agentrl/config/", "agentrl/tools/loader.py", "agentrl/run/directory.py"),
    "aiohttp": (
        "agentrl/servers/",
        "agentrl/judge/",
        "agentrl/engine/openai/",
        "agentrl/tools/",
        "agentrl/serve/",
        "agentrl/agent_loop/gateway/server.py",
    ),
    "fastapi": ("agentrl/dashboard/", "code_judge_server/"),
    "uvicorn": ("agentrl/dashboard/", "code_judge_server/"),
    "vllm": ("agentrl/engine/vllm/",),
    "mcp": ("agentrl/tools/mcp/",),
    **dict.fromkeys(
        ("mlflow", "swanlab", "tensorboard", "trackio", "wandb"),
        ("agentrl/observability/sinks/",),
    ),
}
SCHEMAS = sorted((ROOT / "agentrl" / "config" / "schema").glob("*.py"))
VALIDATION = ROOT / "agentrl" / "config" / "validation"
MAX_FILES = 12
MAX_FILES_OF_JUDGE_ROOT = 13
PROSE = [
    file
    for folder in ("agentrl", "benchmarks", "code_judge_server", "examples", "tests")
    for file in sorted((ROOT / folder).glob("**/*.py"))
    if "programs" not in file.parts  # odd on purpose
]
NO_BEGINNINGS = {"As", "By", "How", "Of", "What", "When", "Where", "Whether", "Who", "With"}
NO_NAMES = {"again", "made", "one", "there", "told"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def imported_modules(file: Path, known: Iterable[str] = ()) -> set[str]:
    """Return the modules that `file` imports, all or those among `known`; `from package import module` counts as the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            modules = {f"{node.module}.{alias.name}" for alias in node.names} & set(known)
            found |= modules or {node.module or ""}
    return found & set(known) if known else found


def nodes(files: Iterable[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            yield file, node


def layer_of(room: str) -> int:
    return next(index for index, rooms in enumerate(LAYERS) if room in rooms)


def judge_layer_of(room: str) -> int:
    return next(index for index, rooms in enumerate(JUDGE_LAYERS) if room in rooms)


def room_of(module: str) -> str:
    return module.split(".")[1]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", SOURCES, ids=name_of)
def test_imports_point_down_the_layers(file: Path):
    parts = file.relative_to(ROOT).with_suffix("").parts
    for module in imported_modules(file):
        if parts[0] == "code_judge_server":
            assert not module.startswith("agentrl"), f"{file}: the judge is a product of its own"
        elif module.startswith("code_judge_server"):
            assert module in JUDGE_FORMATS, f"{file}: only the judge's wire schemas may be imported"
        elif (
            module.startswith("agentrl.") and room_of(module) != parts[1] and parts[-1] not in ("__init__", "__main__")
        ):
            assert layer_of(room_of(module)) > layer_of(parts[1]), (
                f"{name_of(file)} imports {module}, which is not below"
            )


@pytest.mark.parametrize("file", sorted((ROOT / "code_judge_server").glob("**/*.py")), ids=name_of)
def test_imports_of_the_judge_point_down_its_layers(file: Path):
    room = file.relative_to(ROOT).with_suffix("").parts[1]
    for module in imported_modules(file):
        if module.startswith("code_judge_server.") and room_of(module) != room:
            below = set().union(*JUDGE_LAYERS[judge_layer_of(room) + 1 :])
            assert room_of(module) in below, f"{name_of(file)} imports {module}, which is not below"


@pytest.mark.parametrize("file", SOURCES, ids=name_of)
def test_heavy_packages_stay_on_their_islands(file: Path):
    for module in imported_modules(file):
        package = module.split(".")[0]
        if package in ISLANDS:
            assert name_of(file).startswith(ISLANDS[package]), f"{name_of(file)} may not import {package}"


@pytest.mark.parametrize("file", SOURCES, ids=name_of)
def test_files_and_functions_stay_small(file: Path):
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{name_of(file)}:{node.lineno}: `{node.name}` has {length} lines"


def test_folders_have_few_files():
    sizes = Counter(file.parent.relative_to(ROOT).as_posix() for file in SOURCES if file.name != "__init__.py")
    bounds = {"code_judge_server": MAX_FILES_OF_JUDGE_ROOT}
    assert {folder: size for folder, size in sizes.items() if size > bounds.get(folder, MAX_FILES)} == {}


def test_no_modules_import_each_other():
    """Imports inside functions and for type checkers count too."""
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in SOURCES}
    graph = {name: imported_modules(file, names) for name, file in names.items()}
    assert list(TopologicalSorter(graph).static_order())


def test_every_room_is_in_the_list_of_layers():
    rooms = {
        path.name
        for path in (ROOT / "agentrl").iterdir()
        if path.is_dir() and path.name not in ("__pycache__", "_shipped")
    }
    assert rooms <= set().union(*LAYERS)


def test_importing_agentrl_loads_no_heavy_package():
    heavy = sorted(set(ISLANDS) | {"numpy"})
    code = f"import sys, agentrl, agentrl.types; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("runner", ["rstar2", "sft"])
def test_a_command_does_not_wait_for_packages_that_only_its_workers_and_its_end_need(runner: str):
    code = f"import sys, agentrl.runners.{runner}; print({{'torch', 'transformers', 'matplotlib'}} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


def keys(schema: type[BaseModel]) -> list[tuple[str, str]]:
    """All `(full key, field name)` of a config tree."""
    return [(key.replace("[]", "").replace(".NAME", ""), key.rpartition(".")[2]) for key, _ in leaves(schema)]


def test_the_keys_of_optional_sections_are_among_those_that_are_checked():
    assert ("tools.code_judge.batch_size", "batch_size") in keys(SimulationConfig)


@pytest.mark.parametrize(
    ("key", "name"), [*keys(SimulationConfig), *((f"sft:{key}", name) for key, name in keys(SftConfig))]
)
def test_every_config_key_is_read_outside_its_declaration(key: str, name: str):
    readers = [file for file in SOURCES if file not in SCHEMAS and VALIDATION not in file.parents]
    section = key.removeprefix("sft:").split(".")[-2] if "." in key else "config"
    # `judge.batch_size` reads `tools.code_judge.batch_size`; the rest are the names that a section is passed under.
    holders = "|".join({section, section.rpartition("_")[2], section.removesuffix("s"), "config", "section", "limits"})
    pattern = re.compile(rf"\b_?(?:{holders})\.{name}\b")
    assert any(pattern.search(file.read_text()) for file in readers), f"nothing reads `{key}`"


@pytest.mark.parametrize("schema", SCHEMAS, ids=name_of)
def test_every_config_key_has_its_line_of_documentation(schema: Path):
    tree = ast.parse(schema.read_text())
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, following in zip(cls.body, [*cls.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and not cls.name.endswith("Config"):
                documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                assert documented, (
                    f"{name_of(schema)}: {cls.name}.{ast.unparse(field.target)} has no line of documentation"
                )


def test_docstrings_begin_with_a_noun_or_an_imperative():
    found = []
    for file, node in nodes(PROSE):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = str(node.value.value)
            if text.split(maxsplit=1)[0].rstrip(",:") in NO_BEGINNINGS:
                found.append(f"{name_of(file)}:{node.lineno}: {text[:60]}")
    assert found == []


def test_variables_are_named_by_what_they_hold():
    found = []
    for file, node in nodes(PROSE):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NO_NAMES:
            found.append(f"{name_of(file)}:{node.lineno}: `{node.id}`")
        elif isinstance(node, ast.arg) and node.arg in NO_NAMES:
            found.append(f"{name_of(file)}:{node.lineno}: `{node.arg}`")
    assert found == []


def test_names_of_test_files_are_unique():
    """Files in folders that are no packages would be one module to pytest, which then refuses one of them."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
