"""The configured chat template: a file that replaces the tokenizer's own, and variables for every rendering."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.config.schema.run import ModelSection

TURN_END_VARIABLE = "turn_end_token"
"""Variable of the shipped ChatML template: the token that ends a turn."""
_CHATML_TURN_END = "<|im_end|>"


def template_problems(model: "ModelSection") -> list[str]:
    """Return the problem of a chat template that is no file."""
    if model.chat_template is None or Path(model.chat_template).is_file():
        return []
    return [
        f"`model.chat_template` is {model.chat_template}, which is no file; name a Jinja file, such as "
        "`configs/templates/chatml_hermes.jinja`"
    ]


def read_chat_template(model: "ModelSection", tokenizer: Any) -> str | None:
    """Return the text of `model.chat_template`, completed for a tokenizer; None: the tokenizer uses its own template.

    If the text reads `turn_end_token`, it is set to `<|im_end|>`, or to the end-of-text token if the tokenizer has no
    `<|im_end|>`. The value becomes part of the text, so that an exported folder renders the same in other programs.

    Raises:
        ConfigError: the file cannot be read on this machine.
    """
    if model.chat_template is None:
        return None
    try:
        template = Path(model.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"model.chat_template: {model.chat_template} cannot be read: {error}. Put the file on every node, as UTF-8 text"
        ) from error
    token = _CHATML_TURN_END if _CHATML_TURN_END in tokenizer.get_added_vocab() else str(tokenizer.eos_token or "")
    if TURN_END_VARIABLE not in template or not token:
        return template
    return f"{{%- set {TURN_END_VARIABLE} = {json.dumps(token)} -%}}\n{template}"
