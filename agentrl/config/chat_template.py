"""The chat template that a config names: a file in place of the tokenizer's own, and variables for every rendering."""

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection

_OWN_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of `apply_chat_template` that agentrl chooses itself."""


def template_problems(model: "ModelSection") -> list[str]:
    """Return what is wrong with the keys of the chat template, without its rendering."""
    problems = [
        f"`model.template_kwargs.{name}` is an argument that agentrl sets itself; remove it"
        for name in sorted(_OWN_ARGUMENTS & model.template_kwargs.keys())
    ]
    if model.chat_template is not None and not Path(model.chat_template).is_file():
        problems.append(
            f"`model.chat_template` is {model.chat_template}, which is no file; name a Jinja file, such as "
            "`configs/templates/chatml_hermes.jinja`"
        )
    return problems


def read_chat_template(model: "ModelSection") -> str | None:
    """Return the text of `model.chat_template`; None: the tokenizer's own template is used.

    Raises:
        ConfigError: the file cannot be read on this machine.
    """
    if model.chat_template is None:
        return None
    try:
        return Path(model.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"model.chat_template: {model.chat_template} cannot be read here: {error}; put the file on every node, as "
            "UTF-8 text"
        ) from error
