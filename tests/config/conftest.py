"""Fixtures of the tests of configs."""

from pathlib import Path

import pytest

from tests.config.small_config import MINIMAL


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL)
    return file
