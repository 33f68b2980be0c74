"""The embedded engine is for small machines: at most 400 lines of code, blank lines, comments and docstrings not counted."""

import ast
import tokenize
from pathlib import Path

import agentrl.engine.embedded

FOLDER = Path(agentrl.engine.embedded.__file__).parent
FILES = ["engine", "scheduler", "prefix_rows", "model", "kv_cache"]
"""Files of this engine only; the sampler is a function of logits."""
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(path: Path) -> int:
    with path.open() as source:
        tokens = [token for token in tokenize.generate_tokens(source.readline) if token.type not in _NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_comments_docstrings_and_blank_lines_are_no_code(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        '"""A\n\ndocstring."""\n\n# a comment\nx = [\n    1,\n]\n\n\ndef f():\n    """Nothing."""\n    return x  # so\n'
    )
    assert code_lines(source) == 5


def test_the_embedded_engine_has_at_most_400_lines_of_code() -> None:
    assert sum(code_lines(FOLDER / f"{name}.py") for name in FILES) <= 400
