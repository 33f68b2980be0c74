"""The data sets of a run, read as its config says."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.run import DataSection, RunConfig
from agentrl.data.columns import category_of
from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError
from agentrl.rewards.loader import prompt_check
from agentrl.types import Prompt

_NUM_SHOWN = 5


def training_prompts(config: RunConfig, *, file_names: Mapping[Path, str] | None = None) -> PromptDataset:
    """Return the training prompts of a stage, or of a run without any; `file_names` is that of `PromptDataset`.

    Raises:
        ConfigError: a file, a row or a column is missing or malformed, or the reward could never score a prompt.
    """
    shuffle = config.data.shuffle
    return _dataset(config, config.data.train_files, shuffle=shuffle, file_names=file_names)


def held_out_prompts(config: RunConfig) -> PromptDataset | None:
    """Return the held-out prompts, None where no file is named; the errors are those of `training_prompts`.

    Raises:
        ConfigError: also if no prompt has the column `validation.category_column`.
    """
    if not config.data.validation_files:
        return None
    dataset = _dataset(config, config.data.validation_files, shuffle=False)
    column = config.validation.category_column
    if column is not None and all(category_of(prompt, column) is None for prompt in dataset.all()):
        columns = ", ".join(f"`{name}`" for name in dataset.all()[0].extra) or "none"
        raise ConfigError(
            f"validation.category_column: no prompt of {', '.join(config.data.validation_files)} has a column `{column}` "
            f"(further columns: {columns}). Name another, or leave the key out"
        )
    return dataset


def _dataset(config: RunConfig, files: list[str], **options: Any) -> PromptDataset:
    data = config.data
    return PromptDataset(
        [Path(file) for file in files],
        prompt_key=data.prompt_key,
        answer_key=data.answer_key,
        system_prompt=data.system_prompt,
        seed=config.run.seed,
        check_prompt=prompt_check(config.reward),
        skip_bad_rows=data.on_bad_row == "skip",
        **options,
    )


def data_warnings(datasets: Iterable[PromptDataset | None]) -> list[str]:
    """Return what a user should know of the files, each line once; several stages may read one file."""
    return list(dict.fromkeys(warning for dataset in datasets if dataset is not None for warning in dataset.warnings))


def overlong_warnings(overlong: Mapping[str, int], data: DataSection) -> list[str]:
    """Return warnings about prompts longer than `data.max_prompt_tokens`, given their lengths by id.

    Raises:
        ConfigError: the config does not leave them out.
    """
    if not overlong:
        return []
    shown = [f"`{prompt_id}` ({length})" for prompt_id, length in sorted(overlong.items())[:_NUM_SHOWN]]
    named = ", ".join([*shown, "..."] if len(overlong) > _NUM_SHOWN else shown)
    problem = (
        f"prompts of more than {data.max_prompt_tokens} tokens, with tools and system text: {len(overlong)} ({named})"
    )
    if data.overlong_prompts == "drop":
        return [f"{problem}; left out by `data.overlong_prompts: drop`"]
    raise ConfigError(
        f"data.max_prompt_tokens: {problem}. Raise it, or leave such prompts out with `data.overlong_prompts: drop`"
    )


def count_overlong(tokens: ChatTokens, prompts: Iterable[Prompt], max_tokens: int) -> dict[str, int]:
    """Return the tokens of the prompts that are longer than `max_tokens`, by prompt id.

    Raises:
        ConfigError: the chat template cannot render a prompt.
    """
    return {name: length for name, length in tokens.prompt_lengths(prompts).items() if length > max_tokens}
