"""The report of a run, from folders that this file writes: finished, unfinished, without a step, hostile, damaged."""

import logging
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError
from agentrl.observability.metrics_file import MetricsFile
from agentrl.pages import run_record
from agentrl.pages.page import machine_text
from agentrl.pages.run_record import read_run
from agentrl.pages.run_report import report_of, try_to_write_run_report, write_run_report
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Failure, FailureClass, Termination, Turn
from tests.detectors.episodes import PROMPT, answered, called, episode

HOSTILE = "</pre><script src='http://x.example/a.js'></script><img src=x onerror=alert(1)> \ud800"
VOID = {"meta", "br", "line", "circle", "polyline"}
HOSTILE_PROMPT = replace(PROMPT, prompt_id="q", messages=[{"role": "user", "content": HOSTILE}], answer=HOSTILE)
LOST = Failure(failure_class=FailureClass.JUDGE, message="judge http://10.0.0.1: no verdict in 30 s", cause="")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Write 3 of 60 steps of the demo: in each a right, a copied, a hostile, a lost, and a cut trajectory."""
    config = load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / 'run'}"]).config
    store, metrics = TrajectoryStore(tmp_path / "run"), MetricsFile(tmp_path / "run" / "metrics.jsonl")
    for step in (1, 2, 3):
        right = episode(called("print(996 - 955)", "41"), answered("41"), name=f"{step}-p-0", reward=1.0)
        copied = episode(called("print(5)", "5"), answered("5"), name=f"{step}-p-1")
        hostile = replace(episode(Turn(text=HOSTILE), name=f"{step}-q-2"), prompt_id="q")
        lost = replace(
            episode(name=f"{step}-p-3", reward=None), termination=Termination.INFRA_ERROR, failures=(LOST, LOST)
        )
        cut = replace(episode(Turn(text="never"), name=f"{step}-p-4"), termination=Termination.MAX_TURNS)
        store.append(step, [right, copied, hostile, lost, cut], prompts=[PROMPT, HOSTILE_PROMPT])
        store.record_fates(
            step, {"trained": [right.trajectory_id, copied.trajectory_id], "unscored": [lost.trajectory_id]}
        )
        row = {"rollout/reward_mean": 0.1 * step, "time/step_s": 4.0, "time/rollout_s": 3.0, "time/update_s": 1.0}
        metrics.append(step, row | {"time/trajectory_tool_s_mean": 0.5, "rollout/engine_deaths": 1.0})
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return tmp_path / "run"


class Page(HTMLParser):
    """The elements of a page; fails where they are not nested."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(file.read_text())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_asks_nothing_of_anyone_and_escapes_every_text(run_dir: Path):
    file = write_run_report(run_dir)
    page = Page(file)
    assert not page.names & {"script", "link", "img", "iframe", "object", "a", "form", "base"}
    assert not page.attributes & {"src", "href", "onerror", "onload", "style"}
    assert "url(" not in file.read_text()
    assert "default-src 'none'" in file.read_text()
    assert page.text.count("</pre><script src='http://x.example/a.js'></script>") == 3  # prompt, policy, reference


def test_a_run_that_goes_on_is_reported_with_failures_fates_and_times(run_dir: Path):
    report = report_of(read_run(run_dir))
    assert report.status == "not finished: 3 of 60 steps"
    assert report.failures.rows == [("judge", "3", "3", "1", "1-p-3", LOST.message)]
    assert [row[:3] for row in report.endings.rows] == [
        ("answered", "9", "60.0%"),
        ("infra_error", "3", "20.0%"),
        ("max_turns", "3", "20.0%"),
    ]
    assert [row[:3] for row in report.fates.rows] == [("trained", "6", "66.7%"), ("unscored", "3", "33.3%")]
    assert report.step_parts.rows[0] == ("rollout", "3.00", "3.00", "75.0%")
    assert report.trajectory_parts.rows == [("tool", "0.500", "100.0%")]
    assert [row[:4] for row in report.tools.rows] == [("python_code_with_standard_io", "2", "0", "0.0%")]
    assert report.survived == "3 deaths of engines"
    assert report.changes.rows == [
        ("training reward", "0.1 (step 1)", "0.3 (step 3)", "0.3"),
        ("seconds per step", "4 (step 1)", "4 (step 3)", ""),
    ]


def test_hits_and_examples_are_those_of_the_record(run_dir: Path):
    report = report_of(read_run(run_dir))
    assert [(curve.name, curve.num_hit) for curve, _ in report.detectors] == [
        ("copied_answer", 3),
        ("constant_print", 3),
    ]
    assert [(talk.trajectory_id, talk.is_right) for talk in report.examples] == [
        ("3-p-0", True),
        ("3-p-1", False),
        ("3-q-2", False),
    ]
    assert report.latest == "step_000003"


def test_the_conclusion_on_time_is_on_the_page(run_dir: Path):
    assert "the judge took 40 %" in Page(write_run_report(run_dir, advice="the judge took 40 %")).text


def test_detectors_of_the_user_are_on_the_page(run_dir: Path):
    (run_dir / "detectors.yaml").write_text("- {name: box, regex: boxed}\n")
    write_run_report(run_dir, detectors_config=run_dir / "detectors.yaml", file=run_dir / "other.html")
    assert "box: `boxed` in the text of the policy" in Page(run_dir / "other.html").text


def test_of_a_large_record_evenly_spread_steps_are_read(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    size = sum(file.stat().st_size for file in TrajectoryStore(run_dir).files())
    monkeypatch.setattr(run_record, "_MAX_BYTES", size - 1)
    record = read_run(run_dir)
    assert [file.stem for file in record.files] == ["step_000001", "step_000003"]
    assert "those of 2 of 3 steps" in report_of(record).notes[0]


def test_a_run_without_a_step_has_a_page(run_dir: Path):
    shutil.rmtree(run_dir / "trajectories")
    (run_dir / "metrics.jsonl").unlink()
    text = Page(write_run_report(run_dir)).text
    assert "not finished: 0 of 60 steps" in text
    assert "No step is recorded yet." in text


def test_gpus_are_named_as_their_driver_names_them(tmp_path: Path):
    for number in range(2):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
        (tmp_path / f"0000:0{number}:00.0" / "information").write_text("Model: \t\t NVIDIA H100\nIRQ: \t\t 12\n")
    assert machine_text(tmp_path).endswith(" cores, 2 x NVIDIA H100")
    assert machine_text(tmp_path / "absent").endswith(" cores")


def test_the_report_of_an_evaluation_is_not_overwritten(run_dir: Path):
    (run_dir / "report.md").write_text("figures")
    with pytest.raises(ConfigError, match="an evaluation, which has its own report"):
        write_run_report(run_dir)


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no `config.yaml`, so no run"):
        write_run_report(tmp_path)
    (tmp_path / "config.yaml").write_text("model: 3\n")
    with pytest.raises(ConfigError, match="no config of a training run of this release"):
        write_run_report(tmp_path)


def test_a_run_does_not_fail_by_its_report(run_dir: Path, caplog: pytest.LogCaptureFixture):
    (run_dir / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": nonsense}\n{"step": 2}\n')
    with caplog.at_level(logging.WARNING):
        try_to_write_run_report(run_dir, advice="")
    assert f"`python -m agentrl.runners.report {run_dir}` tries it once more" in caplog.text
    assert not (run_dir / "report.html").exists()


def test_a_report_of_four_thousand_trajectories_takes_less_than_five_seconds_of_cpu(run_dir: Path):
    honest = [called("print(996 - 955)", "41"), answered("41")]
    store = TrajectoryStore(run_dir)
    for step in range(4, 24):
        names = (f"{step}-p-{index}" for index in range(200))
        store.append(step, (episode(*honest, name=name, num_tokens=50) for name in names), prompts=[PROMPT])
    started_s = time.process_time()
    write_run_report(run_dir)
    assert time.process_time() - started_s < 5.0


@pytest.mark.slow
def test_the_command_prints_the_file(run_dir: Path):
    command = [sys.executable, "-m", "agentrl.runners.report", str(run_dir), "--out", str(run_dir / "page.html")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{run_dir / 'page.html'}\n"
    assert (run_dir / "page.html").stat().st_size > 5_000
