"""Evaluation end to end: the real command, judge, Ray, agent-loop workers and policy; the engine here, or behind HTTP."""

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.evaluation.record import record_file
from agentrl.trajectories.store import TrajectoryStore, read_heads, read_prompts, read_trajectories
from agentrl.types import Deadline, Failure, FailureClass, SamplingParams, Termination, Trajectory
from tests.engine.openai_server import POLICY, Body, OpenAIServer, chunk, encoded, served
from tests.runners.run_process import alive, finish_run, metrics, running, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(300)]

NUM_PROMPTS = 24


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of the held-out problems."""
    file = tmp_path_factory.mktemp("data") / "validation.jsonl"
    lines = Path("examples/arithmetic/validation.jsonl").read_text().splitlines()
    file.write_text("\n".join(lines[:NUM_PROMPTS]) + "\n")
    return file


def words(held_out: Path) -> list[str]:
    return [f"data.validation_files=[{held_out}]", "validation.samples_per_prompt=4"]


@pytest.fixture(scope="module")
def finished(held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    run_dir = tmp_path_factory.mktemp("run") / "embedded"
    return run_dir, finish_run(run_dir, *words(held_out), runner="evaluate")


def trajectories(run_dir: Path) -> dict[str, Trajectory]:
    recorded = read_trajectories(record_file(run_dir))
    return {trajectory.trajectory_id: trajectory for trajectory in recorded}


def result(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def test_every_held_out_prompt_is_rolled_out_and_written_down(finished: tuple[Path, str]):
    evaluated = trajectories(finished[0])
    assert len(evaluated) == NUM_PROMPTS * 4
    prompts = read_prompts(record_file(finished[0]))
    assert {trajectory.prompt_id for trajectory in evaluated.values()} == set(prompts)
    assert any(trajectory.tool_results for trajectory in evaluated.values())


def test_the_accuracy_is_the_mean_reward_of_the_trajectories(finished: tuple[Path, str]):
    rewards = [trajectory.reward for trajectory in trajectories(finished[0]).values()]
    figures = result(finished[0])["metrics"]
    mean = math.fsum(reward or 0.0 for reward in rewards) / len(rewards)
    assert figures["validation/accuracy"] == pytest.approx(mean)
    assert 0.2 < mean < 0.7  # the policy as it comes, see examples/arithmetic/README.md
    assert figures["validation/pass_at_4"] >= figures["validation/pass_at_2"] >= mean
    assert metrics(finished[0])[0]["validation/accuracy"] == pytest.approx(mean)


def test_the_table_shows_it(finished: tuple[Path, str]):
    figures = result(finished[0])["metrics"]
    for name in ("accuracy", "pass_at_2", "pass_at_4"):
        assert f"{figures[f'validation/{name}']:.3f}" in finished[1]


def test_the_same_command_shows_the_result_again_without_measuring(finished: tuple[Path, str], held_out: Path):
    before = (finished[0] / "metrics.jsonl").read_bytes()
    second = finish_run(finished[0], *words(held_out), runner="evaluate", timeout_s=250)
    assert "holds this evaluation already" in second
    assert "pass@4" in second
    assert (finished[0] / "metrics.jsonl").read_bytes() == before


def test_the_report_has_the_figures_of_the_result_and_conversations(finished: tuple[Path, str]):
    page, text = (finished[0] / "report.html").read_text(), (finished[0] / "report.md").read_text()
    accuracy = result(finished[0])["metrics"]["validation/accuracy"]
    for shown in (page, text):
        assert f"{accuracy:.3f}" in shown
        assert "maj@4" in shown
        assert "boxed{" in shown


def test_a_killed_evaluation_goes_on_from_its_trajectories_and_tries_lost_ones_again(
    finished: tuple[Path, str], held_out: Path, tmp_path: Path
):
    """Also the reference: the trajectories of the evaluation that was not killed, up to a float's last bits on a tie."""
    run_dir, options = tmp_path / "run", words(held_out)
    with running(run_dir, *options, "rollout.max_concurrent_trajectories=2", runner="evaluate") as run:
        assert wait_until(lambda: len([*read_heads(record_file(run_dir))]) >= 8, timeout_s=250)
        family = run.family()
        run.signal(signal.SIGKILL)
        run.process.wait(60)
    assert wait_until(lambda: not alive(family)), alive(family)
    kept = trajectories(run_dir)
    expected = trajectories(finished[0])
    lost = next(trajectory for name, trajectory in sorted(expected.items()) if name not in kept)
    failure = Failure(failure_class=FailureClass.ENGINE, message="it died")
    lost = replace(lost, reward=None, termination=Termination.INFRA_ERROR, failures=(failure,), turns=())
    TrajectoryStore(run_dir).append(
        0, [lost], prompts=[read_prompts(record_file(finished[0]))[lost.prompt_id]], validation=True
    )
    output = finish_run(run_dir, *options, runner="evaluate")
    assert f"{len(kept)} of {len(expected)} trajectories are on disk" in output
    measured = trajectories(run_dir)
    assert {name: measured[name].span for name in kept} == {name: item.span for name, item in kept.items()}
    assert measured.keys() == expected.keys()
    assert measured[lost.trajectory_id].reward is not None
    equal = sum(measured[name].token_ids == expected[name].token_ids for name in expected)
    assert equal >= 0.95 * len(expected)
    assert result(run_dir)["num_rolled_out"] == len(expected) - len(kept)
    assert result(run_dir)["metrics"]["validation/infra_errors"] == 0


@contextlib.contextmanager
def endpoint(*, token: str) -> Iterator[str]:
    """Serve the policy over HTTP from a process of its own; gives its base URL."""
    command = [sys.executable, "-m", "tests.runners.test_evaluate", token]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_an_endpoint_gives_the_trajectories_of_the_embedded_engine(
    finished: tuple[Path, str], held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same policy, prompts and seeds behind HTTP: the same tokens, up to a float's last bits on a tie."""
    monkeypatch.setenv("POLICY_TOKEN", "a-token-of-this-test")
    with endpoint(token="a-token-of-this-test") as url:
        output = finish_run(
            tmp_path / "run",
            *words(held_out),
            "rollout.engine=openai",
            f"rollout.openai.base_urls=['{url}']",
            "rollout.openai.token_env=POLICY_TOKEN",
            runner="evaluate",
        )
    assert "accuracy" in output
    assert "openai" in (tmp_path / "run" / "report.html").read_text()
    ours, theirs = trajectories(finished[0]), trajectories(tmp_path / "run")
    assert ours.keys() == theirs.keys()
    equal = sum(ours[name].token_ids == theirs[name].token_ids for name in ours)
    assert equal >= 0.98 * len(ours)
    written = [file.read_text(errors="replace") for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert not any("a-token-of-this-test" in text for text in written)


async def _serve(token: str) -> None:
    engine = TransformersEngine(
        ModelSection(path=str(POLICY)),
        RolloutSection(),
        max_tokens=512,
    )
    await engine.start()

    async def answer(body: Body) -> list[dict[str, Any]]:
        params = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_k=max(0, body["top_k"]),
            seed=body["seed"],
            stop_token_ids=tuple(body["stop_token_ids"]),
        )
        prompt = encoded(body["prompt"])
        completion = await engine.generate(prompt, params, request_id=os.urandom(8).hex(), deadline=Deadline.after(200))
        return [
            chunk(completion.token_ids, [*completion.logprobs], str(completion.finish_reason), prompt_token_ids=prompt)
        ]

    server = OpenAIServer(token=token)
    server.sampler = answer
    async with served(server):
        print(server.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
