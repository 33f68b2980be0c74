"""An interpreter reached through links in its parent folders, such as a release named `current`, works like any other."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from judge_process import JudgeProcess

from code_judge_server.jail.launch.plan import HiddenPathError, make_plan
from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.schemas import IsolationTier

PROGRAM = """
import subprocess, sys
import sympy
print(sys.executable, sys.prefix, sympy.Integer(6) * 7, flush=True)
subprocess.run([sys.executable, "-c", "import numpy; print(numpy.arange(3).sum())"], check=True)
"""


def linked_python(folder: Path) -> str:
    """Return a path to the running interpreter through two links, the second one relative, in its parent folders."""
    (folder / "release-7").symlink_to(sys.prefix)
    (folder / "current").symlink_to("release-7")
    return f"{folder}/current/bin/python"


@contextmanager
def judge_of(python: str, folder: Path, *, tier: str) -> Iterator[JudgeProcess]:
    command = [python, "-m", "code_judge_server", "--port", "0", "--num-slots", "1", "--spare-slots", "0"]
    command += ["--require-isolation", tier, "--use-isolation", tier]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first_line = process.stdout.readline()
            assert first_line.startswith("listening on "), "it does not start"
            yield JudgeProcess(process, first_line.removeprefix("listening on ").strip(), folder, {})
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["A", "B", "C"])
def test_an_environment_in_a_linked_folder_gives_the_same_tier_and_modules(tmp_path: Path, tier: str) -> None:
    if find_tier(IsolationTier(tier)).tier != tier:
        pytest.skip(f"this machine does not give tier {tier}")
    python = linked_python(tmp_path)
    with judge_of(python, tmp_path, tier=tier) as judge:
        assert judge.http.get("/v1/health").json()["isolation"] == tier
        verdict = judge.judge(code=PROGRAM)
        assert verdict["stdout"] == f"{python} {tmp_path}/current 42\n3\n", verdict


def paths_shown(**settings: Any) -> list[str]:
    plan = make_plan(IsolationTier.B, num_slots=1, preloads={}, **settings)
    try:
        return list(plan.read_only)
    finally:
        plan.close()


def test_each_link_on_the_way_is_shown_with_its_target(tmp_path: Path) -> None:
    for name in ("release-7", "release-7/tools", "beside"):
        (tmp_path / name).mkdir()
    (tmp_path / "current").symlink_to("beside/../release-7")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "current" / "tools")
    shown = paths_shown(read_only=[str(tmp_path / "elsewhere")])
    below = {path.removeprefix(f"{tmp_path}/") for path in shown if path.startswith(f"{tmp_path}/")}
    assert below == {"elsewhere", "current", "release-7/tools"}


def test_a_link_into_a_folder_of_each_programs_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    with pytest.raises(HiddenPathError, match=r"read_only_paths: `.*/link` is in /dev/shm"):
        paths_shown(read_only=[str(tmp_path / "link")])


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["A", "B", "C", "D"])
def test_an_interpreter_may_be_called_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    if find_tier(IsolationTier(tier)).tier != tier:
        pytest.skip(f"this machine does not give tier {tier}")
    (tmp_path / "below").mkdir()
    (tmp_path / "environment").symlink_to(sys.prefix)
    monkeypatch.chdir(tmp_path / "below")
    with judge_of("../environment/bin/python", tmp_path, tier=tier) as judge:
        verdict = judge.judge(code=PROGRAM.replace("sympy.Integer(6) * 7", "42").replace("import sympy\n", ""))
    assert verdict["status"] == "accepted", verdict
    assert ".." not in verdict["stdout"]
