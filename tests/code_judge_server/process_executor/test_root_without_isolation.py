"""Programs of a judge of tier D that root starts: they have an ordinary user, or the judge refuses to start."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_process import JudgeProcess, running_judge

from code_judge_server.sandbox import work_folder

LOG = "judge.log"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root only")


@pytest.fixture(scope="module")
def judge_of_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    folder = tmp_path_factory.mktemp("judge")
    with running_judge(folder, "--num-slots", "1", "--spare-slots", "0", stderr_to=folder.parent / LOG) as server:
        yield server


def test_a_warning_says_that_programs_may_read_every_file(judge_of_root: JudgeProcess, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    verdict = judge_of_root.judge(code=f"print(open({str(secret)!r}).read())")
    warns = "programs may read every file of this machine" in (judge_of_root.folder.parent / LOG).read_text()
    assert ("of root" in verdict["stdout"]) == warns, verdict


def test_the_folder_that_slots_share_is_never_closed_to_a_program_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    work_folder.ensure(str(shared), lets_users_through=True)
    modes, chmod = [], os.chmod
    monkeypatch.setattr(os, "chmod", lambda path, mode: modes.append(mode) or chmod(path, mode))
    work_folder.ensure(str(shared), lets_users_through=True)
    assert set(modes) == {0o711}
    assert shared.stat().st_mode & 0o777 == 0o711


def test_a_program_is_no_root_and_ends_nothing_of_root(judge_of_root: JudgeProcess) -> None:
    victim = subprocess.Popen(["/bin/sleep", "60"])
    try:
        code = f"""
import os
print(0 in os.getresuid() + os.getresgid(), len(os.getgroups()))
for pid in ({victim.pid}, os.getppid(), 1):
    try:
        os.kill(pid, 0)
    except PermissionError:
        print("refused")
"""
        verdict = judge_of_root.judge(code=code)
        assert verdict["stdout"] == "False 0\n" + 3 * "refused\n", verdict
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_a_program_writes_only_to_its_own_folder(judge_of_root: JudgeProcess, tmp_path: Path) -> None:
    code = f"""
import os, pathlib
os.makedirs("a/b")
pathlib.Path("a/b/own").write_text("mine")
print(open("given/file").read(), open("/dev/stdout", "w").writable())
for path in ({str(tmp_path / "new")!r}, {str(tmp_path.parent)!r}, "../other"):
    try:
        pathlib.Path(path, "x").mkdir(parents=True)
    except PermissionError:
        print("refused")
"""
    verdict = judge_of_root.judge(code=code, files={"given/file": "aGVsbG8="}, collect=["a/b/own"])
    assert verdict["stdout"] == "hello True\n" + 3 * "refused\n", verdict
    assert verdict["files"] == {"a/b/own": "bWluZQ=="}


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_judge_whose_programs_would_be_root_does_not_start(tmp_path: Path) -> None:
    """A user namespace in which root is the only user."""
    tier = ["--require-isolation", "D", "--use-isolation", "D"]
    command = [
        "unshare",
        "-r",
        sys.executable,
        "-m",
        "code_judge_server",
        "--port",
        "0",
        *tier,
        "--work-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "tier D of root" in done.stderr
    assert "Start the judge as one" in done.stderr
