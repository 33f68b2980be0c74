"""Rendering of dialogues with a tokenizer's chat template, and the tools and variables of the run."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.meta

from agentrl.errors import ConfigError
from agentrl.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_GENERATION_TAG = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Tags for trained text in templates of transformers, unknown to jinja2 itself."""


class ChatTemplate:
    """The chat template of one tokenizer, with one set of tools and variables."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        tools: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
        *,
        file: str | None = None,
    ) -> None:
        """Take a tokenizer with a chat template, and the arguments of all its renderings.

        `tools` are schemas as `apply_chat_template` takes them, `variables` are `model.template_kwargs`. `file` is the
        template's file, for messages; None: the tokenizer's own template.

        Raises:
            ConfigError: there is no template, it is not valid, or it ignores one of the variables.
        """
        self._tokenizer = tokenizer
        self.tools: list[Any] = list(tools)
        self._variables = dict(variables)
        self.added_tokens: dict[str, int] = tokenizer.get_added_vocab()
        self.name = f"model.chat_template: {file}"
        if file is None:
            self.name = f"model.path: the chat template of {tokenizer.name_or_path or 'the tokenizer'}"
        shipped = "llama3_hermes" if "<|start_header_id|>" in self.added_tokens else "chatml_hermes"
        self.way_out = f"Set `model.chat_template: configs/templates/{shipped}.jinja`"
        if file is not None and Path(file).name == f"{shipped}.jinja":
            self.way_out = (
                "Set `model.chat_template` to a template of your own, or `model.path` to a tokenizer whose `eos_token` is an "
                "added token"
            )
        if not tokenizer.chat_template:
            raise ConfigError(
                f"model.path: the tokenizer of {tokenizer.name_or_path} has no chat template. {self.way_out}"
            )
        self._refuse_unread_variables()

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, with_tools: bool = True
    ) -> str:
        """Return a dialogue as text; a template may raise any exception for messages that it does not expect."""
        text = self._tokenizer.apply_chat_template(
            list(messages),
            tools=(self.tools if with_tools else None) or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **self._variables,
        )
        return str(text)

    def _refuse_unread_variables(self) -> None:
        """Refuse a misspelt variable, which would have no effect."""
        text = str(self._tokenizer.get_chat_template(None, self.tools or None))
        environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
        try:
            read = jinja2.meta.find_undeclared_variables(environment.parse(_GENERATION_TAG.sub("", text)))
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{self.name} is not a valid Jinja template: line {error.lineno}: {error.message}"
            ) from error
        for name in sorted(self._variables.keys() - read):
            known = ", ".join(f"`{other}`" for other in sorted(read))
            raise ConfigError(f"{self.name} does not read `model.template_kwargs.{name}`; it reads {known}")
