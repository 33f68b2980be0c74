"""Fixtures of the agent loop's tests."""

import json
from pathlib import Path

import pytest

from agentrl.data.prompts import PromptDataset


@pytest.fixture
def prompts(tmp_path: Path) -> PromptDataset:
    """Seven prompts, so that batches run over the end of an epoch."""
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Compute {n} + 1.", "answer": n + 1}) + "\n" for n in range(7)))
    return PromptDataset([file], prompt_key="prompt", answer_key="answer", system_prompt=None, shuffle=True, seed=0)
