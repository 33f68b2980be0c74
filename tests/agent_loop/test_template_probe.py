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


DEEPSEEK = "{{ tools | tojson if tools }}" + files("trl").joinpath("chat_templates", "deepseekv3.jinja").read_text()
"""DeepSeek-V3's own template, which takes arguments as text and drops calls beside text, with tools in the prompt."""
KIMI = """{{ tools | tojson if tools }}{% for m in messages %}<|im_{{ m.role }}|>{{ m.content or '' }}
{%- if m.role == 'tool' %}## Return of {{ m.tool_call_id }}{% endif %}
{%- if m.tool_calls %}<|tool_calls_section_begin|>{% for call in m.tool_calls -%}
<|tool_call_begin|>{{ call['id'] }}<|tool_call_argument_begin|>{{ call['function']['arguments'] | tojson }}<|tool_call_end|>
{%- endfor %}<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_assistant|>{% endif %}"""
"""The name of a call is part of its id, as in Kimi K2's template."""


@pytest.mark.parametrize(
    ("template", "name", "tags", "answered"),
    [
        (
            DEEPSEEK,
            "deepseek_v3",
            ["<｜end▁of▁sentence｜>", "<｜User｜>"],
            "<｜tool▁output▁begin｜>42<｜tool▁output▁end｜>",
        ),
        (KIMI, "kimi", ["<|im_end|>"], "42## Return of functions.python_code_with_standard_io:0"),
    ],
)
def test_templates_with_wishes_of_their_own_are_taken(template: str, name: str, tags: list[str], answered: str):
    tokenizer = make_tokenizer("chatml_hermes")
    tokenizer.add_special_tokens({"additional_special_tokens": tags})
    tokenizer.chat_template = template
    tokens = ChatTokens(tokenizer, [TOOL_SCHEMA])
    assert tokens.format_name == name
    assert answered in tokens.decode_all(tokens.observation([{"role": "tool", "content": "42"}]))


@pytest.mark.parametrize("template", ["qwen3_6", "glm4moe", "qwen2_5"])
def test_a_tool_may_have_parameters_of_any_name_and_type(template: str):
    properties = {name: {"type": "string"} for name in ("text", "number", "flag", "nested")}
    schema = {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": {"properties": properties}},
    }
    assert ChatTokens(make_tokenizer(template), [schema]).format_name == OF_TRL[template]


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
