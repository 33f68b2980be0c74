"""A YAML file and `section.key=value` words become one checked, frozen tree, or one clear line of error."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from agentrl.config.schema import RunConfig
from agentrl.config.validate import validate
from agentrl.errors import ConfigError

ConfigTree = TypeVar("ConfigTree")

_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
_SHIPPED = _PACKAGE_FOLDER / "_shipped"

SHIPPED_FOLDER = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE_FOLDER.parent
"""Where `configs/`, `tool_configs/` and `examples/` are: beside the package in a checkout, inside it in a wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A checked run config, with where it came from."""

    config: RunConfig
    path: Path
    """The config file, absolute; its folder is where the user's own modules are looked for."""


def load_run_config(path: str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read, merge and check a run config; relative paths come out absolute.

    Raises:
        ConfigError: one line with the file, the full key and the way out.
    """
    file = find_config_file(path)
    config = load_tree(RunConfig, file, overrides)
    config = _absolute_paths(config, file)
    if config.run.dir is None:
        config = replace(config, run=replace(config.run, dir=str(Path("runs", file.stem).resolve())))
    validate(config, source=file.name)
    return LoadedConfig(config=config, path=file)


def load_tree(schema: type[ConfigTree], file: Path, overrides: Sequence[str] = ()) -> ConfigTree:
    """Merge `schema`'s defaults, `file`, and `section.key=value` words into one frozen `schema` object."""
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), _read_yaml(file))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{file.name}: {_one_line(error)}") from error
    for word in overrides:
        if "=" not in word:
            raise ConfigError(f"command line: `{word}` is not `section.key=value`")
        try:
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([word]))
        except (OmegaConfBaseException, YAMLError) as error:
            raise ConfigError(f"command line: `{word}`: {_one_line(error)}") from error
    missing = sorted(OmegaConf.missing_keys(merged))
    if missing:
        names = ", ".join(f"`{key}`" for key in missing)
        raise ConfigError(
            f"{file.name}: missing {names}. Set it in the file, or as `{missing[0]}=...` on the command line."
        )
    try:
        return cast(ConfigTree, OmegaConf.to_object(cast(DictConfig, merged)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{file.name}: {_one_line(error)}") from error


def find_config_file(path: str) -> Path:
    """Return the absolute path of a config file: as given, or among the configs that come with agentrl.

    Raises:
        ConfigError: there is no such file; the message lists where it was looked for.
    """
    for candidate in (Path(path), SHIPPED_FOLDER / path):
        if candidate.is_file():
            return candidate.resolve()
    raise ConfigError(f"{path}: no such file, here ({Path.cwd()}) or among the configs of agentrl ({SHIPPED_FOLDER})")


def resolve_path(path: str, *, config_file: Path) -> str:
    """Return `path` absolute: next to the config file, else here, else among what agentrl ships.

    A path that exists nowhere comes back as given: it may be the name of a model on a hub.
    """
    for folder in (config_file.parent, Path.cwd(), SHIPPED_FOLDER):
        candidate = folder / path
        if candidate.exists():
            return str(candidate.resolve())
    return path


def _read_yaml(file: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(file)
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file.name}: not valid YAML: {_one_line(error)}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{file.name}: the top level must be a mapping of sections")
    return loaded


def _absolute_paths(config: RunConfig, file: Path) -> RunConfig:
    def absolute(path: str) -> str:
        return resolve_path(path, config_file=file)

    def optional(path: str | None) -> str | None:
        return None if path is None else absolute(path)

    run = config.run if config.run.dir is None else replace(config.run, dir=str(Path(config.run.dir).resolve()))
    return replace(
        config,
        run=run,
        data=replace(
            config.data,
            train_files=[absolute(path) for path in config.data.train_files],
            validation_files=[absolute(path) for path in config.data.validation_files],
        ),
        model=replace(config.model, path=absolute(config.model.path)),
        rollout=replace(config.rollout, tool_config_path=optional(config.rollout.tool_config_path)),
        tool_config_path=optional(config.tool_config_path),
    )


def _one_line(error: Exception) -> str:
    """Return OmegaConf's message with its key, without the lines about its internal types."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")), "")
    kept = [line for line in lines if not line.startswith(("full_key:", "reference_type=", "object_type="))]
    message = " ".join(kept)
    return f"`{key}`: {message}" if key else message
