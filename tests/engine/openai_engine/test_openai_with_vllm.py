"""The engine against a server that is not ours: vLLM's own, over HTTP. Reference: the actor's own forward pass."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import torch

from agentrl.config.schema.run import ModelSection, OpenAIEngineSection, RolloutSection
from agentrl.engine.openai.engine import OpenAIEngine
from agentrl.errors import EngineError
from agentrl.types import FinishReason
from tests.engine.engine_driver import ask, ask_greedily
from tests.engine.vllm_engine.cases import CONTEXT, PROMPT, actor_logprobs, endless_policy, problems

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

NAME, TOKEN, TOKEN_ENV = "arithmetic", "open-sesame", "TEST_OPENAI_WITH_VLLM_TOKEN"
_START_LIMIT_S = 400.0
_FLAGS = [
    *("--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", "0", "--api-key", TOKEN),
    *("--served-model-name", NAME),
    *("--max-model-len", str(CONTEXT), "--max-num-seqs", "8", "--logprobs-mode", "processed_logprobs"),
    # Prompts in parts kill vLLM's core on CPU where requests have seeds.
    *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return endless_policy(tmp_path_factory.mktemp("served") / "policy")


@pytest.fixture(scope="module")
def address(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`http://127.0.0.1:PORT` of a server that is ready."""
    log = tmp_path_factory.mktemp("server") / "log"
    settings = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TMPDIR": str(log.parent),
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", policy, *_FLAGS]
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = _ready_address(server, log)
        _sample_once(address)
        yield address
    finally:
        for process in (*psutil.Process(server.pid).children(recursive=True), server):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()


def _ready_address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until one of the ports that the server listens on answers as it should: it chooses them itself."""
    limit = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < limit:
        assert server.poll() is None, log.read_text()
        for connection in psutil.Process(server.pid).net_connections("tcp4"):
            address = f"http://127.0.0.1:{connection.laddr.port}"
            if connection.status == psutil.CONN_LISTEN and _answers(f"{address}/health"):
                return address
        time.sleep(0.2)
    raise AssertionError(f"not ready in {_START_LIMIT_S:g} s: {log.read_text()}")


def _sample_once(address: str) -> None:
    """Wait for the first completions of each kind, which take much longer than any other: vLLM compiles its samplers."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    for sampling in ({"temperature": 0.0}, {"temperature": 2.0, "top_k": 1}, {"seed": 1, "top_k": -1}):
        body = json.dumps({"model": NAME, "prompt": PROMPT, "max_tokens": 2, "logprobs": 1, **sampling}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/completions", body, headers), timeout=300):
            pass


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except (OSError, ValueError, urllib.error.URLError):
        return False


@pytest_asyncio.fixture
async def engine(address: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenAIEngine]:
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    section = OpenAIEngineSection(base_urls=[f"{address}/v1"], token_env=TOKEN_ENV)
    rollout = RolloutSection(engine="openai", openai=section)
    engine = OpenAIEngine(ModelSection(path=policy), rollout, max_tokens=CONTEXT)
    await engine.start()
    yield engine
    await engine.aclose()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_vllm_gives_the_ids_and_the_logprobs_of_what_it_sampled(
    engine: OpenAIEngine, policy: str, temperature: float
) -> None:
    prompts = problems(6)
    calls = (ask(engine, p, 60, name=str(i), seed=i, temperature=temperature) for i, p in enumerate(prompts))
    for prompt, answer in zip(prompts, await asyncio.gather(*calls), strict=True):
        assert 0 < len(answer.token_ids) <= 60
        expected = actor_logprobs(policy, prompt, answer, temperature=temperature)
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)


async def test_vllm_gives_a_seed_the_same_tokens_again(engine: OpenAIEngine) -> None:
    first, second = [await ask(engine, PROMPT, 40, seed=7) for _ in range(2)]
    assert first.token_ids == second.token_ids != (await ask(engine, PROMPT, 40, seed=8)).token_ids


async def test_a_stop_token_of_vllm_is_part_of_the_completion(engine: OpenAIEngine) -> None:
    free = (await ask_greedily(engine, PROMPT, 40)).token_ids
    completion = await ask(engine, PROMPT, 40, temperature=0.0, stop_token_ids=(free[20],))
    assert completion.token_ids == free[: free.index(free[20]) + 1]
    assert completion.finish_reason is FinishReason.STOP


async def test_vllm_stops_sampling_what_was_aborted(engine: OpenAIEngine, address: str) -> None:
    tasks = [asyncio.create_task(ask_greedily(engine, PROMPT, 400, name=str(i))) for i in range(4)]
    await _until_running(address, 4)
    for name in range(4):
        await engine.abort(str(name))
    for completion in await asyncio.gather(*tasks):
        assert completion.finish_reason is FinishReason.ABORT
        assert len(completion.token_ids) == len(completion.logprobs) < 400
    await _until_running(address, 0)


async def test_vllm_refuses_a_client_without_its_token(
    address: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "wrong")
    section = OpenAIEngineSection(base_urls=[f"{address}/v1"], token_env=TOKEN_ENV)
    rollout = RolloutSection(engine="openai", openai=section)
    stranger = OpenAIEngine(ModelSection(path=policy), rollout, max_tokens=CONTEXT)
    with pytest.raises(EngineError, match=r"HTTP 401.*`rollout\.openai\.token_env`"):
        await stranger.start()


async def _until_running(address: str, count: int) -> None:
    """Wait until vLLM's own statistics say that so many requests run."""
    async with asyncio.timeout(120):
        while await asyncio.to_thread(_num_running, address) != count:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.02)


def _num_running(address: str) -> int:
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{")))
