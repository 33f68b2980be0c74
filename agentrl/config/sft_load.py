"""Loading of a warm start's config from a YAML file and `section.key=value` words."""

import importlib.util
from collections.abc import Sequence

from agentrl.config.chat_template import template_problems
from agentrl.config.load import find_config_file, load_tree
from agentrl.config.schema.paths import LoadContext
from agentrl.config.schema.sft import SftConfig
from agentrl.config.validation.unused_keys import changed
from agentrl.errors import ConfigError


def load_sft_config(path: str, overrides: Sequence[str] = ()) -> SftConfig:
    """Read, merge and check the config of a warm start; relative paths become absolute.

    Raises:
        ConfigError: one line with the file, the full key and the way out.
    """
    file = find_config_file(path)
    config = load_tree(SftConfig, LoadContext(file=file, default_dir=f"runs/{file.stem}"), overrides)
    if problems := [*_contradictions(config), *template_problems(config.model)]:
        raise ConfigError(f"{file.name}: {'; '.join(problems)}")
    return config


def _contradictions(config: SftConfig) -> list[str]:
    training, lora = config.training, config.lora
    problems: list[str] = []
    if training.initial_weights == "pretrained" and config.output_dir == config.model.path:
        problems.append(
            f"`output_dir` is `model.path` ({config.model.path}), which the run needs to resume; name another folder"
        )
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
