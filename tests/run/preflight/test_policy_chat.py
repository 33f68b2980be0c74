"""The policy's tokenizer and template, tried in the driver."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.schema.run import ModelSection
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.run.plan import prepare, prepare_evaluation
from agentrl.run.preflight.policy_chat import check_chat, check_policy_chat, schemas_of
from agentrl.run.preflight.report import CheckReport, CheckSubject
from agentrl.run.prompt_sets import training_prompts
from agentrl.tools.base import ToolConfig

DEMO, POLICY = str(SHIPPED_FOLDER / "configs" / "demo.yaml"), SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"
HIDES_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = ToolConfig(class_name="a.B")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the demo's policy."""
    shutil.copytree(POLICY, tmp_path / "policy")
    return tmp_path / "policy"


def change(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_tokenizer_with_tokens_outside_the_embedding_is_refused(folder: Path):
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    check_policy_chat(ModelSection(path=str(folder)), [])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = tokenizer["added_tokens"][0] | {"content": "<|extra|>", "id": rows}
    change(folder / "tokenizer.json", added_tokens=[*tokenizer["added_tokens"], added])
    with pytest.raises(ConfigError, match=rf"tokens beyond the {rows} rows of the embedding .*`<\|extra\|>`\. Resize"):
        check_policy_chat(ModelSection(path=str(folder)), [])


def test_a_tokenizer_without_a_template_is_refused_and_a_shipped_one_is_the_way_out(folder: Path):
    for file in folder.glob("chat_template*"):
        file.unlink()
    change(folder / "tokenizer_config.json", chat_template=None)
    with pytest.raises(
        ConfigError, match=r"no chat template\. Set `model\.chat_template: (configs/templates/\w+\.jinja)`"
    ):
        check_policy_chat(ModelSection(path=str(folder)), [])
    shipped = str(SHIPPED_FOLDER / "configs" / "templates" / "chatml_hermes.jinja")
    tokens = check_policy_chat(ModelSection(path=str(folder), chat_template=shipped), schemas_of([TOOL]))
    assert tokens.ends[0] == "<|im_end|>"


def test_the_ends_of_the_generation_config_and_of_the_config_are_ends(folder: Path):
    tokens = check_policy_chat(ModelSection(path=str(folder)), [])
    others = [token for token in tokens.tokens_from(0) if token.startswith("<|") and token not in tokens.ends]
    ids = {
        entry["content"]: entry["id"] for entry in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    }
    first, second = (ids[token] for token in others[:2])
    change(folder / "generation_config.json", eos_token_id=[first])
    change(folder / "config.json", eos_token_id=second)
    tokens = check_policy_chat(ModelSection(path=str(folder)), [])
    assert {first, second} < set(tokens.stop_ids)


def test_start_check_and_evaluation_refuse_a_template_that_hides_the_tools(tmp_path: Path):
    (tmp_path / "hides.jinja").write_text(HIDES_TOOLS)
    words = [f"model.chat_template={tmp_path / 'hides.jinja'}", f"run.dir={tmp_path / 'run'}"]
    refused = pytest.raises(ConfigError, match=r"model\.chat_template: .*hides\.jinja does not show the tools")
    with refused:
        prepare(load_run_config(DEMO, words))
    with refused:
        prepare_evaluation(load_run_config(DEMO, words, purpose=Purpose.EVALUATION))
    assert not (tmp_path / "run").exists()


async def test_the_check_shows_the_length_of_the_first_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    loaded = load_run_config(DEMO, [f"run.dir={tmp_path / 'run'}"])
    subject = CheckSubject(loaded=loaded, tools=[], training=[training_prompts(loaded.config)])
    check_chat(subject, CheckReport(Console()))
    tokens, prompt = ChatTokens.of_model(loaded.config.model, []), subject.training[0].all()[0]
    expected = f"chat template: the first prompt has {len(tokens.prompt(prompt.messages))} tokens; a turn ends with"
    assert expected in capsys.readouterr().out


def test_the_driver_needs_no_torch_for_it():
    code = (
        "import sys; from agentrl.config.schema.run import ModelSection\n"
        "from agentrl.run.preflight.policy_chat import check_policy_chat\n"
        "check_policy_chat(ModelSection(path=sys.argv[1]), []); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(POLICY)], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
