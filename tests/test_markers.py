"""Effect of the markers `vllm` and `browser` where what they need is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 passed, 2 skipped"), ("true", "1 passed, 2 errors")])
def test_tests_of_what_is_not_installed_are_skipped_but_fail_where_ci_is_true(
    tmp_path: Path, ci: str, outcome: str
) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\nsys.modules['vllm'] = sys.modules['playwright'] = None  # as if they were not installed\n"
        "from tests.conftest import pytest_runtest_setup\n"
    )
    (tmp_path / "test_marked.py").write_text(
        "import pytest\n\n@pytest.mark.vllm\ndef test_vllm(): pass\n\n@pytest.mark.browser\ndef test_browser(): pass\n\n"
        "def test_plain(): pass\n"
    )
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(tmp_path),
    ]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert outcome in run.stdout
    assert "make vllm" in run.stdout
    assert "make browser" in run.stdout
    assert (run.returncode != 0) is bool(ci)
