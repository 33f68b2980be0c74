import json
import shutil
from pathlib import Path

import pytest

from agentrl.config.load import SHIPPED_FOLDER, load_run_config
from agentrl.errors import ConfigError
from agentrl.runners.model_folders import check_models

DEMO, POLICY = str(SHIPPED_FOLDER / "configs" / "demo.yaml"), SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"


def check(*words: str) -> None:
    check_models(load_run_config(DEMO, words).config)


def test_a_reward_model_that_reads_other_tokens_is_refused(tmp_path: Path):
    for name in ("config.json", "tokenizer.json"):
        shutil.copy2(POLICY / name, tmp_path)
    check(f"reward.model.path={tmp_path}")
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["another"] = 5
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"reward\.model\.path: .* has another vocabulary than `model\.path`"):
        check(f"reward.model.path={tmp_path}")


def test_a_critic_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"critic\.path: .* no such folder"):
        check("algorithm.advantage=gae", f"critic.path={tmp_path / 'absent'}")
    with pytest.raises(ConfigError, match=r"critic\.path: .* has no config\.json and no tokenizer\.json"):
        check("algorithm.advantage=gae", f"critic.path={tmp_path}")
