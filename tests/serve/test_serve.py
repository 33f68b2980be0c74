"""The real command, driven by plain HTTP clients: engines, judge, tools and reward as in a training run."""

import asyncio
import json
import math
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from aiohttp.test_utils import unused_port
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.runners.run_process import SIGNALS, alive, finish_run, running, wait_until
from tests.serve.conftest import RealService, wait_until_ready
from tests.serve.noted_tool import SLOW

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(300)]

ROWS = [json.loads(line) for line in Path("examples/arithmetic/train.jsonl").read_text().splitlines()]


def roll_out(url: str, prompts: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    reply = httpx.post(f"{url}/v1/rollouts", json={"prompts": prompts} | fields, timeout=200)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def sampled(lines: list[dict[str, Any]]) -> dict[str, list[int]]:
    return {f"{line['prompt_id']}-{line['sample_index']}": line["token_ids"] for line in lines[:-1]}


def engine_load(url: str) -> dict[str, Any]:
    return httpx.get(f"{url}/v1/status").json()["engines"][0]


def test_the_request_on_the_page_is_answered_by_curl(real_service: RealService, tmp_path: Path):
    page = Path("docs/service.md").read_text()
    (tmp_path / "request.json").write_text(page.partition("```json\n")[2].partition("```")[0])
    command = ["curl", "--silent", "--fail", "--json", "@request.json", f"{real_service.url}/v1/rollouts"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    *lines, summary = map(json.loads, output.splitlines())
    assert summary["num_trajectories"] == len(lines) == 8
    assert {line["prompt_id"] for line in lines} == {"sum", "cards"}


def test_the_log_probabilities_are_those_of_the_policy_and_tool_tokens_are_not_sampled(
    real_service: RealService, policy: Path
):
    httpx.post(f"{real_service.url}/v1/weights", json={"path": str(policy)}).raise_for_status()
    *lines, _ = roll_out(real_service.url, ROWS[:8], samples_per_prompt=4)
    model = AutoModelForCausalLM.from_pretrained(policy)
    assert any(line["turns"][0]["results"] for line in lines)
    for line in lines:
        with torch.no_grad():
            logits = model(torch.tensor([line["token_ids"]])).logits[0].log_softmax(-1)
        own = [math.nan] + [logits[at, token].item() for at, token in enumerate(line["token_ids"][1:])]
        for mask, ours, theirs in zip(line["response_mask"], own, line["rollout_logprobs"], strict=True):
            assert (theirs is None) == (mask == 0)
            assert theirs is None or theirs == pytest.approx(ours, abs=1e-4)


def test_equal_seeds_give_equal_trajectories_and_others_differ(real_service: RealService):
    first, second, other = (sampled(roll_out(real_service.url, ROWS[:6], seed=seed)) for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_greedy_sampling_of_a_request_makes_its_samples_equal(real_service: RealService):
    lines = roll_out(real_service.url, ROWS[:3], samples_per_prompt=3, sampling={"temperature": 0})
    for index in range(3):
        assert len({tuple(line["token_ids"]) for line in lines if line.get("prompt_id") == str(index)}) == 1


def test_new_weights_change_what_is_sampled_and_every_line_carries_their_version(
    real_service: RealService, policy: Path, tmp_path: Path
):
    shutil.copytree(policy, tmp_path / "other")
    weights = load_file(policy / "model.safetensors")
    save_file({name: tensor * 0.7 for name, tensor in weights.items()}, tmp_path / "other" / "model.safetensors")

    def after(folder: Path) -> tuple[int, list[dict[str, Any]]]:
        reply = httpx.post(f"{real_service.url}/v1/weights", json={"path": str(folder)}, timeout=60)
        lines = roll_out(real_service.url, ROWS[:8], samples_per_prompt=2, seed=1)
        return reply.json()["policy_version"], lines

    (one_version, before), (other_version, changed), (_, restored) = map(after, (policy, tmp_path / "other", policy))
    assert other_version == one_version + 1
    assert {line["policy_version"] for line in changed[:-1]} == {other_version}
    assert engine_load(real_service.url)["policy_version"] == other_version + 1
    assert sampled(before) == sampled(restored) != sampled(changed)


def test_weights_of_another_model_are_refused_and_nothing_has_changed(real_service: RealService):
    before = engine_load(real_service.url)["policy_version"]
    other = Path("examples/arithmetic/reward_model").absolute()
    reply = httpx.post(f"{real_service.url}/v1/weights", json={"path": str(other)})
    assert reply.status_code == 400
    assert "score.weight" in reply.json()["error"]
    assert engine_load(real_service.url)["policy_version"] == before


def noted(service: RealService, kind: str) -> set[str]:
    return {file.stem for file in service.noted.glob(f"*.{kind}")}


async def test_a_client_that_leaves_ends_the_sessions_of_tools_in_the_middle_of_a_call(real_service: RealService):
    before = noted(real_service, "begun")
    (real_service.noted / SLOW).touch()
    try:
        body = {"prompts": ROWS[:32], "samples_per_prompt": 2}
        async with httpx.AsyncClient(timeout=60) as client:
            async with client.stream("POST", f"{real_service.url}/v1/rollouts", json=body):
                while len(begun := noted(real_service, "begun") - before) < 10:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not begun & noted(real_service, "ended")
            left_at = time.monotonic()
            while noted(real_service, "begun") - noted(real_service, "ended"):
                assert time.monotonic() < left_at + 10  # a call takes 60 s
                await asyncio.sleep(0.01)
    finally:
        (real_service.noted / SLOW).unlink()


async def test_a_client_that_leaves_frees_the_engine(real_service: RealService):
    """Also what has not been admitted yet: far more trajectories than the engine takes at once."""
    body = {"prompts": ROWS[:64], "samples_per_prompt": 32}
    before = engine_load(real_service.url)["num_generated_tokens"]
    async with httpx.AsyncClient(timeout=60) as client:
        async with client.stream("POST", f"{real_service.url}/v1/rollouts", json=body) as reply:
            await anext(reply.aiter_lines())
            left_at = time.monotonic()
        generated = [-1, 0]
        while generated[-1] != generated[-2]:  # cancellations travel through two processes
            assert time.monotonic() < left_at + 30
            generated.append(engine_load(real_service.url)["num_generated_tokens"])
            await asyncio.sleep(0.5)
        status = (await client.get(f"{real_service.url}/v1/status")).json()
    assert status["num_requests"] == status["num_open_trajectories"] == 0
    assert status["engines"][0]["num_running"] == status["engines"][0]["num_waiting"] == 0
    assert generated[-1] - before < 64 * 32 * 2  # fourteen each, if they had been played
    assert len(roll_out(real_service.url, ROWS[:2])) == 3


def test_an_engine_that_dies_comes_back_with_the_weights_it_had_and_no_trajectory_is_lost(
    real_service: RealService, policy: Path
):
    reply = httpx.post(f"{real_service.url}/v1/weights", json={"path": str(policy)}, timeout=60)
    version = reply.json()["policy_version"]
    replies: list[list[dict[str, Any]]] = []
    client = threading.Thread(
        target=lambda: replies.append(roll_out(real_service.url, ROWS[:64], samples_per_prompt=8))
    )
    client.start()
    wait_until(lambda: engine_load(real_service.url)["num_running"] > 0)
    [engine] = [process for process in real_service.run.family() if "EngineWorker" in " ".join(process.cmdline())]
    engine.kill()
    client.join(200)
    *lines, summary = replies[0]
    assert summary["num_scored"] == 64 * 8
    assert any(line["num_retries"] for line in lines)
    assert {line["policy_version"] for line in lines} == {version}
    assert engine_load(real_service.url)["policy_version"] == version


def test_check_calls_tools_and_reward_and_starts_nothing(tmp_path: Path):
    output = finish_run(tmp_path / "run", "--check", "service.port=0", module="agentrl.serve")
    assert "print(1)" in output
    assert "scores 1, an empty answer 0" in output
    assert "FSDP" not in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGKILL", marks=pytest.mark.soak)])
def test_a_signal_ends_the_service_and_everything_that_it_started(name: str, tmp_path: Path):
    port = unused_port()
    with running(tmp_path / "run", f"service.port={port}", module="agentrl.serve") as run:
        wait_until_ready(run, f"http://127.0.0.1:{port}")
        family = run.family()
        ended: list[str] = []

        def ask() -> None:
            try:
                roll_out(f"http://127.0.0.1:{port}", ROWS[:64], samples_per_prompt=32)
            except httpx.HTTPError as error:
                ended.append(type(error).__name__)

        client = threading.Thread(target=ask)
        client.start()
        wait_until(lambda: engine_load(f"http://127.0.0.1:{port}")["num_running"] > 0)
        run.signal(SIGNALS[name])
        assert run.process.wait(60) == (130 if name == "SIGINT" else -9)
        client.join(30)
        assert ended == ["RemoteProtocolError"]
        assert wait_until(lambda: not alive(family), timeout_s=30), alive(family)
