"""A process started from a snapshot has all memory as it was at that moment, whatever has changed since."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from code_judge_server.jail import native

NATIVE = Path(native.__file__).parent
DRIVER = Path(__file__).parents[2] / "snapshot_driver.c"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
    pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "_Fork"), reason="not glibc 2.34 or later: jobs start without"),
]


@pytest.mark.parametrize("options", [["-O0"], ["-O2", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"]])
def test_a_fork_that_resumes_finds_all_as_it_was(tmp_path: Path, options: list[str]):
    program = tmp_path / "driver"
    sources = [str(DRIVER), str(NATIVE / "snapshot.c")]
    command = [str(COMPILER), *options, "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", *sources, "-o", str(program)]
    subprocess.run(command, check=True)
    ran = subprocess.run([program], capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, (ran.returncode, ran.stdout, ran.stderr)
    results = dict(line.split() for line in ran.stdout.splitlines())
    assert len(results) == 11
    assert set(results.values()) == {"yes"}, results
