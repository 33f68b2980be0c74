"""The tokens with which a chat template ends a turn of the policy: after an answer, and after calls.

Most templates write one token for both (`<|im_end|>`). gpt-oss ends calls with `<|call|>`, Gemma with `<|tool_response>`. In
GLM the token that begins the next turn (`<|user|>`, `<|observation|>`) ends the turn before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from agentrl.agent_loop.chat_template import ChatTemplate
from agentrl.agent_loop.template_probe import calling_turn, probe_call, render_probe
from agentrl.errors import ConfigError
from agentrl.formats.arguments import parameters_of
from agentrl.formats.base import CallFormat, read_calls
from agentrl.types import Message

PROBE_USER: Message = {"role": "user", "content": "probe"}
PROBE_TEXT = "probe-completion"
PROBE_ANSWER: Message = {"role": "assistant", "content": PROBE_TEXT}
_PROBE_RESULT = "probe-result"
_PROBE_NEXT: Message = {"role": "user", "content": "probe-next"}
_PROBE_THOUGHT = "probe-thought"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """End of a turn: in ChatML, `token` is `<|im_end|>` and `after` a line break.

    With `begins_next` the token belongs to the rendering of the next turn. Without a token (`token_id` None) the turn goes on
    after the result: a stop string of the format ends the call.
    """

    token_id: int | None
    token: str
    after: str
    begins_next: bool

    @property
    def appended_ids(self) -> list[int]:
        """The token, if the rendering of the turn itself does not have it."""
        return [self.token_id] if self.begins_next and self.token_id is not None else []


class TurnEnds:
    """The ends of one template's turns, and what it writes after calls and after answers.

    `rewrites_history` is True if the template renders a turn with calls differently once a result follows it (Qwen3): the
    policy then continues from its sampled tokens, which differ from a full rendering. `inside_text` is a turn without its end.
    """

    def __init__(self, template: ChatTemplate, grammar: CallFormat | None, encode: Callable[[str], list[int]]) -> None:
        """Find the ends; `grammar` is the format of calls, None without tools.

        Raises:
            ConfigError: an end is not an added token, or a `tool` message is not appended to what came before it.
        """
        self._template, self._grammar, self._encode = template, grammar, encode
        self._turns: dict[tuple[str, ...], tuple[list[dict[str, Any]], str]] = {}
        self._answer_text = render_probe(template, [PROBE_USER, PROBE_ANSWER], "an assistant's turn")
        if PROBE_TEXT not in self._answer_text:
            raise ConfigError(f"{template.name} drops the text of an assistant's turn. {template.way_out}")
        self.answer = self.call = self._find_answer_end()
        self.inside_text, self.rewrites_history = "", False
        if grammar:
            self._find_call_end(template.tools[0]["function"]["name"])

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of both ends, without doubles."""
        ids = dict.fromkeys((self.answer.token_id, self.call.token_id))
        return tuple(token_id for token_id in ids if token_id is not None)

    def after_calls(self, names: Sequence[str], results: Sequence[Message]) -> str:
        """Return the text between the token that ended a turn with calls of the tools `names`, and the policy's next turn.

        Messages of other roles may follow the results.
        """
        if self._grammar is None:
            text = self._template.render([PROBE_USER, PROBE_ANSWER, *results], add_generation_prompt=True)
            rest = text.partition(PROBE_TEXT)[2]
        else:
            calls, text = self._calling_turn(tuple(names))
            ids = [calls[min(index, len(calls) - 1)]["id"] for index in range(len(names))]
            answers = [
                result | {"tool_call_id": call_id, "name": name}
                for result, call_id, name in zip(results, ids, names, strict=False)
            ]
            later = results[len(names) :]
            rest = calling_turn(self._template, self._grammar, calls, [*answers, *later]).partition(text)[2]
        return rest.lstrip().removeprefix(self.call.token) if self.call.token else rest

    def after_answer(self, messages: Sequence[Message]) -> str:
        """Return the text between the token that ended a turn without calls, and the policy's next turn.

        gpt-oss ends its last turn with `<|return|>` and writes `<|end|>` there as soon as a message follows; the policy goes on
        from the token that it sampled.
        """
        dialogue = [PROBE_USER, PROBE_ANSWER, *messages]
        text = render_probe(self._template, dialogue, "messages after an answer", add_generation_prompt=True)
        return text.partition(PROBE_TEXT)[2].lstrip().removeprefix(self._followed_answer.token)

    @cached_property
    def _followed_answer(self) -> TurnEnd:
        """End of an answer that a user's message follows."""
        text = render_probe(self._template, [PROBE_USER, PROBE_ANSWER, _PROBE_NEXT], "a second question")
        tail = text.partition(PROBE_TEXT)[2]
        if _PROBE_NEXT["content"] not in tail:
            raise ConfigError(
                f"{self._template.name} does not append a `user` message to what came before it. {self._template.way_out}"
            )
        return self._end_of(tail, begins_next=self.answer.begins_next)

    @cached_property
    def rewrites_answers(self) -> bool:
        """True if the template renders an answer differently once a user's message follows it: most drop its thought."""
        if self._followed_answer.token != self.answer.token:
            return True
        prompt = self._template.render([PROBE_USER], add_generation_prompt=True)
        begin, end = (self._grammar or CallFormat).thought
        opening = "" if prompt.rstrip().endswith(begin) else begin
        answer: Message = {"role": "assistant", "content": f"{opening}\n{_PROBE_THOUGHT}\n{end}\n\n{PROBE_TEXT}"}
        try:
            text = render_probe(self._template, [PROBE_USER, answer, _PROBE_NEXT], "an answer with a thought")
        except ConfigError:
            return True
        return not text.startswith(prompt) or _PROBE_THOUGHT not in text

    def _calling_turn(self, names: tuple[str, ...]) -> tuple[list[dict[str, Any]], str]:
        """Return calls of these tools without arguments, and the turn that makes them, without its end.

        A template that writes one call a turn (Llama 3) gets the first.
        """
        assert self._grammar is not None, "a format"
        if names not in self._turns:
            calls = [probe_call(self._grammar, name, index) for index, name in enumerate(names)]
            try:
                turn = calling_turn(self._template, self._grammar, calls)
            except ConfigError:
                calls = calls[:1]
                turn = calling_turn(self._template, self._grammar, calls)
            read = read_calls(self._grammar, turn, parameters_of(self._template.tools), id_prefix="")
            self._turns[names] = calls, turn[read.begin : read.end]
        return self._turns[names]

    def _find_answer_end(self) -> TurnEnd:
        tail = self._answer_text.rpartition(PROBE_TEXT)[2]
        begins_next = not tail.strip()
        if begins_next:
            text = render_probe(self._template, [PROBE_USER, PROBE_ANSWER, PROBE_USER], "a second question")
            tail = text.partition(PROBE_TEXT)[2]
        return self._end_of(tail, begins_next=begins_next)

    def _find_call_end(self, name: str) -> None:
        assert self._grammar is not None, "a format"
        [call], text = self._calling_turn((name,))
        turn = calling_turn(self._template, self._grammar, [call])
        result: Message = {"role": "tool", "content": _PROBE_RESULT, "tool_call_id": call["id"], "name": name}
        longer = calling_turn(self._template, self._grammar, [call], [result])
        if not text or _PROBE_RESULT not in longer.partition(text)[2]:
            raise ConfigError(
                f"{self._template.name} does not append a `tool` message to what came before it. {self._template.way_out}"
            )
        before, _, own_tail = turn.partition(text)
        self.inside_text = before + text
        self.rewrites_history = not longer.startswith(self.inside_text)
        if self._grammar.stop_strings({name: {}}):
            self.call = TurnEnd(token_id=None, token="", after="", begins_next=False)
            return
        end, own_tail = self._end_of(longer.partition(text)[2], begins_next=False), own_tail.lstrip()
        begins_next = not own_tail.startswith(end.token)
        self.call = replace(end, after="" if begins_next else own_tail.removeprefix(end.token), begins_next=begins_next)

    def _end_of(self, tail: str, *, begins_next: bool) -> TurnEnd:
        tail = tail.lstrip()
        for token, token_id in self._template.added_tokens.items():
            if tail.startswith(token) and self._encode(tail)[0] == token_id:
                after = "" if begins_next else tail[len(token) :]
                return TurnEnd(token_id=token_id, token=token, after=after, begins_next=begins_next)
        raise ConfigError(
            f"{self._template.name} ends an assistant's turn with {tail!r}, which does not begin with an added token of the "
            f"tokenizer, so an engine cannot stop there. {self._template.way_out}"
        )
