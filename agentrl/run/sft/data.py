"""The dialogues of a warm start as tokens: every row is read, rendered and tokenised before anything is trained."""

import logging
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.cluster.ray.user_modules import search_like_workers
from agentrl.config.schema.sft import SftConfig, SftDataSection
from agentrl.data.dialogues import Dialogue, read_dialogues
from agentrl.errors import ConfigError
from agentrl.models.attention_support import exact_positions, num_positions
from agentrl.run.preflight.models.folders import language_settings
from agentrl.run.preflight.policy_chat import check_policy_chat, known_schemas
from agentrl.tools.loader import load_tool_file, with_server_tools

if TYPE_CHECKING:
    from agentrl.training.packing.sequences import TokenisedExample

logger = logging.getLogger(__name__)

_LINE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedDialogue:
    """A dialogue as a rollout would have produced it."""

    where: str
    """File and row."""
    token_ids: NDArray[np.int32]
    response_mask: NDArray[np.bool_]
    """True for what is learnt: the assistant's turns."""

    def example(self) -> "TokenisedExample":
        """Return it as the trainer takes it."""
        from agentrl.training.packing.sequences import TokenisedExample

        return TokenisedExample(
            token_ids=self.token_ids.tolist(), response_mask=self.response_mask.astype(np.int8).tolist()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueSet:
    """The dialogues of some files, in their order."""

    dialogues: list[TokenisedDialogue]
    num_dropped: int = 0
    """Left out because they are too long."""

    def examples(self, indices: Sequence[int] | None = None) -> "list[TokenisedExample]":
        """Return those with these indices, or all."""
        chosen = self.dialogues if indices is None else [self.dialogues[index] for index in indices]
        return [dialogue.example() for dialogue in chosen]

    def describe(self) -> str:
        """Return the counts in one line."""
        lengths = [len(dialogue.token_ids) for dialogue in self.dialogues]
        trained = sum(int(dialogue.response_mask.sum()) for dialogue in self.dialogues)
        dropped = f"; {self.num_dropped:,} longer ones dropped" if self.num_dropped else ""
        return (
            f"{len(lengths):,} dialogues, {sum(lengths):,} tokens ({trained / sum(lengths):.0%} trained), median "
            f"{statistics.median(lengths):,.0f}, longest {max(lengths):,}{dropped}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SftData:
    """All that is trained on, or measured on."""

    training: DialogueSet
    validation: DialogueSet | None
    tokens: ChatTokens


def read_data(config: SftConfig) -> SftData:
    """Read and tokenise every row of the training and validation files.

    Raises:
        ConfigError: a file or a row cannot be used, or dialogues are too long; the message names the place.
    """
    tokenise = _Tokeniser(config)
    data = config.data
    held_out = data.validation_files
    return SftData(
        training=_read_set(data.train_files, data, tokenise, key="data.train_files"),
        validation=_read_set(held_out, data, tokenise, key="data.validation_files") if held_out else None,
        tokens=tokenise.tokens,
    )


class _Tokeniser:
    """Tokenises dialogues with their own tools, or with those of the run."""

    def __init__(self, config: SftConfig) -> None:
        self._schemas = _tool_schemas(config.tool_config_path)
        self.tokens = check_policy_chat(config.model, self._schemas, without_torch=False)
        settings = language_settings(config.model.path) or {}
        limits = (config.data.max_tokens, num_positions(settings), exact_positions(settings))
        self.max_tokens = min((limit for limit in limits if limit), default=sys.maxsize)
        self._last: tuple[list[dict[str, Any]], ChatTokens] = ([], self.tokens)

    def __call__(self, dialogue: Dialogue) -> TokenisedDialogue:
        _refuse_unlisted_calls(dialogue, dialogue.tools or self._schemas)
        tokens = self._tokens_of(dialogue)
        try:
            token_ids, response_mask = tokens.conversation(dialogue.messages)
        except ConfigError as error:
            raise ConfigError(f"{dialogue.where}: {error}") from error
        except (TemplateError, TypeError) as error:  # by the template, about messages that it does not expect
            raise ConfigError(
                f"{dialogue.where}: the chat template cannot render it: {error}. Mend the row, or use another template"
            ) from error
        return TokenisedDialogue(
            where=dialogue.where,
            token_ids=np.array(token_ids, dtype=np.int32),
            response_mask=np.array(response_mask, dtype=np.bool_),
        )

    def _tokens_of(self, dialogue: Dialogue) -> ChatTokens:
        if not dialogue.tools:
            return self.tokens
        if self._last[0] != dialogue.tools:
            try:
                self._last = (dialogue.tools, self.tokens.with_tools(dialogue.tools))
            except ConfigError as error:
                raise ConfigError(f"{dialogue.where}: {error}") from error
        return self._last[1]


def _refuse_unlisted_calls(dialogue: Dialogue, schemas: Sequence[dict[str, Any]]) -> None:
    """Refuse a trained call to a tool that the prompt does not list: the policy would learn to call what it cannot know."""
    listed = [schema["function"]["name"] for schema in schemas]
    for message in dialogue.messages:
        for call in message.get("tool_calls") or () if message.get("weight") != 0 else ():
            if (name := call["function"]["name"]) not in listed:
                raise ConfigError(
                    f"{dialogue.where}: a call to `{name}`, and the prompt lists {', '.join(listed) or 'no tools'}; name the "
                    "tools of the dialogues in `tool_config_path` or in a column `tools`, or give the turn `weight: 0`"
                )


def _read_set(files: Sequence[str], data: SftDataSection, tokenise: _Tokeniser, *, key: str) -> DialogueSet:
    tokenised: list[TokenisedDialogue] = []
    next_line_at = time.monotonic() + _LINE_EVERY_S
    for dialogue in read_dialogues([Path(file) for file in files], messages_key=data.messages_key):
        tokenised.append(tokenise(dialogue))
        if time.monotonic() >= next_line_at:
            logger.info("%s: %s dialogues tokenised", key, f"{len(tokenised):,}")
            next_line_at += _LINE_EVERY_S
    if not tokenised:
        raise ConfigError(f"{key}: no dialogue in {', '.join(files)}")
    overlong = [dialogue for dialogue in tokenised if len(dialogue.token_ids) > tokenise.max_tokens]
    if overlong and (data.overlong_dialogues == "error" or len(overlong) == len(tokenised)):
        raise ConfigError(
            f"{key}: {len(overlong)} of {len(tokenised)} dialogues have more than {tokenise.max_tokens} tokens "
            f"(`data.max_tokens`, or the positions of the model), the first at {overlong[0].where} with "
            f"{len(overlong[0].token_ids)}. Raise the limit if it is yours, or set `data.overlong_dialogues: drop`"
        )
    kept = [dialogue for dialogue in tokenised if len(dialogue.token_ids) <= tokenise.max_tokens]
    return DialogueSet(dialogues=kept, num_dropped=len(overlong))


def shuffled_forever(number: int, seed: int) -> Iterator[int]:
    """Yield the indices below `number` in a new seeded order each epoch, without end."""
    rng = random.Random(seed)
    while True:
        epoch = list(range(number))
        rng.shuffle(epoch)
        yield from epoch


def _tool_schemas(tool_config_path: str | None) -> list[dict[str, Any]]:
    """Return the schemas that the system prompt lists; no class of the user's is built for its own."""
    if tool_config_path is None:
        return []
    file = Path(tool_config_path)
    tools = with_server_tools(load_tool_file(file))
    search_like_workers(file.parent, on_cluster=False)
    unknown = [tool.class_name for tool in tools if not known_schemas([tool])]
    if unknown:
        raise ConfigError(
            f"{file.name}: `{unknown[0]}` has no `tool_schema`, and a warm start builds no tool to ask for it; write it out "
            "as `tool_configs/python_tool_config.yaml` does"
        )
    return known_schemas(tools)
