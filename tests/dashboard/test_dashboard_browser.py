"""The dashboard in a real browser: runs are opened, filtered, read, compared and followed as a person does it."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentrl.observability.metrics_file import MetricsFile
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Failure, FailureClass, Prompt, Termination, ToolCall, ToolResult, ToolStatus, Turn
from tests.conftest import CHROMIUM
from tests.dashboard.run_folder import trajectory, write_run, write_step, write_trajectories

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page  # pyright: ignore[reportMissingImports]

# In a process of their own: Playwright drives the browser from an event loop that no other test may have left in this thread.
pytestmark = [pytest.mark.alone, pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

WAIT_MS = 30_000
NUM_TOKENS = 100_000
HOSTILE = (
    "<img src=x onerror=hacked=1>",
    "<script>hacked=1</script>",
    '"><svg onload=hacked=1>',
    "javascript:hacked=1",
    "</textarea></style></title><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "{{constructor.constructor('hacked=1')()}}${hacked=1}",
    "%3Cimg%20src=x%20onerror=hacked=1%3E#/?&=\u2028\u202e",
)
ALL_HOSTILE = " ".join(HOSTILE)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def serving(*run_dirs: Path) -> Iterator[str]:
    """Serve runs as the command does, and yield the address."""
    command = [sys.executable, "-m", "agentrl.dashboard", *map(str, run_dirs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().removeprefix("dashboard: ").strip()
        finally:
            process.terminate()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve runs until the test is over and its pages are closed."""
    with ExitStack() as servers:
        yield lambda *run_dirs: servers.enter_context(serving(*run_dirs))


@pytest.fixture
def open_page(browser: "Browser", serve: object) -> Iterator[Callable[[str, str], "Page"]]:
    """Open pages, and check at the end that none has asked another server for anything, or logged an error."""
    requests: list[str] = []
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT_MS)
    addresses: list[str] = []

    def opened(address: str, path: str) -> "Page":
        addresses.append(address)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(address + path)
        return page

    yield opened
    context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith((*addresses, "data:"))] == []


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", num_steps=3)


@pytest.fixture(scope="module")
def address(run_dir: Path) -> Iterator[str]:
    with serving(run_dir) as address:
        yield address


def cells(page: "Page", column: int) -> list[str]:
    return [text.strip() for text in page.locator(f".table tbody tr td:nth-child({column})").all_inner_texts()]


def test_a_run_opens_with_its_figures_and_curves(address: str, open_page: Any):
    page = open_page(address, "")
    page.wait_for_selector(".chart canvas")
    assert page.locator(".pill.accent", has_text="finished").count() == 1
    assert "0.530" in page.locator(".tiles").inner_text()
    assert page.locator(".banner").count() == 0
    page.locator("[data-filter]").fill("step_s")
    page.locator("section[aria-label='time/step_s'] canvas").wait_for()


def test_the_trajectories_of_a_step_are_filtered_sorted_and_opened_by_keys(address: str, open_page: Any):
    page = open_page(address, "#/run/step/step_000002")
    page.wait_for_selector(".table tbody tr:nth-child(8)")
    page.keyboard.press("/")
    page.keyboard.type("p1")
    page.wait_for_selector(".table tbody tr:nth-child(4):last-child")
    assert set(cells(page, 1)) == {"p1"}
    page.keyboard.press("Escape")
    page.locator("th[data-name='wall_time_s'] button").click()
    page.wait_for_selector("th[data-name='wall_time_s'][aria-sort='descending']")
    page.locator(".table tbody tr:first-child td:nth-child(2)", has_text="3").wait_for()
    page.get_by_role("button", name="Failed calls").click()
    page.wait_for_selector(".table tbody tr:only-child")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".conversation")
    text = page.locator(".conversation").inner_text()
    assert "What is 1 + 3?" in text
    assert "print(2 + 3)" in text
    assert "Traceback: no" in text
    assert page.locator(".lane-bars .bar.sampled").count() == 2
    page.keyboard.press("Escape")
    page.wait_for_selector(".table tbody tr.selected:only-child")  # filter and selection are kept


def test_a_group_is_compared_token_by_token(address: str, open_page: Any):
    page = open_page(address, "#/run/group/step_000001/p0")
    page.wait_for_selector(".column:nth-child(4)")
    assert page.locator(".column:nth-child(2) .first").inner_text().strip() == "24"
    assert "differs at token 3" in page.locator(".column:nth-child(2)").inner_text()
    page.locator(".column-head").nth(1).click()
    assert page.locator(".column:nth-child(1) .first").inner_text().strip() == "23"


def test_a_trajectory_of_many_tokens_is_read_and_recoloured(tmp_path: Path, serve: Any, open_page: Any):
    run = write_run(tmp_path / "run", num_steps=1)
    sampled = NUM_TOKENS - 3
    path = write_trajectories(
        run,
        2,
        [
            trajectory(
                2,
                0,
                0,
                token_ids=list(range(NUM_TOKENS)),
                response_mask=[0, 0, 0] + [1] * sampled,
                rollout_logprobs=[float("nan")] * 3 + [-(index % 10) - 0.01 for index in range(sampled)],
            )
        ],
    )
    address = serve(run)
    page = open_page(address, f"#/run/trajectory/{path.stem}/0/tokens")
    page.wait_for_selector(".tokens .chunk span.s")
    paint = "getComputedStyle(document.querySelector('.tokens .p9')).backgroundColor"
    by_logprob = page.evaluate(paint)
    page.get_by_role("button", name="Sampled", exact=True).click()
    assert page.evaluate(paint) != by_logprob
    page.locator(".tokens .chunk:last-child").scroll_into_view_if_needed()
    page.locator(".tokens .chunk:last-child span.s").last.hover()
    page.locator(".token-facts", has_text="token 99,999").wait_for()


def test_rows_of_a_live_run_appear_by_themselves(tmp_path: Path, serve: Any, open_page: Any):
    run = write_run(tmp_path / "run", num_steps=1, finished=False)
    address = serve(run)
    overview, steps = open_page(address, ""), open_page(address, "#/run/step/step_000001")
    steps.wait_for_selector(".table tbody tr:nth-child(8)")
    overview.wait_for_selector(".chart canvas")
    write_trajectories(run, 1, [trajectory(1, 7, 0)])
    steps.wait_for_selector(".table tbody tr:nth-child(9)")
    write_step(run, 2)
    overview.locator(".tiles", has_text="0.520").wait_for()


def test_a_crashed_run_opens_with_the_end_of_its_log(tmp_path: Path, serve: Any, open_page: Any):
    run = write_run(tmp_path / "run", num_steps=2, finished=False)
    for file in (run / "metrics.jsonl", run / "trajectories" / "step_000002.atr"):
        file.write_bytes(file.read_bytes()[:-10])  # killed while it wrote
    address = serve(run)
    page = open_page(address, "")
    page.wait_for_selector(".banner.bad")
    assert "Stopped after step 1" in page.locator(".banner.bad").inner_text()
    assert "the engine died" in page.locator(".banner.bad").inner_text()
    page.goto(f"{address}#/run/step/step_000002")
    page.wait_for_selector(".table tbody tr:nth-child(7):last-child")


def test_signs_of_a_run_that_needs_attention_are_named(tmp_path: Path, serve: Any, open_page: Any):
    run = write_run(tmp_path / "run", num_steps=1)
    metrics = MetricsFile(run / "metrics.jsonl")
    for step in range(2, 22):
        row = {"rollout/reward_mean": 0.0, "actor/rollout_kl": 0.001 if step < 12 else 0.5, "actor/entropy": 2.0}
        calls = {"rollout/tool_success_rate": 0.2, "rollout/trajectories": 10.0, "rollout/infra_errors": 2.0}
        metrics.append(step, row | calls | {"actor/grad_norm": float("nan") if step == 21 else 1.0})
    page = open_page(serve(run), "")
    page.wait_for_selector(".banner.warn")
    text = page.locator(".banner.warn").inner_text()
    assert [line for line in text.splitlines() if line] == [
        "actor/grad_norm is not finite at step 21.",
        "The mean reward is 0 in each of the last 10 steps.",
        "Only 20% of tool calls succeed over the last steps.",
        "Engine and actor drift apart: KL 0.00100 in the first steps, 0.500 in the last.",
        "20% of the trajectories of the last steps are lost to failures.",
    ]


def test_failures_and_searches_lead_to_their_trajectories(address: str, open_page: Any):
    page = open_page(address, "#/run/search/Traceback: n[o]")
    page.wait_for_selector(".hit mark")
    page.locator(".head", has_text="6 hits").wait_for()
    page.goto(f"{address}#/run/failures")
    page.locator(".cluster", has_text="Traceback: no").click()
    page.wait_for_selector(".conversation")


def test_runs_are_compared_by_config_and_curves(tmp_path: Path, serve: Any, open_page: Any):
    runs = [write_run(tmp_path / name, num_steps=2) for name in ("first", "second")]
    config = runs[1] / "config.yaml"
    config.write_text(config.read_text().replace("seed: 1", "seed: 2"))
    address = serve(*runs)
    page = open_page(address, "#/first/compare")
    page.wait_for_selector("section[aria-label='rollout/reward_mean'] canvas")
    rows = page.locator(".table.plain").first.locator("tbody tr").all_inner_texts()
    assert [re.split(r"\s+", row.strip()) for row in rows] == [["run.seed", "1", "2"]]


def write_hostile_run(run: Path) -> str:
    """Write a run whose every text is hostile, and return the name of its step."""
    write_run(run, num_steps=1, finished=False)
    (run / "config.yaml").write_text(f"run: {{num_steps: 3}}\nmodel: {{path: {HOSTILE[0]!r}}}\n? {HOSTILE[1]!r}\n: 1\n")
    (run / "run.log").write_text(ALL_HOSTILE)
    MetricsFile(run / "metrics.jsonl").append(2, {f"rollout/{text}": 1.0 for text in HOSTILE})
    call = ToolCall(call_id=ALL_HOSTILE, name=ALL_HOSTILE, arguments={ALL_HOSTILE: ALL_HOSTILE}, parse_error="")
    result = ToolResult(status=ToolStatus.ERROR, text=ALL_HOSTILE, cause=ALL_HOSTILE)
    turn = Turn(
        text=ALL_HOSTILE,
        calls=(call, ToolCall(call_id="2", name="", parse_error=ALL_HOSTILE)),
        results=(result, result),
    )
    failure = Failure(failure_class=FailureClass.ENGINE, message=ALL_HOSTILE, cause=ALL_HOSTILE)
    samples = [
        trajectory(
            2,
            0,
            sample,
            trajectory_id=f"{sample}{text}",
            prompt_id=text,
            turns=(turn, Turn(text=text, observation=text)),
            failures=(failure,),
            reward_metrics={ALL_HOSTILE: 1.0},
            termination=Termination.ANSWERED,
        )
        for sample, text in enumerate(HOSTILE)
    ]
    prompts = [
        Prompt(prompt_id=text, messages=[{"role": text, "content": text}], answer=text, data_set=text)
        for text in HOSTILE
    ]
    return TrajectoryStore(run).append(2, samples, prompts=prompts).stem


def test_no_text_of_a_run_can_run_as_a_script_or_become_an_element(tmp_path: Path, serve: Any, open_page: Any):
    run = tmp_path / HOSTILE[0]
    step = write_hostile_run(run)
    address = serve(run)
    page = open_page(address, "")
    page.wait_for_selector(".banner.bad pre")
    page.locator("[data-filter]").fill("hacked")
    page.wait_for_selector("section.chart[aria-label*='hacked']")
    key = page.evaluate("encodeURIComponent(document.querySelector('.run-name .name').textContent)")
    page.goto(f"{address}#/{key}/step/{step}")
    page.wait_for_selector(".table tbody tr:nth-child(7)")
    assert_harmless(page)
    page.locator(".table tbody tr").first.click()
    page.wait_for_selector(".conversation")
    assert_harmless(page)
    assert HOSTILE[1] in page.locator(".conversation").inner_text()
    page.locator("aside a.link").click()
    page.wait_for_selector(".column")
    assert_harmless(page)
    for view, selector in (("failures", ".cluster code"), ("search/hacked", ".hit mark")):
        page.goto(f"{address}#/{key}/{view}")
        page.wait_for_selector(selector)
        assert_harmless(page)


def assert_harmless(page: "Page") -> None:
    assert page.evaluate("typeof hacked") == "undefined"
    assert (
        page.evaluate("document.querySelectorAll('main :is(script, img, svg, iframe, style, title, textarea)').length")
        == 0
    )
    assert page.evaluate("[...document.links].filter((link) => !/^https?:/.test(link.protocol)).length") == 0
