"""agentrl as a user installs it: a wheel in an empty environment, run from a folder that holds nothing of the project."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from code_judge_server.jail.probe.canaries import find_tier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent

MY_TOOLS = '''
"""A tool of the user's own, which answers what the policy of the example asks for."""
import os
from pathlib import Path
from typing import Any
from agentrl.tools.base import ToolSchema
from agentrl.types import ToolResult, ToolStatus

class Calculator:
    def __init__(self, config, schema):
        self.folder = Path(config["folder"])
        self.schema = schema

    async def start(self):
        self.folder.joinpath(f"started_{os.getpid()}").touch()

    async def call(self, episode, arguments, *, deadline):
        self.folder.joinpath(f"called_{os.getpid()}").touch()
        inner = arguments["code"].removeprefix("print(").removesuffix(")")
        try:
            value = eval(inner)
        except (SyntaxError, NameError, TypeError):
            return ToolResult(status=ToolStatus.ERROR, text="failure: exit code 1")
        return ToolResult(status=ToolStatus.OK, text=f"success\\nstdout:\\n{value}")

    async def end_episode(self, episode): ...

    async def aclose(self):
        self.folder.joinpath(f"closed_{os.getpid()}").touch()
'''

IMPORTED_BY_A_RUN = """
import agentrl.agent_loop.worker
import agentrl.engine.embedded.engine
import agentrl.runners.rstar2
import agentrl.training.actor
"""

RUN = """
run: {num_steps: 2}
data: {train_files: [examples/arithmetic/train.jsonl], max_prompt_tokens: 256}
model: {path: examples/arithmetic/policy}
tool_config_path: my_tools.yaml
rollout: {prompts_per_step: 4, samples_per_prompt: 8, max_response_tokens: 256, num_workers: 2}
algorithm: {selection: {keep: 4}}
"""


ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""A run here has the bytecode that the one before it made, as that of a user who lets pip make it."""


def pip_install(folder: Path, wheel: Path, extras: Sequence[str]) -> Path:
    """Return the interpreter of an environment that holds the wheel and what it declares, in the pinned versions."""
    python = new_environment(folder)
    # Without `--no-compile` most of the time goes to bytecode that nothing here imports.
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    target = f"{wheel}[{','.join(extras)}]" if extras else wheel
    subprocess.run([*command, target, "--constraint", ROOT / "constraints.txt"], check=True, timeout=900)
    return python


def link_install(folder: Path, wheel: Path, extras: Sequence[str]) -> Path:
    """Return the same, with the packages of this environment as hard links: only those that the wheel declares."""
    python = new_environment(folder)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel]
    subprocess.run(command, check=True)
    [site_packages] = folder.glob("lib/python*/site-packages")
    [wheel_info] = site_packages.glob("agentrl-*.dist-info")
    for required in declared(Distribution.at(wheel_info), extras):
        for name in {file.parts[0] for file in required.files or () if file.parts[0] != ".."}:
            source, target = Path(str(required.locate_file(name))), site_packages / name
            if source.is_dir():
                shutil.copytree(source, target, copy_function=link, dirs_exist_ok=True)
            elif not target.exists():
                link(source, target)
    return python


def link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:  # two distributions share a folder
        pass
    except OSError:  # another file system
        shutil.copy2(source, target)


def new_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def declared(root: Distribution, extras: Sequence[str]) -> list[Distribution]:
    """Return the installed distributions that `root` with `extras` requires, directly or not."""
    pending = [(root, ("", *extras))]
    seen: dict[tuple[str, str], Distribution] = {}
    while pending:
        requirer, its_extras = pending.pop()
        for requirement in map(Requirement, requirer.requires or ()):
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in its_extras):
                continue
            for extra in ("", *requirement.extras):
                if (requirement.name, extra) not in seen:
                    seen[requirement.name, extra] = distribution(requirement.name)
                    pending.append((seen[requirement.name, extra], ("", extra)))
    return list(seen.values())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT], check=True, capture_output=True)
    return next(out.glob("*.whl"))


Install = Callable[[Path, Path, Sequence[str]], Path]


@pytest.fixture(scope="module", params=[link_install, pytest.param(pip_install, marks=pytest.mark.soak)])
def install(request: pytest.FixtureRequest) -> Install:
    return request.param


@pytest.fixture(scope="module")
def python(wheel: Path, install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("train")
    python = install(folder / "env", wheel, ["train"])
    # Once, before the processes of a run all make the same bytecode at the same time.
    subprocess.run([python, "-c", IMPORTED_BY_A_RUN], check=True, cwd=folder, env=ENV)
    yield python
    shutil.rmtree(folder)


def test_the_shipped_demo_finds_all_that_it_needs_from_an_empty_folder(python: Path, tmp_path: Path):
    """Its full check starts the judge and calls the tool; the run of the test below uses the same data and model."""
    command = [python, "-m", "agentrl.runners.rstar2", "configs/demo.yaml", "--check"]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert r"`success\nstdout:\n1`" in done.stdout


def test_a_tool_beside_the_config_works_in_every_worker(python: Path, tmp_path: Path):
    (tmp_path / "my_tools.py").write_text(MY_TOOLS)
    (tmp_path / "run.yaml").write_text(RUN)
    notes = tmp_path / "notes"
    notes.mkdir()
    # The policy of the example knows the words of its prompt by heart, so the tool introduces itself with the same ones.
    shipped = yaml.safe_load((ROOT / "tool_configs" / "python_tool_config.yaml").read_text())["tools"][0]
    tool = shipped | {"class_name": "my_tools.Calculator", "config": {"folder": str(notes)}}
    (tmp_path / "my_tools.yaml").write_text(json.dumps({"tools": [tool]}))
    command = [python, "-m", "agentrl.runners.rstar2", "run.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    pids = {
        kind: {file.name.split("_")[1] for file in notes.glob(f"{kind}_*")} for kind in ("started", "called", "closed")
    }
    assert len(pids["started"]) == 2
    assert pids["called"] == pids["started"] == pids["closed"]
    [policy] = tmp_path.glob("runs/*/policy/model.safetensors")
    assert policy.is_file()


def test_a_runner_without_its_extra_says_what_to_install(wheel: Path, install: Install, tmp_path: Path):
    python = install(tmp_path / "env", wheel, [])
    command = [python, "-m", "agentrl.runners.rstar2", "configs/demo.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "error: the runners need ray, rich, torch, transformers, which `pip install 'agentrl[train]'` brings"
    )


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())


def test_the_judge_needs_neither_torch_nor_ray(wheel: Path, install: Install, tmp_path: Path):
    python = install(tmp_path / "env", wheel, ["sci"])
    missing = subprocess.run([python, "-c", "import torch"], capture_output=True)
    assert missing.returncode != 0
    command = [python, "-m", "code_judge_server", "--port", "0", "--require-isolation", "D", "--exit-with-stdin"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        solution = "import numpy, sympy; print(numpy.arange(3).sum(), sympy.sqrt(8))"
        result = post(f"{address}/run", {"type": "python", "solution": solution})
        with urllib.request.urlopen(f"{address}/v1/health", timeout=60) as reply:
            isolation = json.loads(reply.read())["isolation"]
        if isolation in ("A", "B"):
            session = post(f"{address}/v1/sessions", {})["session_id"]
            assert post(f"{address}/v1/sessions/{session}/cells", {"code": "6 * 7"})["display"][0]["text/plain"] == "42"
        server.communicate(timeout=100)
    assert isolation == find_tier().tier
    assert result["run_success"], result
    assert result["stdout"].strip() == "3 2*sqrt(2)"
