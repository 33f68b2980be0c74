"""A trajectory beyond the positions that a model names before YaRN, in a real vLLM. Reference: the actor's own forward pass."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from agentrl.config.schema.run import ModelSection
from tests.engine.engine_driver import ask_greedily
from tests.engine.vllm_engine.cases import CONTEXT, PROMPT, actor_logprobs, endless_policy, rollout

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]


def test_vllm_computes_positions_beyond_those_named_before_yarn(tmp_path: Path) -> None:
    from agentrl.engine.vllm.engine import VllmEngine

    folder = endless_policy(tmp_path / "model")
    config = Path(folder, "config.json")
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0}
    settings = {"max_position_embeddings": 80, "rope_parameters": yarn}
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))

    async def answer() -> None:
        engine = VllmEngine(ModelSection(path=folder), rollout(), max_tokens=CONTEXT)
        await engine.start()
        try:
            completion = await ask_greedily(engine, PROMPT, 200)
            assert len(completion.token_ids) == 200
            expected = actor_logprobs(folder, PROMPT, completion)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
        finally:
            await engine.aclose()

    asyncio.run(answer())
