"""Writes the tables of `docs/configuration.md` from the source of the config classes: `python docs/make_configuration.py`.

It reads the source and imports nothing of agentrl, so it needs no packages. `tests/test_docs.py` fails when the page is
not what this script writes.
"""

import ast
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"
MARKER = "<!-- Below this line: written by docs/make_configuration.py -->\n"

_SCHEMAS = (
    "agentrl/config/schema/run.py",
    "agentrl/config/schema/algorithm.py",
    "agentrl/config/schema/checkpoint.py",
    "agentrl/config/schema/cluster.py",
    "agentrl/config/schema/reward.py",
    "agentrl/config/schema/algorithm.py",
    "agentrl/config/schema/sft.py",
)
_PLAIN_CONFIGS = (
    "agentrl/judge/connection.py",
    "agentrl/tools/python_tool.py",
    "agentrl/tools/worker_tool.py",
    "agentrl/rewards/math_answer.py",
    "agentrl/rewards/code_tests.py",
)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key as the page shows it. Example: `Key(name="run.seed", type="int", default="0", text="Seeds ...")`."""

    name: str
    type: str
    default: str
    text: str


def render() -> str:
    """Return everything below the marker."""
    classes = _classes(*_SCHEMAS, *_PLAIN_CONFIGS)
    parts = [
        "## Keys of a run (`agentrl.runners.rstar2`, `agentrl.runners.evaluate`)\n",
        *_tree_tables("RunConfig", classes),
    ]
    parts += ["## Keys of a warm start (`agentrl.runners.sft`)\n", *_tree_tables("SftConfig", classes)]
    parts += [
        "## Keys of the built-in tool (`config` in the tool YAML)\n",
        *_plain_table("PythonToolConfig", classes),
        "## Keys of a tool that an extra role answers (`config` in the tool YAML)\n",
        *_plain_table("WorkerToolConfig", classes),
        "## Keys of the built-in rewards (`reward.config`)\n",
        "`agentrl.rewards.math_answer.MathAnswerReward`:\n",
        *_plain_table("MathAnswerConfig", classes),
        "`agentrl.rewards.code_tests.CodeTestsReward`:\n",
        *_plain_table("CodeTestsConfig", classes),
    ]
    return "\n".join(parts)


def page() -> str:
    """Return the whole page: what is written by hand, and the tables."""
    return PAGE.read_text().partition(MARKER)[0] + MARKER + "\n" + render()


def _classes(*files: str) -> dict[str, ast.ClassDef]:
    trees = [ast.parse((ROOT / file).read_text()) for file in files]
    choices = {
        ast.unparse(node.targets[0]): node.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal[")
    }
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.AnnAssign):
            node.annotation = choices.get(ast.unparse(node.annotation), node.annotation)
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def _tree_tables(root: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Yield a heading and a table for each section below `root`, and a table for the keys of the root itself."""
    yield from _section_tables(root, "", classes)


def _section_tables(name: str, prefix: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    cls, keys = classes[name], _keys(name, classes)
    sections = [(item, section) for item, _ in keys if (section := _section_of(item, classes))]
    leaves = [_key(item, text, prefix, classes) for item, text in keys if not _section_of(item, classes)]
    if prefix:
        yield f"### `{prefix[:-1]}`\n\n{ast.get_docstring(cls)}\n"
    if leaves:
        yield _table(leaves)
    for item, section in sections:
        annotation = ast.unparse(item.annotation)
        many = "[]" if annotation.startswith("list[") else ".NAME" if annotation.startswith("dict[") else ""
        yield from _section_tables(section, f"{prefix}{ast.unparse(item.target)}{many}.", classes)


def _plain_table(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    yield _table([_key(item, text, "", classes) for item, text in _keys(name, classes)])


def _keys(name: str, classes: dict[str, ast.ClassDef]) -> list[tuple[ast.AnnAssign, str]]:
    """Return the keys of a class: those of its bases first, in the form that it gives them itself if it does."""
    bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
    lines = [line for base in bases for line in _keys(base, classes)] + list(_fields(classes[name]))
    return list({ast.unparse(item.target): (item, text) for item, text in lines}.values())


def _fields(cls: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Yield each declared key with the string that stands below it."""
    for item, following in zip(cls.body, [*cls.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield item, " ".join(text.split())
                case _:
                    yield item, ""


def _section_of(item: ast.AnnAssign, classes: dict[str, ast.ClassDef]) -> str | None:
    names = [node.id for node in ast.walk(item.annotation) if isinstance(node, ast.Name)]
    return next((name for name in names if name in classes and _is_dataclass(classes[name])), None)


def _is_dataclass(cls: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list)


def _key(item: ast.AnnAssign, text: str, prefix: str, classes: dict[str, ast.ClassDef]) -> Key:
    return Key(
        name=prefix + ast.unparse(item.target),
        type=_type(item.annotation),
        default=_default(item.value, classes),
        text=text,
    )


def _type(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        choices = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return " or ".join(f"`{ast.literal_eval(choice)}`" for choice in choices)
    return " or ".join(f"`{part}`" for part in ast.unparse(annotation).replace("None", "null").split(" | "))


def _default(value: ast.expr | None, classes: dict[str, ast.ClassDef]) -> str:
    if value is None or ast.unparse(value) == "MISSING":
        return "required"
    if isinstance(value, ast.Call):
        given = {argument.arg: argument.value for argument in value.keywords}
        if "default_factory" in given:
            return {"list": "`[]`", "dict": "`{}`"}[ast.unparse(given["default_factory"])]
        return _default(given["default"], classes)
    if isinstance(value, ast.Attribute):
        return _attribute(value, classes)
    literal = ast.literal_eval(value)
    return f"`{literal if isinstance(literal, str) else json.dumps(literal)}`"


def _attribute(value: ast.Attribute, classes: dict[str, ast.ClassDef]) -> str:
    """Return what `OtherClass.name` stands for."""
    body = classes[ast.unparse(value.value)].body
    assigned = {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target): node.value
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
    }
    return _default(assigned[value.attr], classes)


def _table(keys: list[Key]) -> str:
    def row(*cells: str) -> str:
        return "| " + " | ".join(cells) + " |"

    lines = [row("key", "type", "default", "meaning"), row("---", "---", "---", "---")]
    for key in keys:
        cells = (f"`{key.name}`", key.type, key.default, key.text)
        lines.append(row(*(cell.replace("|", "\\|") for cell in cells)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
