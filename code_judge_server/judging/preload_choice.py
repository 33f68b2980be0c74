"""The choice of a warm interpreter for a program: the one whose modules it imports.

A wrong choice only costs time: the program imports missing modules itself. Clients that wrap a model's code, such as
rStar2-Agent's, put it into the program in base64: its imports count too.
"""

import base64
import binascii
import functools
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

_SCANNED_BYTES = 256 * 1024
_MAX_IMPORTS = 1000
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([A-Za-z_][\w.]*)[ \t]+import\b|import[ \t]+([A-Za-z_][^\n#;]*))", re.MULTILINE
)
_MAX_WRAPPED = 64
_WRAPPED = re.compile(rb"""b64decode\(\s*b?["']([A-Za-z0-9+/]{16,}+=*)["']""")


def choose_preload(source: bytes, available: Mapping[str, Sequence[str]]) -> str | None:
    """Return the smallest of the `available` module sets that saves a Python program the most imports, if there is any."""
    source = source[:_SCANNED_BYTES]
    source = b"\n".join([source, *_wrapped(source)])
    wanted = _imported(source)
    if b"lambdify" in source:
        wanted.add("numpy")  # which sympy then imports

    def rank(name: str) -> tuple[int, int]:
        modules = {module.partition(".")[0] for module in available[name]}
        return -len(modules & wanted), len(modules)

    return min(available, key=rank, default=None)


def shadows_modules(paths: Iterable[str]) -> bool:
    """Return whether files of a program, by relative path, hide modules that a warm interpreter may have imported already."""
    names = (path.partition("/")[0].partition(".")[0] for path in paths if "/" in path or path.endswith((".py", ".so")))
    return not _installed().isdisjoint(names)


@functools.cache
def _installed() -> frozenset[str]:
    """Return the top-level names of all modules that a program could import."""
    return sys.stdlib_module_names | {module.name for module in pkgutil.iter_modules()}


def _wrapped(source: bytes) -> Iterator[bytes]:
    """Yield the programs in a program's base64 literals."""
    for match in islice(_WRAPPED.finditer(source), _MAX_WRAPPED):
        try:
            yield base64.b64decode(match[1])
        except binascii.Error:  # not base64
            continue


def _imported(source: bytes) -> set[str]:
    """Return the top-level names in the import statements of a program."""
    names: set[str] = set()
    for count, match in enumerate(_IMPORT.finditer(source)):
        if count == _MAX_IMPORTS:
            break
        from_, imported = match.groups()
        for name in [from_] if from_ else imported.split(b",", _MAX_IMPORTS):
            words = name.partition(b".")[0].split(None, 1)
            if words:
                names.add(words[0].decode("ascii", "replace"))
    return names
