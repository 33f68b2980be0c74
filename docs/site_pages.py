"""Hook of mkdocs: adds the pages outside of `docs/` to the site, and maps links between files to links between pages."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
README = "README.md"
NAMES = {README: "index.md", "LICENSE": "LICENSE.md"}
PAGES = (
    *NAMES,
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    *sorted(
        str(file.relative_to(ROOT))
        for folder in ("examples", "benchmarks")
        for file in ROOT.glob(f"{folder}/*/{README}")
    ),
)
"""Files of the repository, relative to its root."""
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def page_of(path: str) -> str:
    """Return the name of a file in the site.

    Args:
        path: Relative to the root of the repository, such as `docs/data.md`.
    """
    return NAMES.get(path, path.removeprefix("docs/"))


def on_files(files: Files, config: Any) -> Files:
    """Add `PAGES`."""
    for path in PAGES:
        files.append(File.generated(config, page_of(path), content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite relative links."""
    name = page.file.src_uri
    path = next((path for path in PAGES if page_of(path) == name), f"docs/{name}")

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        return posixpath.relpath(page_of(target), posixpath.dirname(name) or ".")

    return _LINK.sub(rewritten, markdown)
