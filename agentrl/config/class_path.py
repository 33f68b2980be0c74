"""Import of classes and functions that a config names by path: a tool, a reward, a worker, a function."""

import functools
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, ConfigError
from agentrl.user_code import contained, described, require_parameters

T = TypeVar("T")


def named(name: str, ours: Mapping[str, T], *, key: str) -> T:
    """Return the object called `name`: a built-in one by its short name, or a user's by its import path.

    Raises:
        ConfigError: neither; see `import_by_path`.
    """
    return ours[name] if name in ours else import_by_path(name, key=key)


def import_by_path(path: str, *, key: str) -> Any:
    """Return the attribute `pkg.mod.Name` that `path` names.

    Args:
        path: dotted import path.
        key: config key with the path, for the message.

    Raises:
        ConfigError: no such module or attribute, or the module raises while it is imported.
    """
    module_name, _, attribute = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"`{key}` is `{path}`; it must be an import path such as `my_module.MyClass`")
    try:
        module = contained(importlib.import_module, module_name)
    except ImportError as error:
        is_absent = f"{module_name}.".startswith(f"{error.name}.")
        reason = str(error) if is_absent else described(error)  # of an import in it, with its line
        raise ConfigError(
            f"`{key}` is `{path}`: module `{module_name}` cannot be imported: {reason}. A module "
            "of your own belongs beside the config file, or into a folder on `PYTHONPATH` (on a cluster, of every machine)"
        ) from error
    except Exception as error:
        # The import runs the user's module, which may raise anything.
        raise ConfigError(
            f"`{key}` is `{path}`: module `{module_name}` cannot be imported: {described(error)}"
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"`{key}` is `{path}`: module `{module_name}` ({module.__file__}) has no `{attribute}`")
    return getattr(module, attribute)


def build(cls: Any, given: Mapping[str, Any], protocol: type, *, where: str, context: object) -> Any:
    """Return an instance of a class that a config names, which has the methods of a protocol.

    Args:
        cls: the class.
        given: arguments of its constructor, in order.
        protocol: class with the async methods that it must have, with their parameters.
        where: start of the message.
        context: argument for a constructor that has a parameter `context`.

    Raises:
        ConfigError: a method is missing or takes other parameters, or the constructor raises.
    """

    def require(function: Any, positional: Sequence[str], named: Sequence[str]) -> None:
        try:
            require_parameters(function, *positional, named=named)
        except TypeError as error:
            raise ConfigError(f"{where}: {error}") from error

    methods = {name: method for name, method in vars(protocol).items() if inspect.iscoroutinefunction(method)}
    for name in methods:
        if not inspect.iscoroutinefunction(getattr(cls, name, None)):
            needed = f"{', '.join(methods)} (`{protocol.__module__}.{protocol.__name__}`)"
            raise ConfigError(f"{where}: it has no `async def {name}`; it must have {needed}")
    extra = {"context": context} if "context" in inspect.signature(cls).parameters else {}
    config = given.get("config")
    if not extra and isinstance(config, Mapping) and config.get("host_addr", "") is None:
        raise ConfigError(
            f"{where}: `host_addr: null` means the run's judge, which a class gets by a parameter `context` of its constructor"
        )
    require(cls, list(given), list(extra))
    try:
        built = contained(functools.partial(cls, *given.values(), **extra))
    except AgentRLError:
        raise
    except Exception as error:
        # The user's constructor may raise anything.
        raise ConfigError(f"{where}: cannot be built: {described(error)}") from error
    for name, method in methods.items():
        [_, *parameters] = inspect.signature(method).parameters.values()
        named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        require(getattr(built, name), [p.name for p in parameters if p.name not in named], named)
    return built
