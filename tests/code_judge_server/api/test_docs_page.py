"""The page of the API shows every endpoint and field, and loads nothing from elsewhere."""

import re
from html import escape
from html.parser import HTMLParser

from judge_process import JudgeProcess


class Links(HTMLParser):
    """Collects the files and links of a page, and its anchors."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href"):
                self.targets.append(value or "")
            elif name == "id":
                self.ids.add(value or "")


def test_every_endpoint_and_every_field_is_on_the_page(judge: JudgeProcess) -> None:
    description = judge.http.get("/openapi.json").json()
    page = judge.http.get("/docs").text
    for path, methods in description["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in page
    for schema in description["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            assert f"<code>{name}</code>" in page
            assert escape(field.get("description", "")) in page


def test_the_page_loads_nothing_and_its_links_lead_somewhere(judge: JudgeProcess) -> None:
    page = judge.http.get("/docs").text
    links = Links(page)
    assert not links.tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"url\(|@import", page)
    assert {target for target in links.targets if not target.startswith("#")} == {"openapi.json"}
    assert {target.removeprefix("#") for target in links.targets if target.startswith("#")} <= links.ids


def test_no_page_needs_a_network(judge: JudgeProcess) -> None:
    assert judge.http.get("/redoc").status_code == 404
