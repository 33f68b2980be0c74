"""A mixture of experts in a real vLLM. Reference: transformers' own model of the same weights."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from agentrl.config.schema.run import ModelSection
from agentrl.errors import EngineError
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask_greedily
from tests.engine.vllm_engine.cases import CONTEXT, POLICY, PROMPT, actor_logprobs, rollout, weights_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]


def mixture(folder: Path, seed: int) -> str:
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for file in POLICY.glob("tokenizer*"):
        shutil.copy2(file, folder)
    return str(folder)


def test_experts_are_read_from_a_folder_and_new_ones_are_refused_on_a_cpu(
    tmp_path: Path, publisher: SharedMemoryPublisher
) -> None:
    """Its packed copies of them would stay those of the old policy."""
    from agentrl.engine.vllm.engine import VllmEngine

    folder = mixture(tmp_path, 1)

    async def answer() -> None:
        engine = VllmEngine(ModelSection(path=folder), rollout(), max_tokens=CONTEXT)
        await engine.start()
        try:
            completion = await ask_greedily(engine, PROMPT, 20)
            expected = actor_logprobs(folder, PROMPT, completion)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
            with pytest.raises(Exception, match="packed copies of experts"):
                await engine.load_weights(publisher.publish(weights_of(folder).items()), version=1)
        finally:
            await engine.aclose()

    asyncio.run(answer())


def test_experts_in_a_reply_of_vllm_become_those_of_the_completion() -> None:
    """The reply is made of vLLM's own records: its runner for CPUs records no experts."""
    from vllm.outputs import CompletionOutput, RequestOutput  # pyright: ignore[reportMissingImports]

    from agentrl.engine.vllm.engine import VllmEngine

    engine = VllmEngine(
        ModelSection(path="unused"), rollout().model_copy(update={"replay_routing": True}), max_tokens=CONTEXT
    )
    routed = np.arange(4 * 2 * 2, dtype=np.uint16).reshape(4, 2, 2)

    def reply(routed: np.ndarray | None) -> RequestOutput:
        sampled = CompletionOutput(
            index=0, text="", token_ids=[7, 8], cumulative_logprob=None, logprobs=None, routed_experts=routed
        )
        return RequestOutput(
            request_id="r",
            prompt=None,
            prompt_token_ids=[4, 5, 6],
            prompt_logprobs=None,
            outputs=[sampled],
            finished=True,
        )

    assert engine._experts(reply(routed), "r") == routed.tobytes()
    for wrong, words in ((None, "0"), (routed[:3], "3")):
        with pytest.raises(EngineError, match=f"request `r`: experts of {words} of 4 computed tokens"):
            engine._experts(reply(wrong), "r")


def test_vllm_itself_says_that_it_returns_no_experts_on_a_cpu(tmp_path: Path) -> None:
    from agentrl.engine.vllm.engine import VllmEngine

    async def start() -> None:
        engine = VllmEngine(
            ModelSection(path=mixture(tmp_path, 1)),
            rollout().model_copy(update={"replay_routing": True}),
            max_tokens=CONTEXT,
        )
        try:
            with pytest.raises(
                EngineError, match=r"(?s)vLLM does not start: .*AuxOutput Connector requires Model Runner V2"
            ):
                await engine.start()
        finally:
            await engine.aclose()

    asyncio.run(start())
