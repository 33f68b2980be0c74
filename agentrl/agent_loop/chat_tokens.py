"""Chat messages to token ids, without ever encoding again what the policy sampled.

A trajectory is `prompt ids + sampled ids + observation ids + sampled ids + ...`. The prompt is one template rendering. An
observation (a tool's answer) is the *difference* of two renderings: a short dialogue with the answer, minus the same
dialogue without it. So the ids of a trajectory are those of one full rendering, for every template that appends.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError
from agentrl.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PROBE_USER: Message = {"role": "user", "content": "probe"}
_PROBE_TEXT = "probe-completion"
_THOUGHT_BEGIN = "<think>"


class ChatTokens:
    """The token side of one chat template with one set of tools.

    `turn_end_id` is the token with which the template ends an assistant turn (`<|im_end|>`, `<|eot_id|>`); engines stop
    there. It is read off the template, because base models name another token as their `eos_token`.
    `rewrites_history` tells that the template renders an earlier assistant turn differently once something follows it
    (Qwen3): the policy then goes on from what it really wrote, which is not what a full rendering shows.
    `opens_thought` tells that the template itself writes the `<think>` with which a turn begins (QwQ, Qwen3 Thinking).
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", tools: Sequence[dict[str, Any]]) -> None:
        """Learn how the template ends a turn and appends an observation.

        Args:
            tokenizer: with a chat template.
            tools: schemas in the form that `apply_chat_template(tools=...)` takes.

        Raises:
            ConfigError: there is no template, or it rewrites what came before an observation.
        """
        if not tokenizer.chat_template:
            raise ConfigError(f"model.path: the tokenizer of `{tokenizer.name_or_path}` has no chat template. Add one.")
        self._tokenizer = tokenizer
        self._tools: list[Any] | None = list(tools) or None
        self._added_tokens = list(tokenizer.get_added_vocab())
        self._base = [_PROBE_USER, {"role": "assistant", "content": _PROBE_TEXT}]
        base_text = self._render(self._base)
        self.turn_end_id, self._after_turn_end = self._find_turn_end(base_text)
        self._turn_end_text = base_text.partition(_PROBE_TEXT)[2]
        self.rewrites_history = self._check_appends(base_text)
        self.opens_thought = self._render([_PROBE_USER], add_generation_prompt=True).rstrip().endswith(_THOUGHT_BEGIN)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the dialogue so far, up to where the policy starts to write."""
        return self._encode(self._render(messages, add_generation_prompt=True))

    def observation(self, results: Sequence[Message]) -> list[int]:
        """Return the ids that stand between a sampled turn-end token and the next turn of the policy.

        Args:
            results: `tool` messages, in the order of the calls. Token literals inside their text (`<|im_end|>`) are
                broken up, so that the output of a program cannot forge a turn.
        """
        safe = [message | {"content": self._break_token_literals(message["content"])} for message in results]
        text = self._render([*self._base, *safe], add_generation_prompt=True)
        return self._encode(self._after_turn_end + self._after_base(text))

    def cut(self, text: str, max_tokens: int) -> tuple[str, bool]:
        """Return `text`, cut to about `max_tokens` tokens with a mark that says so, and whether it was cut."""
        text = self._break_token_literals(text)  # first: a broken literal is many tokens
        if len(text.encode()) <= max_tokens:
            return text, False  # no token stands for less than a byte
        ids = self._encode(text)
        if len(ids) <= max_tokens:
            return text, False
        kept = self._tokenizer.decode(ids[: max(0, max_tokens)])
        return f"{kept}\n[cut: {len(ids) - max_tokens} more tokens]", True

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the turn-end token if they end with one."""
        ids = list(token_ids)
        # The library's own tokenizer: what wraps it looks at every id, and may tidy up what was sampled.
        decode = self._tokenizer.backend_tokenizer.decode
        return decode(ids[:-1] if ids and ids[-1] == self.turn_end_id else ids, skip_special_tokens=False)

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Tokenise a whole dialogue the way a rollout would have produced it, for supervised training.

        Returns:
            `(token_ids, response_mask)` of one length; 1 marks what an assistant wrote, its turn-end token included.

        Raises:
            ConfigError: the template changes earlier text when an assistant turn follows.
        """
        ids: list[int] = []
        mask: list[int] = []
        rendered = ""
        pending = ""
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:index], add_generation_prompt=True)
            after = self._render(messages[: index + 1])
            if not before.startswith(rendered) or not after.startswith(before):
                raise ConfigError(
                    f"message {index}: the chat template rewrites earlier assistant turns (Qwen3 drops their thoughts), so "
                    "what would be trained is not what a rollout sees. Use a template that only appends."
                )
            context_ids = self._encode(pending + before[len(rendered) :])
            completion = after[len(before) : len(after) - len(self._after_turn_end)]
            completion_ids = self._encode(completion)
            ids += context_ids + completion_ids
            mask += [0] * len(context_ids) + [1] * len(completion_ids)
            rendered, pending = after, self._after_turn_end
        return ids, mask

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        text = self._tokenizer.apply_chat_template(
            list(messages), tools=self._tools, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return str(text)

    def _encode(self, text: str) -> list[int]:
        # As in `decode`: what wraps the library's own tokenizer takes longer than that itself.
        return self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def _find_turn_end(self, base_text: str) -> tuple[int, str]:
        tail = base_text.rpartition(_PROBE_TEXT)[2]
        tail_ids = self._encode(tail)
        end = str(self._tokenizer.decode(tail_ids[:1]))
        if not end or not tail.startswith(end) or end not in self._added_tokens:
            raise ConfigError(
                f"model.path: the chat template of `{self._tokenizer.name_or_path}` ends an assistant turn with "
                f"{tail!r}, which does not start with a special token; an engine could not know where to stop"
            )
        return tail_ids[0], tail[len(end) :]

    def _after_base(self, text: str) -> str:
        # Counted from the completion, not from the start: Qwen3 puts an empty think block before the last assistant turn
        # only, so the text in front of it differs between the two renderings.
        return text.partition(_PROBE_TEXT)[2].removeprefix(self._turn_end_text)

    def _check_appends(self, base_text: str) -> bool:
        probe: Message = {"role": "tool", "content": "probe-result"}
        longer = self._render([*self._base, probe], add_generation_prompt=True)
        ends_turn = longer.partition(_PROBE_TEXT)[2].startswith(self._turn_end_text)
        if not ends_turn or "probe-result" not in self._after_base(longer):
            raise ConfigError(
                f"model.path: the chat template of `{self._tokenizer.name_or_path}` does not append a `tool` message "
                "to what came before it. Use a template that supports tools (Qwen2.5, Qwen3, Llama 3.x, Hermes)."
            )
        return not longer.startswith(base_text)

    def _break_token_literals(self, text: str) -> str:
        for token in self._added_tokens:
            if token in text:
                text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text
