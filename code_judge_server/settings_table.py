"""The text of `--help`: every setting with its default and meaning."""

import json
import shutil
import textwrap
from pathlib import Path

from pydantic import SecretStr

from code_judge_server.settings import Settings

_HEAD = (
    "python -m code_judge_server [--SETTING VALUE ...]",
    "",
    "Run untrusted programs on request and judge what they print.",
    "",
    "Each setting is also read from the environment (--max-memory-mb is CODE_JUDGE_MAX_MEMORY_MB), but the command line wins.",
    "A name in brackets is one of code-judge's environment, which is honoured where the other two are silent.",
    "",
)
_MIN_WIDTH = 80
_MAX_WIDTH = 128


def settings_table(width: int | None = None) -> str:
    """Return the table; `width` in characters, by default the terminal's."""
    width = min(max(width or shutil.get_terminal_size((_MAX_WIDTH, 0)).columns, _MIN_WIDTH), _MAX_WIDTH)
    rows = [("SETTING", "DEFAULT", "MEANING")]
    for name, field in Settings.model_fields.items():
        default = _shown(field.get_default(call_default_factory=True))
        rows.append((f"--{name.replace('_', '-')}", default, " ".join((field.description or "").split())))
    name_width, default_width = (max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    lines = [line for text in _HEAD for line in textwrap.wrap(text, width) or [""]]
    for name, default, meaning in rows:
        wrapped = textwrap.wrap(meaning, width - name_width - default_width, break_on_hyphens=False)
        lines.append(f"{name:{name_width}}{default:{default_width}}{wrapped[0]}")
        lines += [" " * (name_width + default_width) + line for line in wrapped[1:]]
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    match value:
        case None | SecretStr():
            return "none"
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case Path() | int() | str():
            return str(value)
        case _:
            return json.dumps(value, default=str)
