"""Import of classes and functions that a config names by path: a tool, a reward, a worker, a function."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import ConfigError
from agentrl.user_code import contained, described

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
            f"`{key}` is `{path}`: module `{module_name}` cannot be imported: {reason}{_left_out(error)}. A module "
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


def _left_out(error: ImportError) -> str:
    """Return a hint if the file is in the working folder and that is not searched, as on a cluster."""
    folder, name = Path.cwd(), (error.name or "").partition(".")[0]
    if not name or not {"", str(folder)}.isdisjoint(sys.path):
        return ""
    files = [file for file in (folder / f"{name}.py", folder / name) if file.exists()]
    return f"; `{files[0]}` is in the working folder, which the workers do not search" if files else ""
