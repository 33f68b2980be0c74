"""Columns of a row: messages, answer and id of a prompt.

With the defaults of `data.prompt_key` and `data.answer_key`, the names of rStar2 and verl work too: `messages` for the prompt,
`reward_model.ground_truth` for the answer. `extra_info.index` may be the id.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.data.messages import SYSTEM_ROLES, read_messages
from agentrl.data.rows import Row
from agentrl.errors import DataLayoutError, RowError
from agentrl.types import Prompt

_ID_KEY = "id"
_INDEX_KEY = "extra_info.index"
_PROMPT_KEY = "prompt"
_MESSAGES_KEY = "messages"
_ANSWER_KEY = "answer"
_GROUND_TRUTH_KEY = "reward_model.ground_truth"
_PICTURES = {"images": "<image>", "videos": "<video>"}


class PromptColumns:
    """Columns of prompts, by the names of the configuration; dots in a name enter a struct."""

    def __init__(self, *, prompt_key: str, answer_key: str, system_prompt: str | None) -> None:
        # A column that the user names must exist; no other replaces it.
        self._prompt_keys = [prompt_key, _MESSAGES_KEY] if prompt_key == _PROMPT_KEY else [prompt_key]
        self._answer_keys = [answer_key, _GROUND_TRUTH_KEY] if answer_key == _ANSWER_KEY else [answer_key]
        self._must_answer = answer_key != _ANSWER_KEY
        self._system_prompt = system_prompt

    def parse(self, row: Row, prompt_id: str) -> Prompt:
        """Return the prompt of `row`; columns other than messages, answer and id are in `extra`.

        Raises:
            DataLayoutError: a column is missing, or holds whole dialogues.
            RowError: a column is empty or of the wrong shape.
        """
        prompt_key = _present_key(row, self._prompt_keys, option="data.prompt_key")
        # The answer may be missing unless the user has named its column.
        present = [key for key in self._answer_keys if _look_up(row.values, key) is not None] or self._answer_keys
        answer_key = _present_key(row, present, option="data.answer_key") if self._must_answer else present[0]
        extra = row.values
        for key in (_ID_KEY, prompt_key, answer_key):
            extra = _without(extra, key)
        prompt = _look_up(row.values, prompt_key)
        messages = read_messages(prompt, where=f"{row.where}: column `{prompt_key}`")
        if messages[-1]["role"] == "assistant":
            raise DataLayoutError(
                f"{row.where}: column `{prompt_key}` ends with an assistant message, which would show the policy an answer. "
                "End it with the question; whole dialogues are for `agentrl.runners.sft`"
            )
        if self._system_prompt is not None and messages[0]["role"] not in SYSTEM_ROLES:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        for column, mark in _PICTURES.items():
            if row.values.get(column) and any(mark in message["content"] for message in messages):
                raise RowError(f"{row.where}: the prompt shows `{column}` at `{mark}`, and the policy reads text only")
        return Prompt(
            prompt_id=prompt_id,
            messages=messages,
            answer=_look_up(row.values, answer_key),
            extra=dict(extra),
            is_text=isinstance(prompt, str),
            answer_column=answer_key,
        )


def category_of(prompt: Prompt, column: str) -> str | None:
    """Return the value of a further column of a prompt as text; None if the row lacks it. Dots enter structs."""
    value = _look_up(prompt.extra, column)
    return None if value is None else str(value)


def own_id(row: Row) -> str | None:
    """Return the value of the row's `id` column, or None; raises RowError if it is neither text nor a number."""
    value = row.values.get(_ID_KEY)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(
            f"{row.where}: column `{_ID_KEY}` must be text or a number, got {type(value).__name__}: {value!r}"
        )
    return str(value)


def own_index(row: Row) -> str | None:
    """Return the row's `extra_info.index` (verl's data sets), or None if it is missing or a struct."""
    value = _look_up(row.values, _INDEX_KEY)
    return str(value) if isinstance(value, str | int | float) else None


def _present_key(row: Row, keys: Sequence[str], *, option: str) -> str:
    for key in keys:
        if _look_up(row.values, key) is not None:
            return key
    names = " or ".join(f"`{key}`" for key in keys)
    columns = ", ".join(f"`{name}`" for name in row.values) or "none"
    is_column = any(key in row.values or key.partition(".")[0] in row.values for key in keys)
    error_class = RowError if is_column else DataLayoutError
    raise error_class(f"{row.where}: no value in column {names} (columns: {columns}). Name the column in `{option}`")


def _look_up(values: Mapping[str, Any], key: str) -> Any:
    """Return the value at `key`, whose dots enter structs; None if any part is missing or null."""
    if key in values:
        return values[key]
    name, _, rest = key.partition(".")
    inner = values.get(name)
    return _look_up(inner, rest) if rest and isinstance(inner, Mapping) else None


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a copy of `values` without `key`; structs on its path are copied."""
    name, _, rest = key.partition(".")
    inner = values.get(name)
    if key not in values and rest and isinstance(inner, Mapping):
        return {**values, name: _without(inner, rest)}
    return {other: value for other, value in values.items() if other != key}
