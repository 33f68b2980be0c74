"""Times of the dashboard in Chromium, and memory of its server.

    python -m benchmarks.seeing.dashboard RUN_DIR [--json FILE]

RUN_DIR may be a real run, or one of `benchmarks.seeing.large_run`. A page's time ends when its content is painted; each is the
median of several visits. The long trajectory and the live run are written by the benchmark.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Termination, Trajectory, Turn

if TYPE_CHECKING:
    from playwright.sync_api import Page

NUM_TOKENS = 100_000
NUM_VISITS = 5
BARS = {
    "open, indexed (s)": 2.0,
    "page of a step (s)": 0.2,
    "all steps by reward (s)": 0.2,
    "failures (s)": 0.2,
    "trajectory (s)": 0.5,
    "100,000 tokens (s)": 1.0,
    "recolour (s)": 0.15,
    "live row (s)": 2.0,
    "server (MB)": 200,
}
ROW, TURN = ".table tbody td", ".conversation .entry"
RECOLOUR = """(name) => new Promise((resolve) => {
  const started = performance.now();
  [...document.querySelectorAll('.token-bar button')].find((button) => button.textContent === name).click();
  requestAnimationFrame(() => setTimeout(() => resolve((performance.now() - started) / 1000)));
})"""
GO = """([hash, selector]) => new Promise((resolve) => {
  const started = performance.now(), old = document.querySelector('#view > *');
  location.hash = hash;
  const look = () => {
    if (document.querySelector('#view > *') !== old && document.querySelector(selector))
      requestAnimationFrame(() => setTimeout(() => resolve((performance.now() - started) / 1000)));
    else requestAnimationFrame(look);
  };
  look();
})"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(arguments.run_dir, Path(folder))
    for name, value in figures.items():
        bar = f"   (bar {BARS[name]:g})" if name in BARS else ""
        print(f"{name:28} {value:10,.3f}{bar}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


def measured(run_dir: Path, folder: Path) -> dict[str, float]:
    """Return all figures by name."""
    from playwright.sync_api import sync_playwright

    long, live = write_run(folder / "long", NUM_TOKENS), write_run(folder / "live", 7)
    figures: dict[str, float] = {}
    with serving(run_dir) as (_, _, first_s):
        figures["open, index as found (s)"] = first_s
    with serving(run_dir, long, live) as (address, process_id, opened_s), sync_playwright() as playwright:
        figures["open, indexed (s)"] = opened_s
        times = psutil.Process(process_id).cpu_times()
        figures["open, CPU (s)"] = times.user + times.system
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(address)
        page.wait_for_selector(".chart canvas")
        figures |= pages(page, run_dir.resolve().name)
        figures |= long_trajectory(page)
        figures["live row (s)"] = live_row(page, live)
        figures["server (MB)"] = peak_memory_mb(process_id)
        browser.close()
    return figures


def pages(page: "Page", run: str) -> dict[str, float]:
    """Return the times of the pages of a run, each from the click to the painted page."""
    steps = page.evaluate("async (run) => (await (await fetch(`/api/runs/${run}/steps`)).json()).files", run)
    rollouts = [name for name in steps if name.startswith("step")]
    visited = [rollouts[len(rollouts) * number // NUM_VISITS] for number in range(NUM_VISITS)]
    places = [
        page.evaluate(
            "async (path) => (await (await fetch(path)).json()).rows[0].offset",
            f"/api/runs/{run}/trajectories?file={step}",
        )
        for step in visited
    ]
    overviews = [lambda: go(page, f"#/{run}/overview", ".chart canvas")] * NUM_VISITS
    return {
        "overview (s)": alternating(page, run, overviews),
        "page of a step (s)": median(go(page, f"#/{run}/step/{step}", ROW) for step in visited),
        "all steps by reward (s)": all_steps(page, run),
        "failures (s)": alternating(page, run, [lambda: go(page, f"#/{run}/failures", ".clusters > *")] * NUM_VISITS),
        "trajectory (s)": median(
            go(page, f"#/{run}/trajectory/{step}/{offset}", TURN) for step, offset in zip(visited, places, strict=True)
        ),
    }


def all_steps(page: "Page", run: str) -> float:
    """Return the time to sort the trajectories of all steps by reward."""
    go(page, f"#/{run}/step/all", ROW)
    fetch = """async (path) => { const started = performance.now(); await (await fetch(path)).json();
               return (performance.now() - started) / 1000; }"""
    path = f"/api/runs/{run}/trajectories?sort=reward&descending=true"
    return median(page.evaluate(fetch, path) for _ in range(NUM_VISITS))


def long_trajectory(page: "Page") -> dict[str, float]:
    """Return the times to show many tokens and to colour them by something else."""
    shown = alternating(
        page, "long", [lambda: go(page, "#/long/trajectory/step_000001/0/tokens", ".tokens .chunk span")] * NUM_VISITS
    )
    names = ("Sampled", "Policy version", "Log-probability") * 3
    return {"100,000 tokens (s)": shown, "recolour (s)": median(page.evaluate(RECOLOUR, name) for name in names)}


def live_row(page: "Page", live: Path) -> float:
    """Return the time from the end of a write to the row on the page."""
    go(page, "#/live/step/step_000001", ROW)
    page.wait_for_timeout(1500)
    times = []
    for number in range(2, 5):
        TrajectoryStore(live).append(1, [trajectory(7, sample=number)])
        started = time.monotonic()
        page.wait_for_selector(f".table tbody tr:nth-child({number})")
        times.append(time.monotonic() - started)
    return max(times)


def go(page: "Page", address: str, selector: str) -> float:
    """Return the time from a change of the address to the painted page."""
    return page.evaluate(GO, [address, selector])


def alternating(page: "Page", run: str, visits: list[Callable[[], float]]) -> float:
    """Return the median time of visits with another page in between."""

    def times() -> Iterator[float]:
        for visit in visits:
            go(page, f"#/{run}/search", ".empty")
            yield visit()

    return median(times())


def median(values: Iterator[float]) -> float:
    """Return the median."""
    return statistics.median(values)


@contextmanager
def serving(*run_dirs: Path) -> Iterator[tuple[str, int, float]]:
    """Serve runs; yield the address, the process id, and the seconds until the steps of the first could be listed."""
    from urllib.parse import quote
    from urllib.request import urlopen

    started = time.monotonic()
    command = [sys.executable, "-m", "agentrl.dashboard", *map(str, run_dirs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            address = process.stdout.readline().removeprefix("dashboard: ").strip()
            with urlopen(f"{address}api/runs/{quote(run_dirs[0].resolve().name)}/steps") as answer:
                answer.read()
            yield address, process.pid, time.monotonic() - started
        finally:
            process.terminate()


def write_run(folder: Path, num_tokens: int) -> Path:
    """Write a run of one trajectory."""
    folder.mkdir()
    (folder / "config.yaml").write_text("run: {num_steps: 1}\n")
    TrajectoryStore(folder).append(1, [trajectory(num_tokens, sample=1)])
    return folder


def trajectory(num_tokens: int, *, sample: int) -> Trajectory:
    """Return a trajectory whose log-probabilities have every colour."""
    values: dict[str, Any] = {"rollout_logprobs": [-((index * 7919) % 97) / 10 for index in range(num_tokens)]}
    values["rollout_logprobs"][0] = math.nan
    return Trajectory(
        trajectory_id=f"1-p-{sample}",
        prompt_id="p",
        sample_index=sample,
        token_ids=[(index * 7919) % 150_000 for index in range(num_tokens)],
        num_prompt_tokens=1,
        response_mask=[0] + [1] * (num_tokens - 1),
        version_spans=tuple((1 + (num_tokens - 1) * part // 4, part) for part in range(4)),
        turns=(Turn(text="long"),),
        termination=Termination.ANSWERED,
        reward=1.0,
        **values,
    )


def peak_memory_mb(process_id: int) -> float:
    """Return the most memory that a process has held."""
    status = Path(f"/proc/{process_id}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found, os.uname().sysname
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
