"""Which of the warm interpreters suits a program: the one whose modules it imports.

A wrong choice is only slower: what is not there the program imports itself. Clients that wrap a model's code, as that of
rStar2-Agent does, have it in base64 inside of the program: its imports count too.
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
    """Return the name of the set that spares a Python program the most imports, of those the smallest; None if there is no set.

    Args:
        source: The program, whatever it is; only its beginning is looked at.
        available: Name of each set, and its modules.
    """
    source = source[:_SCANNED_BYTES]
    source = b"\n".join([source, *_wrapped(source)])
    wanted = _imported(source)
    if b"lambdify" in source:
        wanted.add("numpy")  # which sympy imports then

    def rank(name: str) -> tuple[int, int]:
        modules = {module.partition(".")[0] for module in available[name]}
        return -len(modules & wanted), len(modules)

    return min(available, key=rank, default=None)


def hides_a_module(paths: Iterable[str]) -> bool:
    """Tell whether files beside a program stand before modules that a warm interpreter may have imported already.

    Args:
        paths: Of the files, relative to the program's folder.
    """
    names = (path.partition("/")[0].partition(".")[0] for path in paths if "/" in path or path.endswith((".py", ".so")))
    return not _installed().isdisjoint(names)


@functools.cache
def _installed() -> frozenset[str]:
    """Return the top-level names of all modules that a program could import."""
    return sys.stdlib_module_names | {module.name for module in pkgutil.iter_modules()}


def _wrapped(source: bytes) -> Iterator[bytes]:
    """Find the programs that a program has in base64 literals."""
    for match in islice(_WRAPPED.finditer(source), _MAX_WRAPPED):
        try:
            yield base64.b64decode(match[1])
        except binascii.Error:  # it is not base64 after all
            continue


def _imported(source: bytes) -> set[str]:
    """Return the top-level names of what the import statements of a program name."""
    found: set[str] = set()
    for count, match in enumerate(_IMPORT.finditer(source)):
        if count == _MAX_IMPORTS:
            break
        from_, imported = match.groups()
        for name in [from_] if from_ else imported.split(b",", _MAX_IMPORTS):
            words = name.partition(b".")[0].split(None, 1)
            if words:
                found.add(words[0].decode("ascii", "replace"))
    return found
