"""Reports as pages: complete, self-contained, and safe to open whatever a policy has written."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentrl.evaluation.figures import figures_of
from agentrl.evaluation.html_pages import write_report_page
from agentrl.evaluation.markdown_pages import write_report_markdown
from agentrl.evaluation.record import read_evaluation
from agentrl.evaluation.report import Report, report_of
from agentrl.types import Trajectory, Turn
from tests.evaluation.recorded import REWARD, evaluation_folder, prompt, result, tool_turn, trajectory

EVIL = '<script src="http://evil.example/x.js"></script>"\'><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def report(folder: Path, trajectories: list[Trajectory], *words: str) -> Report:
    prompts = [prompt("a", text=f"Question {EVIL}"), prompt(f"b{EVIL}", answer=EVIL)]
    words = (*words, "validation.samples_per_prompt=2")
    config = evaluation_folder(folder, prompts, trajectories, *words)
    record = read_evaluation(folder, config.reward)
    figures = figures_of(record, config.algorithm.selection, samples_per_prompt=2, category_column=None)
    return report_of(config, record, figures, result(2, config))


def pages(folder: Path, content: Report) -> tuple[str, str]:
    write_report_page(folder / "report.html", content)
    write_report_markdown(folder / "report.md", content)
    return (folder / "report.html").read_text(), (folder / "report.md").read_text()


def test_no_text_of_a_policy_or_a_prompt_becomes_markup(tmp_path: Path):
    turns = (tool_turn(EVIL, f"result {EVIL}"), Turn(text=f"answer {EVIL} \ud800 ```` \x00"))
    recorded = [trajectory("a", 0, 1.0, turns=turns), trajectory(f"b{EVIL}", 0, 0.0)]
    page, text = pages(tmp_path, report(tmp_path, recorded))
    parsed = Page(page)
    assert not parsed.tags & {"script", "img", "link", "iframe", "object", "base", "form"}
    assert not {name for name in parsed.attributes if name.startswith("on") or name in ("src", "href", "srcset")}
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page
    assert page.count(html.escape(EVIL)) + page.count("&lt;script") >= 4
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in outside
    assert "`````\nanswer" in text, "the fence is longer than the backticks within"


def test_a_page_has_light_and_dark_colours_and_fits_a_phone(tmp_path: Path):
    page, _ = pages(tmp_path, report(tmp_path, [trajectory("a", 0, 1.0)]))
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def test_intervals_are_drawn_although_some_k_has_too_few_samples_but_not_for_rewards_beyond_1(tmp_path: Path):
    lost = [trajectory("a", 0, 1.0), trajectory("a", 1, None), trajectory(f"b{EVIL}", 0, 0.0)]
    page, _ = pages(tmp_path, report(tmp_path / "few", lost))
    assert '<span class="bar">' in page
    page, _ = pages(tmp_path, report(tmp_path / "beyond", [trajectory("a", 0, 2.5), trajectory(f"b{EVIL}", 0, 1.0)]))
    assert '<span class="bar">' not in page


def test_lost_trajectories_are_shown_and_not_counted_as_wrong(tmp_path: Path):
    content = report(tmp_path, [trajectory("a", 0, 1.0), trajectory("a", 1, None)])
    page, text = pages(tmp_path, content)
    assert content.figures[0].accuracy.mean == 1.0
    for shown in (page, text.replace("\\", "")):
        assert "1 of 2 trajectories were lost to the infrastructure" in shown
        assert "1 prompts have no scored trajectory" in shown
        assert "it died" in shown
        assert "infra_error" in shown


def test_both_pages_have_the_figures_and_what_was_evaluated(tmp_path: Path):
    recorded = [trajectory("a", n, float(n)) for n in range(2)]
    for shown in pages(tmp_path, report(tmp_path, [*recorded, trajectory(f"b{EVIL}", 0, 1.0)])):
        for text in ("accuracy", "0.667", "pass@2", "maj@2", "temperature 1", "models/policy", "agentrl 0.", "2.5"):
            assert text in shown.replace("\\", "")


@pytest.mark.parametrize("words", [(), (REWARD,)])
def test_a_missing_majority_is_explained(tmp_path: Path, words: tuple[str, ...]):
    notes = report(tmp_path, [trajectory("a", n, 1.0) for n in range(2)], *words).notes
    assert any("maj@k is left out" in note for note in notes) is bool(words)


def test_examples_are_right_and_wrong_ones_of_different_prompts(tmp_path: Path):
    recorded = [trajectory("a", 0, 1.0), trajectory("a", 1, 0.0), trajectory(f"b{EVIL}", 0, 1.0)]
    examples = report(tmp_path, recorded).examples
    assert [(example.trajectory_id, example.is_right) for example in examples] == [
        ("0-a-0", True),
        (f"0-b{EVIL}-0", True),
        ("0-a-1", False),
    ]
    assert examples[0].prompt[0].text.startswith("Question")
