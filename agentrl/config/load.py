"""Loading of a run config: a YAML file and `section.key=value` words give one checked, frozen tree, or a one-line error."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from agentrl.config.layout import with_sizes_of_pools
from agentrl.config.problems import problems_of
from agentrl.config.schema.paths import SHIPPED_FOLDER, LoadContext
from agentrl.config.schema.run import RunConfig, RunSection
from agentrl.config.schema.simulation import SimulationConfig
from agentrl.config.validation.relations import Purpose, validate
from agentrl.errors import ConfigError

ConfigTree = TypeVar("ConfigTree", bound=BaseModel)

_UNREAD = {
    Purpose.EVALUATION: ["train_files"],
    Purpose.EXPORT: ["train_files", "validation_files"],
    Purpose.SERVICE: ["train_files", "validation_files"],
}
"""Keys of prompt files that a command does not read."""
_MAX_SHOWN = 200
"""Largest number of characters of a word in a message."""

_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader that OmegaConf uses; the two treat tabs differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A checked run config and its file."""

    config: RunConfig
    """Config of the run; that of a simulation is a `SimulationConfig`."""
    path: Path
    """Absolute path of the config file, whose folder is searched for the user's modules."""


def load_run_config(path: str, overrides: Sequence[str] = (), *, purpose: Purpose = Purpose.TRAINING) -> LoadedConfig:
    """Read, merge and check a run config; relative paths become absolute.

    Keys of prompt files that an evaluation, an export or a service does not read become empty, so that the files may be
    missing. An evaluation and a service have their own default folders.

    Raises:
        ConfigError: one line with the file, the full key and the way out.
    """
    file = find_config_file(path)
    of_its_own = f"_{purpose}" if purpose in (Purpose.EVALUATION, Purpose.SERVICE) else ""
    context = LoadContext(file=file, default_dir=f"runs/{file.stem}{of_its_own}")
    schema = SimulationConfig if purpose is Purpose.SIMULATION else RunConfig
    config: RunConfig = load_tree(schema, context, overrides, unread=_UNREAD.get(purpose, ()))
    config = _with_num_steps_of_stages(_with_num_kept(config), source=file.name)
    validate(config, source=file.name, purpose=purpose)
    if purpose in (Purpose.TRAINING, Purpose.EVALUATION, Purpose.SERVICE):
        config = with_sizes_of_pools(config)
    return LoadedConfig(config=config, path=file)


def _with_num_kept(config: RunConfig) -> RunConfig:
    """Return the config with the value of `algorithm.selection.keep`, if it follows from the group's size."""
    selection = config.algorithm.selection
    if selection.method == "all":
        return config
    selection = selection.model_copy(update={"keep": selection.num_kept(config.rollout.samples_per_prompt)})
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"selection": selection})})


def _with_num_steps_of_stages(config: RunConfig, *, source: str) -> RunConfig:
    """Return `config` with `run.num_steps` as the sum over `stages`, if any; another value than the default must equal it."""
    if not config.stages:
        return config
    num_steps = sum(stage.num_steps for stage in config.stages)
    if config.run.num_steps not in (num_steps, RunSection().num_steps):
        raise ConfigError(
            f"{source}: `run.num_steps` is {config.run.num_steps}, but the sum over `stages` is {num_steps}; leave it out"
        )
    return config.model_copy(update={"run": config.run.model_copy(update={"num_steps": num_steps})})


def load_tree(
    schema: type[ConfigTree], context: LoadContext, overrides: Sequence[str] = (), *, unread: Sequence[str] = ()
) -> ConfigTree:
    """Merge `schema`'s defaults, a file, and `section.key=value` words into one frozen `schema` object.

    `unread` names keys of prompt files that the command does not read; they become empty, so that the files may be missing.

    Raises:
        ConfigError: the file or `command line`, every wrong key in full and the way out, in one line.
    """
    file = context.file
    tree = _merged(_defaults(schema), _read_yaml(file))
    for word in overrides:
        tree = _merged(tree, _read_word(word))
    _empty_unread(tree, unread)
    try:
        plain = OmegaConf.to_container(OmegaConf.create(tree), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        # Only the whole tree can be resolved, so the word with the error is unknown.
        source = f"{file.name}, command line" if overrides else file.name
        raise ConfigError(f"{source}: {one_line(error)}") from error
    try:
        return schema.model_validate(plain, context=context)
    except ValidationError as error:
        problems = [f"{_source_of(key, file, overrides)}: {problem}" for key, problem in problems_of(error, schema)]
        raise ConfigError("; ".join(problems)) from error


def _empty_unread(tree: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Empty lists of files in `data` and the stages, before an interpolation in them fails for want of its variable."""
    for section in (tree.get("data"), *(tree.get("stages") or ())):
        if isinstance(section, dict):
            section.update({key: [] for key in keys if isinstance(section.get(key), list)})


def find_config_file(path: str) -> Path:
    """Return the absolute path of a config file: as given, or among the configs shipped with agentrl.

    Raises:
        ConfigError: there is no such file; the message lists the searched folders.
    """
    for candidate in (Path(path), SHIPPED_FOLDER / path):
        if os.path.isfile(candidate):  # false if a parent folder is not accessible
            return candidate.resolve()
    raise ConfigError(f"{path}: no such file, here ({Path.cwd()}) or among the configs of agentrl ({SHIPPED_FOLDER})")


def one_line(error: Exception) -> str:
    """Return a message of OmegaConf or YAML on one line with its key, without OmegaConf's internal types."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")), "")
    kept = [line for line in lines if not line.startswith(("full_key:", "reference_type=", "object_type="))]
    message = " ".join(kept)
    if isinstance(error, InterpolationResolutionError):
        message = message.rstrip(".") + ". A `${...}` that is meant literally is written `\\${...}`"
    return f"`{key}`: {message}" if key else message


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        loaded = OmegaConf.load(file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8 text: {error}. Save the file as UTF-8") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{file.name}: not valid YAML: {one_line(error)}") from error
    except OSError as error:
        # OmegaConf also raises it for a file that holds a single number.
        raise ConfigError(f"{file.name}: cannot be read as a mapping of sections: {error}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{file.name}: the top level must be a mapping of sections")
    return cast(dict[str, Any], OmegaConf.to_container(loaded))


def _read_word(word: str) -> dict[str, Any]:
    if "=" not in word:
        raise ConfigError(f"command line: `{word}` is not `section.key=value`")
    try:
        if _has_comment(word.partition("=")[2]):
            raise ConfigError(
                f"command line: `{word}`: ` #` begins a YAML comment, so the rest would be lost. Put the text in quotes within "
                "the value, as in `'run.dir=\"/data/a #2\"'`"
            )
        return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.from_dotlist([word])))
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"command line: {word[:_MAX_SHOWN]!a}: {one_line(error)}") from error


def _has_comment(value: str) -> bool:
    """Return whether a value contains a YAML comment: a `#` that belongs to no token."""
    tokens = [range(token.start_mark.index, token.end_mark.index) for token in yaml.scan(value, _YAML_LOADER)]
    return any(char == "#" and not any(index in token for token in tokens) for index, char in enumerate(value))


def _merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `extra`; mappings are merged key by key."""
    merged = dict(base)
    for key, value in extra.items():
        below = merged.get(key)
        is_nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merged(cast(Mapping[str, Any], below), value) if is_nested else value
    return merged


def _defaults(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the defaults of a tree as plain data, so that interpolations find them."""
    plain: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            plain[name] = _defaults(field.annotation)
        elif not field.is_required():
            plain[name] = field.get_default(call_default_factory=True)
    return plain


def _source_of(key: str, file: Path, overrides: Sequence[str]) -> str:
    """Return where the value of a key comes from: the last word that sets it, or the file."""
    for word in reversed(overrides):
        name = word.partition("=")[0]
        if f"{name}.".startswith((f"{key}.", f"{key}[")) or f"{key}.".startswith((f"{name}.", f"{name}[")):
            return "command line"  # without the word, which may hold a password
    return file.name
