"""House rules of the dashboard's pages: small modules, text as text nodes, and nothing from elsewhere."""

import re
from pathlib import Path

import pytest

STATIC = Path(__file__).resolve().parents[2] / "agentrl" / "dashboard" / "static"
FILES = [path for path in sorted(STATIC.rglob("*")) if path.is_file() and "vendor" not in path.parts]
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MAX_LINES = 400
FORBIDDEN = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser")


def name_of(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_modules_are_small_and_make_no_elements_from_text(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    assert FORBIDDEN.findall(code) == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_name_no_other_server(path: Path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_imports_lead_to_files_and_to_names_that_are_exported(path: Path):
    for names, target in re.findall(r'import (?:\* as \w+|\{([^}]*)\}) from "([^"]+)"', path.read_text()):
        exported = set(
            re.findall(r"export (?:async )?(?:function|class|const) (\w+)", (path.parent / target).read_text())
        )
        assert {name.strip() for name in names.split(",") if name.strip()} <= exported


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_imported_names_are_used(path: Path):
    text = path.read_text()
    for names in re.findall(r"import \{([^}]*)\} from", text):
        for name in names.split(","):
            assert len(re.findall(rf"\b{name.strip()}\b", text)) > 1, name
