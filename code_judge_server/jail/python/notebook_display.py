"""Representations of the values that a cell displays: plain text, rich text and pictures, by media type.

Runs inside the jail, beside `notebook`.
"""

import base64
import io
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_TEXT_FORMS = {
    "text/html": "_repr_html_",
    "text/latex": "_repr_latex_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
}
_PICTURE_FORMS = {"image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_"}
MAX_FORMS = 1 + len(_TEXT_FORMS) + len(_PICTURE_FORMS)
"""Most media types of one value."""
MAX_PICTURE_CHARS = 1 << 20
"""Most characters of all pictures of one cell together, in base64."""
_PYPLOT = "matplotlib.pyplot"


class Room:
    """Characters that a cell may still display."""

    def __init__(self, max_chars: int) -> None:
        self.chars = max_chars
        self.picture_chars = MAX_PICTURE_CHARS


class PyplotFinder:
    """Finds `matplotlib.pyplot` as usual, and replaces its function `show`."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != _PYPLOT:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def show(*_: object, **__: object) -> None:  # a plain function: pyplot gives it a signature
                self._show()

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                module.__dict__["show"] = show

            spec.loader.exec_module = execute_and_replace
        return spec


def forms_of(value: object, room: Room) -> dict[str, str] | None:
    """Return the representations of a value that fit into `room`, and deduct them; None if there is no room for text."""
    if room.chars <= 0:
        return None
    forms = {"text/plain": repr(value)[: room.chars]}
    room.chars -= len(forms["text/plain"])
    for kind, method in _TEXT_FORMS.items():
        form = _made_by(value, method)
        if isinstance(form, str) and len(form) <= room.chars:  # a truncated one would not be valid
            forms[kind] = form
            room.chars -= len(form)
    for kind, method in _PICTURE_FORMS.items():
        form = _png_of_figure(value) if _is_figure(value) and kind == "image/png" else _made_by(value, method)
        text = base64.b64encode(form).decode() if isinstance(form, bytes) else form
        if isinstance(text, str) and len(text) <= room.picture_chars:
            forms[kind] = text
            room.picture_chars -= len(text)
    return forms


def take_figures() -> list[object]:
    """Return the open figures of matplotlib, and close them."""
    pyplot: Any = sys.modules.get(_PYPLOT)
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return []
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return figures


def _made_by(value: object, method: str) -> object:
    make = getattr(type(value), method, None)
    return None if make is None else make(value)


def _is_figure(value: object) -> bool:
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    return isinstance(figure, type) and isinstance(value, figure)


def _png_of_figure(figure: Any) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    return picture.getvalue()
