"""Tiny models and recorded trajectories for the tests of this folder and the processes that they start."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.parallel import ParallelContext, open_store
from agentrl.types import (
    Group,
    Termination,
    Trajectory,
    TrajectoryRef,
    TrajectorySummary,
)
from tests.summaries import short_summary

VOCABULARY = 48
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
FAMILIES = {
    "qwen3": Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=False),
    "llama": LlamaConfig(**SIZES, num_key_value_heads=4, tie_word_embeddings=False),
}


def make_policy(folder: Path, config: Any = None) -> Path:
    """Write a random model with far from uniform probabilities, and a tokenizer."""
    torch.manual_seed(0)
    config = config or Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


def make_example(draws: random.Random, length: int) -> TokenisedExample:
    """Return random tokens: a prompt, then sampled tokens with observation tokens among them."""
    mask = [0] * (length // 3) + [1] * (length - length // 3)
    mask[length // 2 : length // 2 + length // 6] = [0] * (length // 6)
    return TokenisedExample(token_ids=[draws.randrange(VOCABULARY) for _ in range(length)], response_mask=mask)


def make_trajectory(draws: random.Random, index: int, *, prompt_id: str = "p", length: int = 24) -> Trajectory:
    """Return a trajectory of random tokens with random rollout log-probabilities."""
    example = make_example(draws, length)
    return Trajectory(
        trajectory_id=f"{prompt_id}/{index}",
        prompt_id=prompt_id,
        sample_index=index,
        token_ids=example.token_ids,
        num_prompt_tokens=length // 3,
        response_mask=example.response_mask,
        rollout_logprobs=[-draws.uniform(1, 5) if sampled else float("nan") for sampled in example.response_mask],
        version_spans=((length // 3, 0),),
        turns=(),
        termination=Termination.ANSWERED,
        reward=float(index % 3 == 0),
    )


def make_group(draws: random.Random, prompt_id: str, size: int) -> Group:
    """Return a group of trajectories of different lengths; every third one is solved."""
    trajectories = [
        make_trajectory(draws, index, prompt_id=prompt_id, length=draws.randrange(12, 40)) for index in range(size)
    ]
    refs = [TrajectoryRef(summary=summary_of(trajectory), ref=trajectory) for trajectory in trajectories]
    return Group(prompt_id=prompt_id, trajectories=refs)


def step_groups() -> list[Group]:
    """Return three groups, each with its own prompt of 12 tokens."""
    draws = random.Random(5)
    groups = []
    for number in range(3):
        group = make_group(draws, f"p{number}", 5)
        prompt = [draws.randrange(48) for _ in range(12)]
        trajectories = [
            replace(
                trajectory.ref,
                token_ids=prompt + trajectory.ref.token_ids,
                num_prompt_tokens=12,
                response_mask=[0] * 12 + [1] + trajectory.ref.response_mask[1:],
                rollout_logprobs=[float("nan")] * 12 + [-2.0] + trajectory.ref.rollout_logprobs[1:],
            )
            for trajectory in group.trajectories
        ]
        refs = [TrajectoryRef(summary=summary_of(trajectory), ref=trajectory) for trajectory in trajectories]
        groups.append(Group(prompt_id=group.prompt_id, trajectories=refs))
    return groups


def with_experts(trajectory: Trajectory, dtype: DTypeLike = np.uint8) -> Trajectory:
    """Return the trajectory with two of four experts per token and layer; a prompt's depend only on the prompt."""
    draws = {
        True: random.Random(trajectory.prompt_id),
        False: random.Random(trajectory.trajectory_id),
    }
    rows = [
        [draws[place < trajectory.num_prompt_tokens].sample(range(4), 2) for _ in range(SIZES["num_hidden_layers"])]
        for place in range(len(trajectory.token_ids) - 1)
    ]
    return replace(trajectory, experts=np.array(rows, dtype=dtype).tobytes())


def advantage_of(group: int, member: int) -> float:
    """Return a different advantage for each trajectory of `step_groups`."""
    return (-1.0) ** member * (1 + group + 0.1 * member)


def summary_of(trajectory: Trajectory) -> TrajectorySummary:
    return short_summary(
        trajectory.prompt_id,
        trajectory.sample_index,
        reward=trajectory.reward,
        trajectory_id=trajectory.trajectory_id,
        termination=trajectory.termination,
        num_tokens=len(trajectory.token_ids),
        num_response_tokens=trajectory.num_response_tokens,
    )


def alone() -> ParallelContext:
    """Return the context of the only rank of a group."""
    store = open_store("127.0.0.1")
    return ParallelContext(rank=0, world_size=1, master_addr="127.0.0.1", master_port=store.port, store=store)
