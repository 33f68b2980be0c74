"""The user's own modules: the same ones for the driver, which tries them, and for the workers."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cluster.ray.user_modules import search_like_workers, stage, worker_path
from agentrl.config.class_path import import_by_path
from agentrl.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a folder for configs, of which `python -m` has made the first place to search."""
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["rstar2"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def write(folder: Path, *files: str) -> None:
    """Write modules that say where they are from."""
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"PLACE = {folder.name!r}\n")


def test_a_module_beside_the_config_comes_before_one_of_its_name_in_the_working_folder(project: Path):
    write(project, "of_two_places.py")
    write(project / "configs", "of_two_places.py")
    search_like_workers(project / "configs", on_cluster=False)
    assert import_by_path("of_two_places.PLACE", key="k") == "configs"


def test_workers_search_what_is_searched_here_before_the_library_and_nothing_of_that_is_relative(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    library = os.path.dirname(os.__file__)
    (project / "lib").mkdir()
    monkeypatch.setattr(sys, "path", ["", "lib", "nowhere", library, f"{library}/site-packages"])
    search_like_workers(project / "configs", on_cluster=False)
    assert worker_path().split(os.pathsep) == [f"{project}/configs", str(project), f"{project}/lib"]


def test_the_config_folder_is_searched_once_however_often_a_config_is_checked(project: Path):
    for _ in range(2):
        search_like_workers(project / "configs", on_cluster=False)
    assert sys.path.count(f"{project}/configs") == 1


@pytest.mark.parametrize("file", ["only_on_this_machine.py", "only_on_this_machine/of_a_folder.py"])
def test_a_module_in_the_working_folder_is_refused_for_a_cluster_with_the_way_out(project: Path, file: str):
    write(project, file)
    search_like_workers(project / "configs", on_cluster=True)
    with pytest.raises(ConfigError, match="beside the config file, or into a folder on `PYTHONPATH`"):
        import_by_path(f"{file.removesuffix('.py').replace('/', '.')}.PLACE", key="k")


def test_a_cluster_searches_the_working_folder_where_pythonpath_names_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    write(project, "promised_everywhere.py")
    monkeypatch.setenv("PYTHONPATH", f"elsewhere{os.pathsep}.")
    search_like_workers(project / "configs", on_cluster=True)
    assert import_by_path("promised_everywhere.PLACE", key="k") == project.name
    assert str(project) in worker_path().split(os.pathsep)


def test_python_files_and_packages_are_shipped_and_no_data_earlier_runs_or_environments(project: Path, tmp_path: Path):
    folder, copy = project / "configs", tmp_path / "copy"
    write(folder, "a_tool.py", "a_package/__init__.py", "a_package/inner/words.txt", "a_package/__pycache__/x.pyc")
    write(folder, "config.yaml", "data/prompts.jsonl", "data/make.py", "runs/first/policy/modeling.py")
    write(folder, ".venv/lib/x.py", ".hidden/x.py", "another_project/big/__init__.py")
    stage(folder, copy)
    shipped = {str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()}
    assert shipped == {"a_tool.py", "a_package/__init__.py", "a_package/inner/words.txt"}


def test_of_folders_without_init_those_are_shipped_that_the_checks_imported_from(project: Path, tmp_path: Path):
    folder, copy = project / "configs", tmp_path / "copy"
    write(folder, "no_init/losses/mine.py", "no_init/losses/its_helper.py", "no_init/losses/table.csv")
    write(folder, "no_init/whole/__init__.py", "no_init/whole/table.csv", "no_init/runs/policy.py", "unused/x.py")
    write(project, "elsewhere/x.py")
    (folder / "elsewhere").mkdir()
    search_like_workers(folder, on_cluster=False)
    for module in ("no_init.losses.mine", "elsewhere.x"):
        importlib.import_module(module)
    stage(folder, copy)
    assert {str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()} == {
        "no_init/losses/mine.py",
        "no_init/losses/its_helper.py",
        "no_init/whole/__init__.py",
        "no_init/whole/table.csv",
    }


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ships", [True, False])
def test_a_worker_imports_the_modules_that_the_driver_has_imported(tmp_path: Path, ships: bool):
    configs, working_folder, named = tmp_path / "configs", tmp_path, tmp_path / "named"
    configs.mkdir()
    write(working_folder, "in_two.py", "in_three.py", "only_here.py")
    write(named, "in_two.py", "in_three.py", "only_named.py")
    expected = {
        "in_two": working_folder.name,
        "in_three": working_folder.name,
        "only_here": working_folder.name,
        "only_named": "named",
    }
    if ships:
        write(configs, "in_three.py", "no_init/inner/x.py", "with_init/__init__.py", "unrelated.py")
        expected |= {"in_three": "configs", "no_init.inner.x": "configs", "with_init": "configs"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.importing", str(configs), *expected],
        cwd=working_folder,
        env=os.environ | {"PYTHONPATH": f"named{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [list(expected.values())] * 2
