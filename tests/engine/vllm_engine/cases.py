"""Helpers of the vLLM tests: prompts, models without an end token, and the actor's log-probabilities."""

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.models.tokenizer import load_tokenizer
from agentrl.training.model.decoder import export_model, load_model
from agentrl.training.packing.packing import pack_tokens
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.types import Completion

if TYPE_CHECKING:
    from agentrl.engine.vllm.engine import VllmEngine

REPOSITORY = Path(__file__).resolve().parents[3]
POLICY = REPOSITORY / "examples" / "arithmetic" / "policy"
CONTEXT = 512
PROMPT = [random.Random(0).randrange(3, 1000) for _ in range(40)]
LONG_PROMPT = [random.Random(1).randrange(3, 1000) for _ in range(200)]


def rollout(**changes: int) -> RolloutSection:
    """Return the section that the engines of these tests run with."""
    settings = {"max_concurrent_trajectories": 8}
    return RolloutSection(engine="vllm", **(settings | changes))  # pyright: ignore[reportArgumentType]


def endless_policy(folder: Path) -> str:
    """Copy the example's policy, without its end token, so that lengths are known."""
    shutil.copytree(POLICY, folder)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {"eos_token_id": None}))
    return str(folder)


def changed_policy(base: str, folder: Path, *, seed: int) -> str:
    """Export `base`, as an actor does, with every weight moved by about a tenth; the embedding is tied to the head."""
    model = load_model(ModelSection(path=base))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    assert model.config.tie_word_embeddings
    export_model(
        model, {name: weight.data for name, weight in model.named_parameters()}, ModelSection(path=base), str(folder)
    )
    return str(folder)


def greedy(folder: str, prompt: list[int], num_tokens: int) -> list[int]:
    """Return what transformers itself makes of a folder: its own loading, attention and search."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=num_tokens)
    return output[0, len(prompt) :].tolist()


def weights_of(folder: str) -> dict[str, torch.Tensor]:
    """The parameters as an actor publishes them: tied ones once."""
    return {name: p.data for name, p in load_model(ModelSection(path=folder)).named_parameters()}


def problems(count: int) -> list[list[int]]:
    """Prompts of the arithmetic task, in tokens."""
    tokenizer = load_tokenizer(str(POLICY))
    lines = (POLICY.parent / "train.jsonl").read_text().splitlines()[:count]
    texts = [
        tokenizer.apply_chat_template(json.loads(line)["prompt"], add_generation_prompt=True, tokenize=False)
        for line in lines
    ]
    return [tokenizer(str(text), add_special_tokens=False)["input_ids"] for text in texts]


def actor_logprobs(folder: str, prompt: list[int], completion: Completion, *, temperature: float = 1.0) -> torch.Tensor:
    """Return the actor's log-probabilities of the sampled tokens, [tokens], float32."""
    example = TokenisedExample(
        token_ids=prompt + completion.token_ids,
        response_mask=[0] * len(prompt) + [1] * len(completion.token_ids),
    )
    with torch.inference_mode():
        model = load_model(ModelSection(path=folder))
        return score_tokens(model, pack_tokens([example]), temperature=temperature).logprobs_N


def core_process(engine: "VllmEngine") -> psutil.Process:
    """Return the process that computes."""
    assert engine._llm is not None
    manager: Any = engine._llm.engine_core.resources.engine_manager
    return psutil.Process(manager.processes[0].pid)
