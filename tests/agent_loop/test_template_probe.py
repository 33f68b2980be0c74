"""Real templates that hide the tools, or write calls that are not read."""

import contextlib
from importlib.resources import files
from pathlib import Path

import pytest

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.run import ModelSection
from agentrl.errors import ConfigError
from agentrl.formats.registry import FORMATS
from tests.chat_templates import OWN_TEMPLATES, TOOL_SCHEMA, make_tokenizer
from tests.formats.rendering import OF_TRL

CHATML = str(OWN_TEMPLATES / "chatml_hermes.jinja")

HIDING = ["llama3", "deepseekv3", "deepseek_r1_distill", "qwen2_5_vl", "gemma3", "phi3", "smolvlm"]
UNREAD = ["lfm2_2_5", "muse_glimmer"]
"""LFM2.5's first template does not escape the text of arguments."""


@pytest.mark.parametrize("template", HIDING)
def test_a_template_that_hides_the_tools_is_refused(template: str):
    with pytest.raises(
        ConfigError, match=r"does not show the tools \(`python_code.*Set `model\.chat_template: configs/templates/"
    ):
        ChatTokens(make_tokenizer(template), [TOOL_SCHEMA])


@pytest.mark.parametrize("template", UNREAD)
def test_a_template_whose_calls_are_not_read_is_refused(template: str):
    with pytest.raises(ConfigError, match=r"writes a tool call as .*Set `model\.chat_template: configs/templates/"):
        ChatTokens(make_tokenizer(template), [TOOL_SCHEMA])


def test_a_template_that_leaves_out_calls_is_refused():
    with pytest.raises(ConfigError, match="drops the tool calls"):
        ChatTokens(make_tokenizer("lfm2"), [TOOL_SCHEMA])


@pytest.mark.parametrize("template", ["chatml_hermes", "llama3_hermes", *OF_TRL])
def test_the_format_of_a_template_is_found(template: str):
    tokens = ChatTokens(make_tokenizer(template), [TOOL_SCHEMA])
    assert tokens.format_name == OF_TRL.get(template, "hermes")


def test_a_template_that_two_formats_read_is_refused_with_both_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FORMATS, "twin", FORMATS["hermes"])
    with pytest.raises(
        ConfigError, match=r"several formats read: `hermes`, `hermes`\. Choose one with `model\.tool_format`"
    ):
        ChatTokens(make_tokenizer("qwen2_5"), [TOOL_SCHEMA])


def test_a_named_format_that_does_not_read_the_template_is_refused():
    with pytest.raises(ConfigError, match=r"writes a tool call as .*, which the format `glm` does not read"):
        ChatTokens(make_tokenizer("qwen2_5"), [TOOL_SCHEMA], tool_format="glm")


@pytest.mark.slow
def test_no_real_template_ends_in_a_traceback():
    """Each is either taken or refused in one line, with tools and without."""
    for file in files("trl").joinpath("chat_templates").iterdir():
        if file.name.endswith(".jinja"):
            for tools in ([TOOL_SCHEMA], []):
                with contextlib.suppress(ConfigError):
                    ChatTokens(make_tokenizer(file.name.removesuffix(".jinja")), tools)


def test_a_template_that_drops_plain_text_is_refused():
    with pytest.raises(ConfigError, match="drops the text of an assistant's turn"):
        ChatTokens(make_tokenizer("smolvlm"), [])


@pytest.mark.parametrize("eos", ["</s>", "<|endoftext|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"])
def test_the_chatml_template_serves_tokenizers_of_other_families(eos: str, tmp_path: Path):
    """Such as Llama 2, GPT-2 and DeepSeek, none of which has `<|im_end|>`."""
    tokenizer = make_tokenizer("chatml_hermes", without="<|im_end|>")
    tokenizer.add_special_tokens({"eos_token": eos})
    tokenizer.save_pretrained(tmp_path)
    tokens = ChatTokens.of_model(ModelSection(path=str(tmp_path), chat_template=CHATML), [TOOL_SCHEMA])
    assert tokens.stop_ids == (tokenizer.eos_token_id,)
    assert tokens.ends == [eos]
    assert tokens.prompt([{"role": "user", "content": "x"}])[0] == tokenizer.bos_token_id


def test_the_chatml_template_ends_turns_as_chatml_where_the_tokenizer_can(tmp_path: Path):
    tokenizer = make_tokenizer("chatml_hermes")
    tokenizer.save_pretrained(tmp_path)
    tokens = ChatTokens.of_model(ModelSection(path=str(tmp_path), chat_template=CHATML), [TOOL_SCHEMA])
    assert tokens.ends == ["<|im_end|>", "<|endoftext|>"]


def test_a_shipped_template_that_is_set_is_not_its_own_way_out(tmp_path: Path):
    tokenizer = make_tokenizer("chatml_hermes", without="<|im_end|>")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    change = tmp_path / "tokenizer.json"
    change.write_text(change.read_text().replace("<|start_header_id|>", "<|other|>"))
    with pytest.raises(
        ConfigError, match=r"an engine cannot stop there\. Set `model\.chat_template` to a template of your own"
    ) as raised:
        ChatTokens.of_model(ModelSection(path=str(tmp_path), chat_template=CHATML), [TOOL_SCHEMA])
    assert "Set `model.chat_template: " not in str(raised.value)


def test_the_way_out_fits_the_tokens():
    tokenizer = make_tokenizer("qwen2_5_vl")
    with pytest.raises(ConfigError, match="llama3_hermes"):
        ChatTokens(tokenizer, [TOOL_SCHEMA])
    plain = make_tokenizer("qwen2_5_vl", without="<|start_header_id|>")
    with pytest.raises(ConfigError, match="chatml_hermes"):
        ChatTokens(plain, [TOOL_SCHEMA])
