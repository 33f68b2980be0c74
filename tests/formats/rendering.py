"""Renderings of tool calls by the chat templates that trl ships, and by short ones for models that it does not."""

import json
import os
from importlib.resources import files
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from agentrl.agent_loop.template_probe import probe_call
from agentrl.formats.registry import FORMATS

OF_TRL = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_instruct_2507": "hermes",
    "qwen3_vl": "hermes",
    "qwen3_5_nothink": "qwen_xml",
    "qwen3_5_think": "qwen_xml",
    "qwen3_6": "qwen_xml",
    "qwen3_8": "qwen_xml",
    "nemotron_3_nano": "qwen_xml",
    "nemotron_3_5_lightning": "qwen_xml",
    "llama3_1": "llama",
    "llama3_2": "llama",
    "glm4moe": "glm",
    "gptoss": "gpt_oss",
    "gemma4": "gemma",
    "gemma4_v5": "gemma",
    "lfm2_v2": "lfm2",
    "lfm2_2_5_vl": "lfm2",
}
"""Format of each template."""


def _own(call: str, *, before: str, after: str, between: str = "") -> str:
    """Return a template of an assistant's turn: `before`, each call `f`, `after`."""
    return (
        "{% for m in messages %}{% if m.tool_calls %}"
        + before
        + "{% for c in m.tool_calls %}{% set f = c.function %}{% if not loop.first %}"
        + between
        + "{% endif %}"
        + call
        + "{% endfor %}"
        + after
        + "{% endif %}{% endfor %}"
    )


OWN = {
    "deepseek_v3_1": _own(
        "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    ),
    "deepseek_v3": _own(
        "<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ f.name + '\n```json\n' + f.arguments + '\n```' }}"
        "<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        between="\n",
        after="<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    ),
    "kimi": _own(
        "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|><|im_end|>",
    ),
    "mistral": _own("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", before="", after="</s>"),
    "mistral_list": _own(
        '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}',
        before="[TOOL_CALLS] [",
        between=", ",
        after="]</s>",
    ),
    "minimax": _own(
        '<invoke name="{{ f.name }}">\n{% for k, v in f.arguments.items() %}<parameter name="{{ k }}">'
        "{{ v | tojson if v is not string else v }}</parameter>\n{% endfor %}</invoke>\n",
        before="<minimax:tool_call>\n",
        after="</minimax:tool_call>[e~[",
    ),
}
"""The part of a template that writes calls, for formats of which no installed package carries a template; key: the format."""

_ONE_CALL = {"llama3_1", "llama3_2", "gptoss"}
"""Templates that write one call a turn."""


def calls_of(template: str, wanted: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Return as many of the calls as one turn of the template can hold."""
    return wanted[:1] if template in _ONE_CALL else wanted


def rendered_turn(template: str, wanted: list[tuple[str, dict[str, Any]]], tools: list[dict[str, Any]]) -> str:
    """Return the assistant's turn that makes the wanted calls, with what follows it."""
    source = OWN.get(template) or files("trl").joinpath("chat_templates", f"{template}.jinja").read_text()
    grammar = FORMATS[OF_TRL.get(template, template)]
    calls = [
        probe_call(grammar, name, index, arguments=arguments if template != "deepseek_v3" else json.dumps(arguments))
        for index, (name, arguments) in enumerate(wanted)
    ]
    question = [{"role": "user", "content": "a question"}]
    turn = [*question, {"role": "assistant", "content": grammar.empty_content, "tool_calls": calls}]
    prompt = _render(source, question, tools, add_generation_prompt=True)
    full = _render(source, turn, tools)
    return full[len(os.path.commonprefix([prompt, full])) :] if template not in OWN else full  # noqa: RUF071 - texts


def _render(source: str, messages: list[Any], tools: list[Any], *, add_generation_prompt: bool = False) -> str:
    [text], _ = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=source,
        bos_token="<s>",
        eos_token="</s>",
        add_generation_prompt=add_generation_prompt,
    )
    return text
