"""The module sets of the warm interpreters: built-in sets, and those of the settings."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

BARE = "bare"
_BUILT_IN: dict[str, Sequence[str]] = {BARE: (), "sympy": ("sympy",), "sci": ("numpy", "sympy")}
"""sympy has a set without numpy: a fork without numpy's memory takes 0.8 ms less, of 6 ms."""


def preload_sets(named: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the modules of each set: the installed built-in sets, then those of the operator, which win.

    Raises:
        ValueError: a module of `named` is not installed, or `bare` is not bare.
    """
    if named.get(BARE):
        raise ValueError(
            f"preloads: `{BARE}` is the set without modules; give the modules {list(named[BARE])} another name"
        )
    for name, modules in named.items():
        if missing := [module for module in modules if not _is_installed(module)]:
            raise ValueError(
                f"preloads: `{name}` names {missing}, not installed beside this server. Install or leave them out"
            )
    built_in = {name: [module for module in modules if _is_installed(module)] for name, modules in _BUILT_IN.items()}
    return {name: modules for name, modules in built_in.items() if modules or name == BARE} | dict(named)


def _is_installed(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None  # for a full name `find_spec` would import the parents
