"""Loading of a warm start's config from a YAML file and `section.key=value` words."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.config.chat_template import template_problems
from agentrl.config.load import find_config_file, load_tree, resolve_files, resolve_path, with_absolute_paths
from agentrl.config.places import check_folder, check_folder_or_url, check_names, is_url
from agentrl.config.schema.sft import SftConfig
from agentrl.config.validation.sizes import MOST_STEPS
from agentrl.config.validation.unused_keys import changed
from agentrl.errors import ConfigError


def load_sft_config(path: str, overrides: Sequence[str] = ()) -> SftConfig:
    """Read, merge and check the config of a warm start; relative paths become absolute.

    Raises:
        ConfigError: one line with the file, the full key and the way out.
    """
    file = find_config_file(path)
    config = load_tree(SftConfig, file, overrides)
    problems = [*_out_of_range(config), *_contradictions(config)]
    if problems:
        raise ConfigError(f"{file.name}: {'; '.join(problems)}")
    config = _with_absolute_paths(config, file)
    for problem in template_problems(config.model):
        raise ConfigError(f"{file.name}: {problem}")
    if config.training.initial_weights == "pretrained" and config.output_dir == config.model.path:
        raise ConfigError(
            f"{file.name}: `output_dir` is `model.path` ({config.model.path}), which the run needs to resume. Name another "
            "folder."
        )
    return config


def _out_of_range(config: SftConfig) -> list[str]:
    training, data = config.training, config.data
    at_least_one = {
        "training.num_steps": training.num_steps,
        "training.examples_per_step": training.examples_per_step,
        "training.max_tokens_per_micro_batch": training.max_tokens_per_micro_batch,
        "validation.every_steps": config.validation.every_steps,
        "checkpoint.every_steps": config.checkpoint.every_steps,
        "checkpoint.keep_last": config.checkpoint.keep_last,
        "data.max_tokens": data.max_tokens,
        "lora.alpha": config.lora.alpha,
    }
    not_negative = {
        "training.warmup_steps": training.warmup_steps,
        "training.final_learning_rate_fraction": training.final_learning_rate_fraction,
        "training.weight_decay": training.weight_decay,
        "training.num_threads": training.num_threads,
        "lora.rank": config.lora.rank,
    }
    numbers = at_least_one | {
        "training.warmup_steps": training.warmup_steps,
        "training.num_threads": training.num_threads,
    }
    above_zero = {"training.num_epochs": training.num_epochs, "training.max_grad_norm": training.max_grad_norm}
    below_one = {
        "training.learning_rate": training.learning_rate,
        "training.adam_beta1": training.adam_beta1,
        "training.adam_beta2": training.adam_beta2,
    }
    return [
        *(
            f"`{key}` is {value}, and must be at least 1"
            for key, value in at_least_one.items()
            if value is not None and value < 1
        ),
        *(
            f"`{key}` is {value}, and must be at most {MOST_STEPS}"
            for key, value in numbers.items()
            if value is not None and value > MOST_STEPS
        ),
        *(f"`{key}` is {value}, and must not be negative" for key, value in not_negative.items() if not value >= 0),
        *(f"`{key}` is {value}, and must be above 0" for key, value in above_zero.items() if not value > 0),
        *(
            f"`{key}` is {value}, and must be from 0 to below 1"
            for key, value in below_one.items()
            if not 0 <= value < 1
        ),
    ]


def _contradictions(config: SftConfig) -> list[str]:
    training, lora = config.training, config.lora
    problems: list[str] = []
    if not config.data.train_files:
        problems.append("`data.train_files` is empty, and there is nothing to train on; name a file of dialogues")
    if training.num_steps is not None and changed(training, "num_epochs"):
        problems.append("`training.num_steps` and `training.num_epochs` both say how long to train; keep one of them")
    if not config.data.validation_files and changed(config.validation, "every_steps"):
        problems.append(
            "`validation.every_steps` is set, but `data.validation_files` is empty; name a file of dialogues"
        )
    if lora.rank == 0:
        problems += [
            f"`lora.{name}` is {value}, but `lora.rank` is 0; set a rank, such as 32"
            for name, value in changed(lora, "alpha", "target_modules")
        ]
    elif training.initial_weights == "random":
        problems.append("`lora.rank` is set, and there is nothing to adapt in random weights; leave it out")
    elif importlib.util.find_spec("peft") is None:
        problems.append("`lora.rank` is set, but PEFT is not installed: `pip install '.[train]'`; or leave it out")
    return problems


def _with_absolute_paths(config: SftConfig, file: Path) -> SftConfig:
    def absolute(path: str) -> str:
        return resolve_path(path, config_file=file)

    def files(names: Sequence[str], key: str) -> list[str]:
        return resolve_files(names, config_file=file, key=key)

    check_names(config, source=file.name)
    run_dir, checkpoint_dir, output_dir = config.run.dir, config.checkpoint.dir, config.output_dir
    if run_dir is not None:
        instead = "`checkpoint.dir` may be a store, such as `s3://bucket/runs/sft`."
        check_folder(run_dir, key=f"{file.name}: `run.dir`", instead=instead)
    if output_dir is not None:
        check_folder(output_dir, key=f"{file.name}: `output_dir`", instead="Copy it to a store afterwards.")
    if checkpoint_dir is not None:
        check_folder_or_url(checkpoint_dir, key=f"{file.name}: `checkpoint.dir`")
        checkpoint_dir = checkpoint_dir if is_url(checkpoint_dir) else str(Path(checkpoint_dir).resolve())
    tool_path = config.tool_config_path
    return replace(
        config,
        run=replace(config.run, dir=str(Path(run_dir or Path("runs", file.stem)).resolve())),
        data=replace(
            config.data,
            train_files=files(config.data.train_files, "data.train_files"),
            validation_files=files(config.data.validation_files, "data.validation_files"),
        ),
        model=with_absolute_paths(config.model, config_file=file),
        checkpoint=replace(config.checkpoint, dir=checkpoint_dir),
        tool_config_path=None if tool_path is None else absolute(tool_path),
        output_dir=None if output_dir is None else str(Path(output_dir).resolve()),
    )
