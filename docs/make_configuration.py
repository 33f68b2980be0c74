"""Writes the tables of `docs/configuration.md` from the fields of the config classes: `python docs/make_configuration.py`.

Types, bounds, defaults and `resumable` come from the fields, the meaning from the string below each field.
`tests/test_docs.py` fails when the page is not what this script writes.
"""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentrl.config.schema.fields import is_resumable, section_of
from agentrl.config.schema.run import RunConfig
from agentrl.config.schema.sft import SftConfig
from agentrl.config.schema.simulation import SimulatedEngineSection
from agentrl.rewards.code_tests import CodeTestsConfig
from agentrl.rewards.math_answer import MathAnswerConfig
from agentrl.tools.jupyter_tool import JupyterToolConfig
from agentrl.tools.mcp.keys import McpServerConfig
from agentrl.tools.python_tool import PythonToolConfig
from agentrl.tools.worker_tool import WorkerToolConfig

PAGE = Path(__file__).resolve().parent / "configuration.md"
MARKER = "<!-- Below this line: written by docs/make_configuration.py -->\n"
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_SHOWN_BELOW = 10_000
"""Larger upper bounds only catch slips of the pen."""


def render() -> str:
    """Return everything below the marker."""
    plain = {
        "## Keys of the built-in tool (`config` in the tool YAML)\n": PythonToolConfig,
        "## Keys of the built-in notebook tool (`config` in the tool YAML)\n": JupyterToolConfig,
        "## Keys of an MCP server (an entry of the tool YAML)\n": McpServerConfig,
        "## Keys of a tool that an extra role answers (`config` in the tool YAML)\n": WorkerToolConfig,
        "## Keys of the built-in rewards (`reward.config`)\n\n`agentrl.rewards.math_answer.MathAnswerReward`:\n": (
            MathAnswerConfig
        ),
        "`agentrl.rewards.code_tests.CodeTestsReward`:\n": CodeTestsConfig,
    }
    parts = ["## Keys of a run (`agentrl.runners.rstar2`, `agentrl.runners.evaluate`, `agentrl.serve`)\n"]
    parts += _tables(RunConfig, "")
    parts += ["## Keys of a simulation besides those of a run (`agentrl.runners.simulate`)\n"]
    parts += _tables(SimulatedEngineSection, "simulated.")
    parts += ["## Keys of a warm start (`agentrl.runners.sft`)\n", *_tables(SftConfig, "")]
    for heading, model in plain.items():
        parts += [heading, _table(model, "", model.model_fields)]
    return "\n".join(parts)


def page() -> str:
    """Return the whole page: what is written by hand, and the tables."""
    return PAGE.read_text().partition(MARKER)[0] + MARKER + "\n" + render()


def _tables(schema: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield a heading and a table for a section, and those of the sections below it."""
    if prefix:
        yield f"### `{prefix[:-1]}`\n\n{inspect.cleandoc(schema.__doc__ or '')}\n"
    below = {name: section for name, field in schema.model_fields.items() if (section := section_of(field.annotation))}
    if keys := {name: field for name, field in schema.model_fields.items() if name not in below}:
        yield _table(schema, prefix, keys)
    for name, section in below.items():
        many = {list: "[]", dict: ".NAME"}.get(get_origin(schema.model_fields[name].annotation) or object, "")
        yield from _tables(section, f"{prefix}{name}{many}.")


def _table(schema: type[BaseModel], prefix: str, keys: Mapping[str, FieldInfo]) -> str:
    rows = [("key", "type", "default", "meaning"), ("---",) * 4]
    for name, field in keys.items():
        text = next((text for cls in schema.__mro__ if (text := _texts(cls).get(name))), "")
        resumed = " *May change on resume.*" if is_resumable(field) else ""
        kind = _type(field.annotation, field.metadata)
        rows.append((f"`{prefix}{name}`", kind, _default(field), text + resumed))
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


@cache
def _texts(cls: type) -> dict[str, str]:
    """Return the string below each field of a class."""
    module = inspect.getmodule(cls)
    nodes = _classes(module) if module is not None and issubclass(cls, BaseModel) and cls is not BaseModel else {}
    body = nodes[cls.__name__].body if nodes else []
    return {
        ast.unparse(item.target): " ".join(following.value.value.split())
        for item, following in pairwise(body)
        if isinstance(item, ast.AnnAssign) and isinstance(following, ast.Expr)
        if isinstance(following.value, ast.Constant) and isinstance(following.value.value, str)
    }


@cache
def _classes(module: ModuleType) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)}


def _type(kind: Any, metadata: list[Any]) -> str:
    if get_origin(kind) is Annotated:
        kind, *inner = get_args(kind)
        return _type(kind, [*inner, *metadata])
    if get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) not in (None, list, dict):
        return " or ".join(_type(part, metadata if index == 0 else []) for index, part in enumerate(get_args(kind)))
    return f"`{_name(kind)}`{_bounds(metadata)}"


def _name(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _name(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    inner = f"[{', '.join(map(_name, get_args(kind)))}]" if get_args(kind) else ""
    return "null" if kind is type(None) else f"{kind.__name__}{inner}"


def _bounds(metadata: list[Any]) -> str:
    limits = [item for part in metadata for item in getattr(part, "metadata", [part])]
    bounds = {name: getattr(item, name) for item in limits for name in _BOUNDS if hasattr(item, name)}
    shown = [f"{_BOUNDS[name]} {value}" for name, value in bounds.items() if value < _SHOWN_BELOW]
    return f", {' and '.join(shown)}" if shown else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


if __name__ == "__main__":
    PAGE.write_text(page())
