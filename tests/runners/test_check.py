"""What a check prints of a config."""

import pytest

from agentrl.config.load import load_run_config
from agentrl.runners.check import CheckLevel, check


async def test_the_tokens_that_an_engine_reserves_are_those_of_the_longest_stage(capsys: pytest.CaptureFixture[str]):
    loaded = load_run_config("configs/rstar2_qwen3_14b.yaml")
    await check(loaded, CheckLevel.STATIC)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "KV-cache" in line]
    assert "(stage 2 of 3)" in line
    rollout = loaded.config.rollout
    assert f"{rollout.max_concurrent_trajectories * (rollout.max_prompt_tokens + 12288):,}" in line
