"""The smallest config that loads, and the message that refuses a change of it."""

from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError

MINIMAL = "data: {train_files: [train.jsonl]}\nmodel: {path: policy}\n"


def refused(file: Path, *overrides: str) -> str:
    """Return the one line with which a config is refused."""
    with pytest.raises(ConfigError) as caught:
        load_run_config(str(file), overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
