"""The site of the pages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_site_builds_and_no_link_of_it_is_broken(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'href="../security/"' in (tmp_path / "judge_deployment" / "index.html").read_text().lower()
    loaded = re.findall(
        r"<(?:script|link)[^>]+(?:src|href)=[^>]*https?://[^>]+>", (tmp_path / "index.html").read_text()
    )
    assert loaded == [], "a page loads nothing from elsewhere"
