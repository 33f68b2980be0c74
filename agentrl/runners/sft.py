"""Warm start by imitation: `python -m agentrl.runners.sft config.yaml [section.key=value ...]`.

    dialogues (JSONL) -> tokens and mask -> next-token loss on what the assistant wrote -> model folder

Dialogues are tokenised as a rollout would have produced them (`ChatTokens.conversation`), tool results included, so that
the policy meets no other tokens later. One process, no Ray. The same command on the same machine gives the same weights.
"""

import random
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.chat_template import template_problems
from agentrl.config.load import find_config_file, load_tree, resolve_path, with_absolute_paths
from agentrl.config.places import check_folder
from agentrl.config.sft_schema import SftConfig
from agentrl.errors import ConfigError
from agentrl.observability.json_lines import read_json_lines
from agentrl.runners.command_line import EXIT_USAGE, make_parser
from agentrl.runners.model_folders import check_model_path, check_weights_of
from agentrl.runners.policy_chat import check_policy_chat
from agentrl.tools.loader import load_tool_file
from agentrl.training.batch import TokenisedExample
from agentrl.training.parallel import ParallelContext
from agentrl.training.supervised import SupervisedSchedule, SupervisedTrainer
from agentrl.types import Message


def warm_start(config: SftConfig) -> list[float]:
    """Train a model on dialogues and write it to `output_dir`.

    Returns:
        The loss of every step: the mean negative log-likelihood of the assistant's tokens, in nats.

    Raises:
        ConfigError: the dialogues, the tools or the model cannot be used as the config says.
    """
    check_model_path(config.model.path)
    if config.training.initial_weights == "pretrained":
        check_weights_of(config.model.path)
    tokens = check_policy_chat(config.model, _tool_schemas(config.tool_config_path), without_torch=False)
    dialogues = read_dialogues(config.data.train_files, config.data.messages_key)
    order = shuffled_forever(len(dialogues), config.training.seed)
    losses: list[float] = []
    with _trainer(config) as trainer, _progress_bar() as progress:
        task = progress.add_task("warm start", total=config.training.num_steps, loss=float("nan"))
        for _ in range(config.training.num_steps):
            chosen = [dialogues[index] for index in islice(order, config.training.examples_per_step)]
            metrics = trainer.step([_tokenise(tokens, dialogue) for dialogue in chosen])
            losses.append(metrics["sft/loss"])
            progress.update(task, advance=1, loss=losses[-1])
        trainer.export(config.output_dir)
    return losses


def read_dialogues(files: Sequence[str], messages_key: str) -> list[list[Message]]:
    """Read the dialogues of JSONL files, in order.

    Raises:
        ConfigError: a file is missing or holds none, or a row has no assistant message in its `messages_key`.
    """
    dialogues: list[list[Message]] = []
    for file in map(Path, files):
        if not file.is_file():
            raise ConfigError(f"data.train_files: `{file}` does not exist; generate it first, or correct the path")
        for number, row in enumerate(read_json_lines(file), start=1):
            messages = row.get(messages_key)
            if not isinstance(messages, list) or not any(message.get("role") == "assistant" for message in messages):
                raise ConfigError(
                    f"{file}:{number}: no dialogue with an assistant message in column `{messages_key}` "
                    f"(columns: {', '.join(row)}); set `data.messages_key`"
                )
            dialogues.append(messages)
    if not dialogues:
        raise ConfigError(f"data.train_files: no dialogue in {', '.join(files)}")
    return dialogues


def shuffled_forever(number: int, seed: int) -> Iterator[int]:
    """Yield the indices below `number` in a new seeded order each epoch, without end."""
    rng = random.Random(seed)
    while True:
        epoch = list(range(number))
        rng.shuffle(epoch)
        yield from epoch


def load_sft_config(path: str, overrides: Sequence[str] = ()) -> SftConfig:
    """Read, merge and check the config of a warm start; relative paths come out absolute.

    Raises:
        ConfigError: one line with the file, the full key and the way out.
    """
    file = find_config_file(path)
    config = load_tree(SftConfig, file, overrides)
    training = config.training
    counts = {
        "num_steps": training.num_steps,
        "examples_per_step": training.examples_per_step,
        "max_tokens_per_micro_batch": training.max_tokens_per_micro_batch,
    }
    for key, value in counts.items():
        if value < 1:
            raise ConfigError(f"{file.name}: `training.{key}` is {value}, and must be at least 1")
    model = with_absolute_paths(config.model, config_file=file)
    for problem in template_problems(model):
        raise ConfigError(f"{file.name}: {problem}")
    check_folder(config.output_dir, key=f"{file.name}: `output_dir`", instead="Copy it to a store afterwards.")
    tool_path = config.tool_config_path
    return replace(
        config,
        data=replace(
            config.data, train_files=[resolve_path(name, config_file=file) for name in config.data.train_files]
        ),
        model=model,
        tool_config_path=None if tool_path is None else resolve_path(tool_path, config_file=file),
        output_dir=str(Path(config.output_dir).resolve()),
    )


@contextmanager
def _trainer(config: SftConfig) -> Iterator[SupervisedTrainer]:
    """Give a trainer that is alone in its process group, and leave the group at the end."""
    training = config.training
    trainer = SupervisedTrainer(
        config.model,
        initial_weights=training.initial_weights,
        schedule=SupervisedSchedule(
            learning_rate=training.learning_rate,
            warmup_steps=training.warmup_steps,
            num_steps=training.num_steps,
            final_fraction=training.final_learning_rate_fraction,
        ),
        betas=(training.adam_beta1, training.adam_beta2),
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        max_tokens_per_micro_batch=training.max_tokens_per_micro_batch,
        seed=training.seed,
        num_threads=training.num_threads,
    )
    trainer.setup(ParallelContext(rank=0, world_size=1, master_addr="127.0.0.1", master_port=0))
    try:
        yield trainer
    finally:
        trainer.close()


def _tool_schemas(tool_config_path: str | None) -> list[dict[str, Any]]:
    """Return the schemas that the system prompt lists; they come from the file, because no tool is built here."""
    if tool_config_path is None:
        return []
    file = Path(tool_config_path)
    schemas = [tool.tool_schema for tool in load_tool_file(file)]
    if any(schema is None for schema in schemas):
        raise ConfigError(f"{file.name}: a warm start needs the `tool_schema` of every tool written out in this file")
    return [schema for schema in schemas if schema is not None]


def _tokenise(tokens: ChatTokens, dialogue: Sequence[Message]) -> TokenisedExample:
    token_ids, response_mask = tokens.conversation(dialogue)
    return TokenisedExample(token_ids=token_ids, response_mask=response_mask)


def _progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )


def main() -> int:
    """Run the command line; returns the exit status."""
    arguments = make_parser("sft", "Warm-start a policy by imitation of dialogues.").parse_args()
    try:
        config = load_sft_config(arguments.config, arguments.overrides)
        losses = warm_start(config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("stopped before the end; no weights were written", file=sys.stderr)
        return 128 + signal.SIGINT
    print(f"loss {losses[-1]:.3f} after {len(losses)} steps; wrote {config.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
