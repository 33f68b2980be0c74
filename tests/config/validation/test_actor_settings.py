"""Contradictions in the section `actor`, and settings that need a missing package or device."""

from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["actor.lora.rank=-1"], r"`actor\.lora\.rank` is -1"),
        (["actor.lora.target_modules=[q_proj]"], r"`actor\.lora\.rank` is 0; set a rank"),
        (["actor.liger=true"], r"`actor\.liger` is set, but Liger is not installed"),
        (["actor.num_workers=4", "actor.shard_size=3"], r"`actor\.shard_size` is 3, which does not divide the 4 ranks"),
        (
            [
                "actor.lora.rank=4",
                "algorithm.kl_coefficient=0.1",
                "run.num_steps=2",
                "stages=[{num_steps: 1}, {num_steps: 1, update_reference: true}]",
            ],
            r"`stages\[1\]\.update_reference` is set, .* or `actor\.lora` keeps the base model",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(tmp_path: Path, overrides: list[str], named: str):
    file = tmp_path / "c.yaml"
    file.write_text("data: {train_files: [x.jsonl]}\nmodel: {path: x}\n")
    with pytest.raises(ConfigError, match=named):
        load_run_config(str(file), overrides)
