"""Rendering of dialogues with a tokenizer's chat template, and the tools and variables of the run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError
from agentrl.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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
            ConfigError: there is no template.
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
        if not tokenizer.chat_template:
            raise ConfigError(
                f"model.path: the tokenizer of {tokenizer.name_or_path} has no chat template. {self.way_out}"
            )

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
