"""Loading of a run config: a YAML file and `section.key=value` words give one checked, frozen tree, or a one-line error."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf, read_write
from omegaconf.errors import ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException

from agentrl.config.layout import with_sizes_of_pools
from agentrl.config.places import check_folder, check_folder_or_url, check_name, check_names, is_url
from agentrl.config.plain import flatten
from agentrl.config.schema.checkpoint import StageSection
from agentrl.config.schema.run import ModelSection, RunConfig
from agentrl.config.validation.ranges import Purpose, validate
from agentrl.errors import ConfigError

ConfigTree = TypeVar("ConfigTree")

_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
_SHIPPED = _PACKAGE_FOLDER / "_shipped"

_MAX_SHOWN = 200
"""Largest number of characters of a word in a message."""

SHIPPED_FOLDER = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE_FOLDER.parent
"""Folder of `configs/`, `tool_configs/` and `examples/`: beside the package in a checkout, inside it in a wheel."""

_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader that OmegaConf uses; the two treat tabs differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A checked run config and its file."""

    config: RunConfig
    path: Path
    """Absolute path of the config file, whose folder is searched for the user's modules."""


def load_run_config(path: str, overrides: Sequence[str] = (), *, purpose: Purpose = Purpose.TRAINING) -> LoadedConfig:
    """Read, merge and check a run config; relative paths become absolute.

    Keys of prompt files that an evaluation or an export does not read become empty, so that the files may be missing. An
    evaluation has its own default folder.

    Raises:
        ConfigError: one line with the file, the full key and the way out.
    """
    file = find_config_file(path)
    folder = file.stem
    if purpose in (Purpose.EVALUATION, Purpose.EXPORT):
        overrides = [*overrides, "data.train_files=[]"]
    if purpose is Purpose.EVALUATION:
        folder = f"{folder}_evaluation"
    config = _without_unread_files(load_tree(RunConfig, file, overrides), purpose)
    _check_places(config, source=file.name)
    config = _with_num_kept(_absolute_paths(config, file))
    if config.run.dir is None:
        config = replace(config, run=replace(config.run, dir=str(Path("runs", folder).resolve())))
    words = [_read_yaml(file), *map(_read_word, overrides)]
    config = _with_num_steps_of_stages(config, is_named=any(map(_names_num_steps, words)), source=file.name)
    validate(config, source=file.name, purpose=purpose)
    if purpose in (Purpose.TRAINING, Purpose.EVALUATION):
        config = with_sizes_of_pools(config)
    return LoadedConfig(config=config, path=file)


def _without_unread_files(config: RunConfig, purpose: Purpose) -> RunConfig:
    """Return the config without the prompt files that are not read for `purpose`."""
    if purpose not in (Purpose.EVALUATION, Purpose.EXPORT):
        return config
    validation_files = config.data.validation_files if purpose is Purpose.EVALUATION else []
    return replace(
        config,
        data=replace(config.data, train_files=[], validation_files=validation_files),
        stages=[replace(stage, train_files=None) for stage in config.stages],
    )


def _with_num_kept(config: RunConfig) -> RunConfig:
    """Return the config with the value of `algorithm.selection.keep`, if it follows from the group's size."""
    selection = config.algorithm.selection
    if selection.method == "all":
        return config
    selection = replace(selection, keep=selection.num_kept(config.rollout.samples_per_prompt))
    return replace(config, algorithm=replace(config.algorithm, selection=selection))


def load_tree(schema: type[ConfigTree], file: Path, overrides: Sequence[str] = ()) -> ConfigTree:
    """Merge `schema`'s defaults, `file`, and `section.key=value` words into one frozen `schema` object.

    Raises:
        ConfigError: one line with the file or `command line`, the full key and the way out.
    """
    merged = _merge(schema, OmegaConf.structured(schema), _read_yaml(file), source=file.name)
    for word in overrides:
        merged = _merge(schema, merged, _read_word(word), source=f"command line: `{word}`")
    try:
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            names = ", ".join(f"`{key}`" for key in missing)
            raise ConfigError(
                f"{file.name}: missing {names}. Set it in the file, or as `{missing[0]}=...` on the command line."
            )
        return cast(ConfigTree, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        # Only the whole tree can be resolved, so the word with the error is unknown.
        source = f"{file.name}, command line" if overrides else file.name
        raise ConfigError(f"{source}: {one_line(error)}") from error


def find_config_file(path: str) -> Path:
    """Return the absolute path of a config file: as given, or among the configs shipped with agentrl.

    Raises:
        ConfigError: there is no such file; the message lists the searched folders.
    """
    check_name(path, key="the config file")
    for candidate in (Path(path), SHIPPED_FOLDER / path):
        if os.path.isfile(candidate):  # false if a parent folder is not accessible
            return candidate.resolve()
    raise ConfigError(f"{path}: no such file, here ({Path.cwd()}) or among the configs of agentrl ({SHIPPED_FOLDER})")


def resolve_path(path: str, *, config_file: Path) -> str:
    """Return the absolute path: next to the config file, else in the working folder, else among agentrl's shipped files.

    A path that exists nowhere is returned as given: it may be the name of a model on a hub.
    """
    for folder in (config_file.parent, Path.cwd(), SHIPPED_FOLDER):
        candidate = folder / path
        if os.path.exists(candidate):
            return str(candidate.resolve())
    return path


def with_absolute_paths(model: ModelSection, *, config_file: Path) -> ModelSection:
    """Return the section with absolute paths of its model folder and its chat template (`resolve_path`)."""
    template = model.chat_template
    return replace(
        model,
        path=resolve_path(model.path, config_file=config_file),
        chat_template=None if template is None else resolve_path(template, config_file=config_file),
    )


def resolve_files(names: Sequence[str], *, config_file: Path, key: str) -> list[str]:
    """Return absolute paths (`resolve_path`); a pattern (`*`, `?`, `[]`, `**`) gives all matching files, sorted.

    Raises:
        ConfigError: a pattern matches no file.
    """
    return [file for name in names for file in _files_of_name(name, config_file=config_file, key=key)]


def _files_of_name(name: str, *, config_file: Path, key: str) -> list[str]:
    path = resolve_path(name, config_file=config_file)
    if not glob.has_magic(name) or os.path.exists(path):
        return [path]
    for folder in (config_file.parent, Path.cwd(), SHIPPED_FOLDER):
        matches = glob.glob(str(Path(glob.escape(str(folder))) / name), recursive=True)
        if files := sorted(str(Path(match).resolve()) for match in matches if Path(match).is_file()):
            return files
    raise ConfigError(
        f"{config_file.name}: `{key}`: no file matches `{name}`, in {config_file.parent} or {Path.cwd()}. Generate the files "
        "first, or correct the pattern"
    )


def one_line(error: Exception) -> str:
    """Return a message of OmegaConf or YAML on one line with its key, without OmegaConf's internal types."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")), "")
    kept = [line for line in lines if not line.startswith(("full_key:", "reference_type=", "object_type="))]
    message = " ".join(kept)
    if isinstance(error, InterpolationResolutionError):
        message = message.rstrip(".") + ". A `${...}` that is meant literally is written `\\${...}`"
    return f"`{key}`: {message}" if key else message


def _read_yaml(file: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8 text: {error}. Save the file as UTF-8") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{file.name}: not valid YAML: {one_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{file.name}: nested too deeply to be a config") from error
    except OSError as error:
        # OmegaConf also raises it for a file that holds a single number.
        raise ConfigError(f"{file.name}: cannot be read as a mapping of sections: {error}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{file.name}: the top level must be a mapping of sections")
    return loaded


def _read_word(word: str) -> DictConfig:
    if "=" not in word:
        raise ConfigError(f"command line: `{word}` is not `section.key=value`")
    try:
        if _has_comment(word.partition("=")[2]):
            raise ConfigError(
                f"command line: `{word}`: ` #` begins a YAML comment, so the rest would be lost. Put the text in quotes within "
                "the value, as in `'run.dir=\"/data/a #2\"'`"
            )
        return OmegaConf.from_dotlist([word])
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"command line: {word[:_MAX_SHOWN]!a}: {one_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"command line: {word[:_MAX_SHOWN]!a}...: nested too deeply to be a config") from error


def _has_comment(value: str) -> bool:
    """Return whether a value contains a YAML comment: a `#` that belongs to no token."""
    tokens = [range(token.start_mark.index, token.end_mark.index) for token in yaml.scan(value, _YAML_LOADER)]
    return any(char == "#" and not any(index in token for token in tokens) for index, char in enumerate(value))


def _merge(schema: type, base: DictConfig, extra: DictConfig, *, source: str) -> DictConfig:
    """Return `base` with the values of `extra`; `???` in `extra` unsets a value, which OmegaConf's merge does not do."""
    raw = cast(dict[str, Any], OmegaConf.to_container(extra, resolve=False))
    problem = next(_wrong_shapes(schema, raw, prefix=""), None)
    if problem is not None:
        raise ConfigError(f"{source}: {problem}")
    try:
        merged = cast(DictConfig, OmegaConf.merge(base, extra))
        _unset_missing(merged, raw)
    except OmegaConfBaseException as error:
        elsewhere = [
            key for key in flatten(cast(dict[str, Any], OmegaConf.to_container(base))) if key.endswith(f".{error.key}")
        ]
        if isinstance(error, ConfigKeyError) and len(elsewhere) == 1:
            raise ConfigError(f"{source}: unknown key `{error.full_key}`. Did you mean `{elsewhere[0]}`?") from error
        raise ConfigError(f"{source}: {one_line(error)}") from error
    return merged


def _unset_missing(tree: DictConfig, raw: Mapping[str, Any]) -> None:
    for name, value in raw.items():
        if isinstance(value, Mapping):
            _unset_missing(tree[name], value)
        elif value == MISSING:
            with read_write(tree):
                tree[name] = MISSING


def _wrong_shapes(schema: type, tree: Mapping[str, Any], *, prefix: str) -> Iterator[str]:
    """Yield values that should be a mapping or a list of plain values by `schema` and are not.

    OmegaConf refuses most of them too, but without the key, or with a `TypeError`.
    """
    hints = get_type_hints(schema)
    for item in fields(schema):
        if item.name not in tree:
            continue
        key, value = f"{prefix}{item.name}", tree[item.name]
        kinds = get_args(hints[item.name]) or (hints[item.name],)
        decided_later = isinstance(value, str) and (value == MISSING or value.startswith("${"))
        if decided_later or (value is None and NoneType in kinds):
            continue
        is_mapping = get_origin(hints[item.name]) is dict
        section = next((kind for kind in kinds if is_dataclass(kind)), None)
        list_type = next((kind for kind in (hints[item.name], *kinds) if get_origin(kind) is list), None)
        if list_type is not None and section is not None:
            yield from _wrong_sections(cast(type, section), value, key=key)
        elif section is not None or is_mapping:
            if not isinstance(value, Mapping):
                example = "key" if section is None else fields(section)[0].name
                yield f"`{key}` is {_shown(value)}; it must be a mapping, such as {{{example}: ...}}"
            elif is_mapping:
                yield from _wrong_entries(kinds[-1], value, key=key)
            else:
                yield from _wrong_shapes(cast(type, section), value, prefix=f"{key}.")
        elif list_type is not None:
            if not isinstance(value, list):
                example = "a, b" if value is None or isinstance(value, Mapping) else value
                yield f"`{key}` is {_shown(value)}; it must be a list, such as [{example}]"
            elif nested := [entry for entry in value if isinstance(entry, list | Mapping)]:
                yield f"`{key}` holds {nested[0]!r}; it must be a list of plain values, such as [a, b]"


def _wrong_entries(kind: Any, entries: Mapping[Any, Any], *, key: str) -> Iterator[str]:
    """Yield problems of a mapping whose keys are the user's names, and whose values are sections or names."""
    for name, value in entries.items():
        if isinstance(value, Mapping) and is_dataclass(kind):
            yield from _wrong_shapes(cast(type, kind), value, prefix=f"{key}.{name}.")
        elif isinstance(value, list) and is_dataclass(kind):
            yield f"`{key}.{name}` is {value!r}; it must be a mapping, such as {{{fields(kind)[0].name}: ...}}"
        elif isinstance(value, list | Mapping) and kind is str:
            yield f"`{key}.{name}` is {value!r}; it must be a name"


def _wrong_sections(schema: type, value: Any, *, key: str) -> Iterator[str]:
    """Yield problems of a list of sections."""
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        yield f"`{key}` is {_shown(value)}; it must be a list of mappings, such as [{{{fields(schema)[0].name}: ...}}]"
    else:
        for index, entry in enumerate(value):
            where = f"{key}[{index}]"
            problems = [*_wrong_shapes(schema, entry, prefix=f"{where}.")]
            yield from problems or _wrong_values(schema, entry, where=where)


def _wrong_values(schema: type, entry: Mapping[str, Any], *, where: str) -> Iterator[str]:
    """Yield what OmegaConf refuses in a section of a list, with the full key, which OmegaConf does not know."""
    try:
        OmegaConf.merge(OmegaConf.structured(schema), entry)
    except OmegaConfBaseException as error:
        message = one_line(error)
        yield f"`{where}.{message[1:]}" if message.startswith("`") else f"`{where}`: {message}"


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)


def _names_num_steps(tree: DictConfig) -> bool:
    run = cast(dict[str, Any], OmegaConf.to_container(tree, resolve=False)).get("run")
    return isinstance(run, Mapping) and "num_steps" in run


def _with_num_steps_of_stages(config: RunConfig, *, is_named: bool, source: str) -> RunConfig:
    """Return `config` with `run.num_steps` as the sum over `stages`, if any; an explicit value must equal the sum."""
    num_steps = sum(stage.num_steps for stage in config.stages)
    if not config.stages or config.run.num_steps == num_steps:
        return config
    # Otherwise the stages' own numbers are wrong, and are reported as such.
    if is_named and all(stage.num_steps > 0 for stage in config.stages):
        raise ConfigError(
            f"{source}: `run.num_steps` is {config.run.num_steps}, but the sum over `stages` is {num_steps}; leave it out"
        )
    return replace(config, run=replace(config.run, num_steps=num_steps))


def _check_places(config: RunConfig, *, source: str) -> None:
    """Refuse invalid file names, and URLs that would be treated as local folders."""
    check_names(config, source=source)
    if config.run.dir is not None:
        instead = "`checkpoint.dir` may be a store, such as `s3://bucket/runs/demo`."
        check_folder(config.run.dir, key=f"{source}: `run.dir`", instead=instead)
    if config.checkpoint.dir is not None:
        check_folder_or_url(config.checkpoint.dir, key=f"{source}: `checkpoint.dir`")


def _absolute_paths(config: RunConfig, file: Path) -> RunConfig:
    def absolute(path: str) -> str:
        return resolve_path(path, config_file=file)

    def optional(path: str | None) -> str | None:
        return None if path is None else absolute(path)

    def files(names: Sequence[str], key: str) -> list[str]:
        return resolve_files(names, config_file=file, key=key)

    def with_absolute_files(index: int, stage: StageSection) -> StageSection:
        if stage.train_files is None:
            return stage
        return replace(stage, train_files=files(stage.train_files, f"stages[{index}].train_files"))

    run = config.run if config.run.dir is None else replace(config.run, dir=str(Path(config.run.dir).resolve()))
    checkpoint = config.checkpoint
    if checkpoint.dir is not None and not is_url(checkpoint.dir):
        checkpoint = replace(checkpoint, dir=str(Path(checkpoint.dir).resolve()))
    return replace(
        config,
        run=run,
        checkpoint=checkpoint,
        stages=[with_absolute_files(index, stage) for index, stage in enumerate(config.stages)],
        data=replace(
            config.data,
            train_files=files(config.data.train_files, "data.train_files"),
            validation_files=files(config.data.validation_files, "data.validation_files"),
        ),
        model=with_absolute_paths(config.model, config_file=file),
        critic=replace(config.critic, path=optional(config.critic.path)),
        reward=replace(config.reward, model=replace(config.reward.model, path=optional(config.reward.model.path))),
        rollout=replace(config.rollout, tool_config_path=optional(config.rollout.tool_config_path)),
        tool_config_path=optional(config.tool_config_path),
    )
