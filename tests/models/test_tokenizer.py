"""The tokenizer of a model folder, by its class where that is known."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentrl.errors import ConfigError
from agentrl.models import tokenizer as tokenizer_module
from agentrl.models.tokenizer import load_tokenizer, tokenizer_class

POLICY = Path("examples/arithmetic/policy")
TEXTS = ["How much is 6 * 7?", "<|im_start|>user\nDon't  stop\n\n42 ünïcödé 数学<|im_end|>", " leading", ""]


def model_folder(folder: Path, **facts: str) -> str:
    """Return a copy of the shipped model's folder with other facts of its tokenizer."""
    shutil.copytree(POLICY, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))
    return str(folder)


@pytest.mark.parametrize(
    "name", ["TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2TokenizerFast", "GPT2Tokenizer"]
)
def test_by_its_class_a_tokenizer_is_what_autotokenizer_loads(name: str, tmp_path: Path):
    path = model_folder(tmp_path / "model", tokenizer_class=name)
    expected = AutoTokenizer.from_pretrained(path)
    loaded = load_tokenizer(path, tokenizer_class(path))
    assert type(loaded) is type(expected)
    assert loaded.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert loaded.init_kwargs == expected.init_kwargs
    assert loaded.chat_template == expected.chat_template
    assert loaded.special_tokens_map == expected.special_tokens_map
    assert [loaded(text).input_ids for text in TEXTS] == [expected(text).input_ids for text in TEXTS]


def test_a_class_that_is_not_of_transformers_is_left_to_autotokenizer(monkeypatch: pytest.MonkeyPatch):
    class Mine(PreTrainedTokenizerFast):
        pass

    monkeypatch.setattr(tokenizer_module, "load_tokenizer", lambda path: Mine.from_pretrained(path))
    assert tokenizer_class(str(POLICY)) is None


_WORKER = """
import asyncio
import sys

from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.models.tokenizer import tokenizer_class
from agentrl.types import Prompt

model = sys.argv[1]
assert tokenizer_class(model) is None, "finding the class would import torch"
worker = AgentLoopWorker(
    WorkerConfig(
        model=ModelSection(path=model),
        rollout=RolloutSection(),
        reward=RewardSection(class_name="agentrl.rewards.math_answer.MathAnswerReward"),
        tools=(),
        run_seed=0,
        run_dir=".",
        tokenizer_class=sys.argv[2],
    ),
    "agent_loop",
)


async def play():
    await worker.start()
    prompt = Prompt(prompt_id="p0", messages=[{"role": "user", "content": "How much is 6 * 7?"}], answer="42")
    print(await worker.prompt_lengths([prompt]), "torch" in sys.modules)
    await worker.aclose()


asyncio.run(play())
"""


def test_a_worker_of_the_agent_loop_that_is_told_the_class_does_not_load_torch():
    command = [sys.executable, "-c", _WORKER, str(POLICY), str(tokenizer_class(str(POLICY)))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lengths, loaded = done.stdout.strip().rsplit(" ", 1)
    assert lengths.startswith("{'p0': ")
    assert loaded == "False"


def test_a_folder_without_a_tokenizer_is_a_mistake_of_the_config_either_way(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"model\.path: no tokenizer in"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(ConfigError, match=r"model\.path: no tokenizer in"):
        load_tokenizer(str(tmp_path), tokenizer_class(str(POLICY)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"model\.path: no tokenizer in .*; fetch it again"):
        load_tokenizer(str(tmp_path), tokenizer_class(str(POLICY)))
