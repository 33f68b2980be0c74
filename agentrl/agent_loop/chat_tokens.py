"""Conversion of chat messages to token ids; sampled text is never encoded again.

A trajectory is `prompt ids + sampled ids + observation ids + sampled ids + ...`. The prompt is one template rendering. An
observation (the answer of tools or of the environment) is the *difference* of two renderings: a short dialogue with the answer,
minus the same dialogue without it. So the ids of a trajectory equal those of one full rendering, for every template that only
appends.

A policy may end a turn with another token than the template does: a base model with `<|endoftext|>`, Llama 3.1 with
`<|eom_id|>` after a call. That token stays in the ids as sampled, and is removed from the text. The observation follows as the
template writes it after its own turn end, so the ids differ from a full rendering in this one token.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.agent_loop.chat_template import ChatTemplate
from agentrl.agent_loop.template_probe import calls_equal, find_format, render_probe
from agentrl.agent_loop.turn_ends import PROBE_USER, TurnEnds
from agentrl.config.chat_template import read_chat_template
from agentrl.config.schema.run import ModelSection
from agentrl.errors import ConfigError
from agentrl.formats.arguments import parameters_of
from agentrl.formats.base import CallFormat, ReadCalls, read_calls
from agentrl.models.tokenizer import end_token_ids, load_tokenizer
from agentrl.types import Message, Prompt, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_TAG_ENDS = {("<", ">"), ("[", "]"), ("{", "}")}


class ChatTokens:
    """The token side of one chat template with one set of tools.

    `turn_ends` are the tokens with which the template ends a turn (`<|im_end|>`, `<|eot_id|>`), taken from a rendering: base
    models name another token as their `eos_token`.
    `stop_ids` are all tokens that end a turn of the policy, those of the template first; engines stop at them.
    `stop_strings` are strings of the format of calls that end a turn, too.
    `rewrites_history`: see `TurnEnds`.
    `opens_thought` is True if the template itself writes the `<think>` at the start of a turn (QwQ, Qwen3 Thinking).
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        tools: Sequence[dict[str, Any]],
        *,
        tool_format: str = "auto",
        variables: Mapping[str, Any] | None = None,
        end_ids: frozenset[int] = frozenset(),
        template_file: str | None = None,
    ) -> None:
        """Check the template, and find out how it ends a turn and appends an observation.

        `tool_format` names the format of calls (`model.tool_format`), `end_ids` are end tokens named by the model's files,
        besides the tokenizer's `eos_token`; the other arguments are those of `ChatTemplate`. Without `tools`, the template may
        lack them.

        Raises:
            ConfigError: there is no template, it hides the tools, writes calls in a format that is not read, or rewrites text
                before an observation.
        """
        self._tokenizer = tokenizer
        self._tool_format = tool_format
        self._variables, self._end_ids, self._template_file = variables, end_ids, template_file
        self._template = template = ChatTemplate(tokenizer, tools, variables or {}, file=template_file)
        self._literals = [
            token for token in template.added_tokens if _is_markup(token, special=tokenizer.all_special_tokens)
        ]
        self._format = find_format(template, tool_format) if tools else None
        self._parameters = parameters_of(tools)
        self.stop_strings = self._format.stop_strings(self._parameters) if self._format else ()
        self.turn_ends = TurnEnds(template, self._format, self._encode)
        self.stop_ids = self._find_stop_ids(end_ids)
        self.rewrites_history = self.turn_ends.rewrites_history
        prompt = render_probe(template, [PROBE_USER], "a prompt", add_generation_prompt=True)
        self.opens_thought = prompt.rstrip().endswith((self._format or CallFormat).thought[0])

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the template shows."""
        return self._template.tools

    @property
    def format_name(self) -> str | None:
        """Name of the format of calls; None without tools."""
        return self._format.name if self._format else None

    @classmethod
    def of_model(
        cls, model: ModelSection, tools: Sequence[dict[str, Any]], tokenizer_class: str | None = None
    ) -> "ChatTokens":
        """Load a policy's tokenizer with the configured chat template; raises as `load_tokenizer` and `ChatTokens` do."""
        tokenizer = load_tokenizer(model.path, tokenizer_class)
        if (template := read_chat_template(model, tokenizer)) is not None:
            tokenizer.chat_template = template
        return cls(
            tokenizer,
            tools,
            tool_format=model.tool_format,
            variables=model.template_kwargs,
            end_ids=end_token_ids(model.path),
            template_file=model.chat_template,
        )

    @property
    def ends(self) -> list[str]:
        """The tokens of `stop_ids`, as text."""
        return [str(self._tokenizer.convert_ids_to_tokens(stop_id)) for stop_id in self.stop_ids]

    def tokens_from(self, first_id: int) -> list[str]:
        """Return the tokens with an id of `first_id` or more."""
        return [token for token, token_id in self._tokenizer.get_vocab().items() if token_id >= first_id]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the dialogue so far, up to the start of the policy's turn."""
        return self._encode(self._template.render(messages, add_generation_prompt=True))

    def opened_prompt(self, messages: Sequence[Message], opening: str) -> tuple[list[int], list[int]]:
        """Return the ids of a dialogue that goes on with a text of the user, divided where they leave those of `prompt`.

        The text is added to a last message of the user, since many templates refuse two in a row.
        """
        opening, last = self._break_token_literals(opening), messages[-1] if messages else {}
        if last.get("role") == "user" and isinstance(last["content"], str):
            longer = [*messages[:-1], last | {"content": f"{last['content']}\n\n{opening}"}]
        else:
            longer = [*messages, {"role": "user", "content": opening}]
        ids = self.prompt(longer)
        num_shared = next(
            (n for n, pair in enumerate(zip(ids, self.prompt(messages), strict=False)) if pair[0] != pair[1]), 0
        )
        return ids[:num_shared], ids[num_shared:]

    def prompt_lengths(self, prompts: Iterable[Prompt]) -> dict[str, int]:
        """Return the number of tokens of each prompt, keyed by prompt id.

        Raises:
            ConfigError: the chat template cannot render one.
        """
        lengths: dict[str, int] = {}
        for prompt in prompts:
            try:
                lengths[prompt.prompt_id] = len(self.prompt(prompt.messages))
            except Exception as error:
                # A template is a program, and may raise any exception for messages that it does not expect.
                raise ConfigError(
                    f"prompt `{prompt.prompt_id}`: the chat template cannot render its messages: {type(error).__name__}: "
                    f"{error}. Fix or remove the row, or set `model.chat_template`"
                ) from error
        return lengths

    def calls(self, text: str, *, id_prefix: str) -> tuple[ToolCall, ...]:
        """Return the tool calls in a turn's text, with the ids `{id_prefix}-0`, `{id_prefix}-1`, ...; without tools, none."""
        return self.read_calls(text, id_prefix=id_prefix).calls

    def read_calls(self, text: str, *, id_prefix: str) -> ReadCalls:
        """Return the tool calls in a turn's text, and the part of it that they take."""
        if self._format is None:
            return ReadCalls(calls=(), begin=0, end=0)
        in_thought = self.opens_thought
        return read_calls(self._format, text, self._parameters, id_prefix=id_prefix, in_thought=in_thought)

    def split_thought(self, text: str) -> tuple[str, int]:
        """Return the thought at the start of a turn's text, and the position behind it; one that is never closed is text."""
        begin, end = (self._format or CallFormat).thought
        if not self.opens_thought and not text.lstrip().startswith(begin):
            return "", 0
        thought, closed, _ = text.partition(end)
        return (thought.lstrip().removeprefix(begin).strip(), len(thought + end)) if closed else ("", 0)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text, outside of any dialogue."""
        return self._encode(text)

    def observation(self, messages: Sequence[Message], *, names: Sequence[str] = ()) -> list[int]:
        """Return the ids between the token that ended a turn and the policy's next turn, given the messages between them.

        After a turn with calls these are `tool` messages, one per call, and then perhaps others; after an answer a `user`
        message, and perhaps others. Their `content` is text.

        Token literals in it (`<|im_end|>`) are broken up, so that a program's output cannot forge a turn. `names` are
        those of the called tools, which some templates repeat; a name that no tool has, which may hold markup, is replaced.

        Raises:
            ConfigError: the template cannot render such messages.
        """
        safe = [message | {"content": self._break_token_literals(message["content"])} for message in messages]
        num_results = sum(message["role"] == "tool" for message in messages)
        if not num_results:
            return self._encode(self.turn_ends.after_answer(safe))
        first = self._template.tools[0]["function"]["name"] if self._template.tools else ""
        names = [name if name in self._parameters else first for name in names or [first] * num_results]
        return self._encode(self.turn_ends.after_calls(names, safe))

    def require_user_turns(self) -> None:
        """Refuse a template that does not append a user's message to an answer.

        Raises:
            ConfigError: it drops the message, or cannot render it.
        """
        self.turn_ends.after_answer([PROBE_USER])

    def cut(self, text: str, max_tokens: int) -> tuple[str, bool]:
        """Return `text`, cut to about `max_tokens` tokens with a mark at the end, and whether it was cut."""
        text = self._break_token_literals(text)  # first: a broken literal is many tokens
        if len(text.encode()) <= max_tokens:
            return text, False  # every token is at least one byte
        ids = self._encode(text)
        if len(ids) <= max_tokens:
            return text, False
        kept = self._tokenizer.decode(ids[: max(0, max_tokens)])
        return f"{kept}\n[cut: {len(ids) - max_tokens} more tokens]", True

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without a final token that ended the turn."""
        ids = list(token_ids)
        # The backend tokenizer: its wrapper checks every id, and may clean up the sampled text.
        decode = self._tokenizer.backend_tokenizer.decode
        return decode(ids[:-1] if ids and ids[-1] in self.stop_ids else ids, skip_special_tokens=False)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Return the text of any ids, special tokens included."""
        return self._tokenizer.backend_tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def with_tools(self, tools: Sequence[dict[str, Any]]) -> "ChatTokens":
        """Return the same template with other tools."""
        return ChatTokens(
            self._tokenizer,
            tools,
            tool_format=self._tool_format,
            variables=self._variables,
            end_ids=self._end_ids,
            template_file=self._template_file,
        )

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Tokenise a whole dialogue the way a rollout would have produced it, for supervised training.

        Returns:
            `(token_ids, response_mask)` of one length; 1 marks tokens of assistant messages, their turn-end tokens included,
            except in messages with OpenAI's `weight: 0`.

        Raises:
            ConfigError: the template changes earlier text when an assistant turn follows, or writes tool calls in a format
                that the parser does not read.
        """
        ids: list[int] = []
        mask: list[int] = []
        rendered = ""
        pending = ""
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            end = self.turn_ends.call if message.get("tool_calls") else self.turn_ends.answer
            before = self._template.render(messages[:index], add_generation_prompt=True)
            after = self._template.render(messages[: index + 1])
            if not before.startswith(rendered) or not after.startswith(before):
                raise ConfigError(
                    f"message {index}: the chat template rewrites earlier assistant turns (Qwen3 drops their thoughts), so "
                    "training would differ from rollouts. Use a template that only appends."
                )
            context_ids = self._encode(pending + before[len(rendered) :])
            completion = after[len(before) : len(after) - len(end.after)]
            self._check_calls(message, completion, index)
            completion_ids = self._encode(completion) + end.appended_ids
            ids += context_ids + completion_ids
            mask += [0] * len(context_ids) + [int(message.get("weight") != 0)] * len(completion_ids)
            rendered, pending = after + (end.token if end.begins_next else ""), end.after
        return ids, mask

    def _check_calls(self, message: Message, completion: str, index: int) -> None:
        """Refuse a turn whose calls the template drops, or writes in a format that the parser does not read."""
        wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        if wanted and self._format and not calls_equal(self.calls(completion, id_prefix="0"), wanted):
            raise ConfigError(
                f"message {index}: {self._template.name} writes its `tool_calls` as {completion[:160]!r}, which a rollout "
                f"would not read as these calls. {self._template.way_out}; `arguments` must be a mapping"
            )

    def _encode(self, text: str) -> list[int]:
        # The backend tokenizer, as in `decode`: its wrapper takes longer than the encoding itself; `encode` also finds the
        # place of each token in the text, which takes half of its time.
        return self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _find_stop_ids(self, end_ids: frozenset[int]) -> tuple[int, ...]:
        """Return the ends of the template's turns, and the model's other end tokens that it does not write inside a turn.

        A token that is ordinary text in this tokenizer (a default of some configuration) is left out.
        """
        added, eos = self._template.added_tokens.items(), self._tokenizer.eos_token
        ends = {token_id for token, token_id in added if token_id in end_ids or token == eos}
        own = self.turn_ends.token_ids
        return (*own, *sorted(ends - {*own, *self._encode(self.turn_ends.inside_text)}))

    def _break_token_literals(self, text: str) -> str:
        for token in self._literals:
            if token in text:
                text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text


def _is_markup(token: str, *, special: Sequence[str]) -> bool:
    """Return whether a token is markup that a program's output must not forge.

    Added tokens that are runs of spaces, letters or words (Phi, CodeLlama, DeepSeek) are text.
    """
    is_tag = len(token) > 2 and (token[0], token[-1]) in _TAG_ENDS
    return is_tag or (token in special and not token.isspace() and len(token) > 1)
