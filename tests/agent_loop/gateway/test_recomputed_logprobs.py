"""Log-probabilities of the embedded engine in all rows of an agent's trajectory, against those of the training pass."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import pack_trajectories
from agentrl.training.scoring.token_logprobs import score_tokens
from tests.agent_loop.gateway.gateway_stage import Calls, GatewayStage

POLICY = str(Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "policy")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "python_code_with_standard_io",
        "description": "Run Python.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}, "input": {"type": "string"}}},
    },
}


async def play(calls: Calls) -> None:
    """Append, compact, branch, and change the tools."""
    question = {
        "role": "user",
        "content": "Tom has 687 cards. Ann has 621 fewer than Tom. How many cards does Ann have?",
    }
    first = await calls.chat([question], tools=[TOOL])
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "66"} for c in first.get("tool_calls", ())]
    later = results or [{"role": "user", "content": "Sure?"}]
    second = await calls.chat([question, first, *later], tools=[TOOL])
    await calls.chat([question, first, *later, second, {"role": "user", "content": "Why?"}], tools=[TOOL])
    await calls.chat([question, first, *later, second, {"role": "user", "content": "How?"}], tools=[TOOL])
    await calls.chat([{"role": "user", "content": "Ann has 66 cards, and gives 6 away. How many has she?"}])


async def test_the_engines_logprobs_equal_those_of_training_in_every_row():
    engine = TransformersEngine(
        ModelSection(path=POLICY), RolloutSection(max_concurrent_trajectories=2), max_tokens=700
    )
    await engine.start()
    stage = GatewayStage.__new__(GatewayStage)
    stage.threads, stage.num_episodes = ThreadPoolExecutor(2), 0
    stage.tokens = ChatTokens(AutoTokenizer.from_pretrained(POLICY), [])
    try:
        trajectory = await stage.play(play, engine, max_row_tokens=700)
    finally:
        await engine.aclose()
    assert len(trajectory.row_starts) == 2
    [batch] = pack_trajectories([trajectory], [1.0], packing=Packing(max_tokens=4000))
    with torch.no_grad():
        scores = score_tokens(load_model(ModelSection(path=POLICY)), batch.tokens, temperature=1.0)
    difference = (scores.logprobs_N - batch.rollout_logprobs_N).abs()
    assert len(difference) == trajectory.num_response_tokens >= 20
    assert difference.max() <= 5e-6, difference.max()  # rounding of float32
