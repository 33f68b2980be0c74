"""A random model and recorded trajectories for the benchmarks of updates."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl.types import Group, Termination, Trajectory, TrajectoryRef, TrajectorySummary

VOCABULARY = 2048


def save_model(folder: str, *, width: int, layers: int) -> None:
    """Write a random Qwen3 and a tokenizer."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2")
    tokenizer.save_pretrained(Path(folder))


def make_groups(draws: random.Random, *, prompts: list[int], responses: list[list[int]]) -> list[Group]:
    """Return a group for each prompt length, with trajectories of these response lengths; a third of them are solved."""
    return [
        _group(draws, f"p{number}", prompt, lengths)
        for number, (prompt, lengths) in enumerate(zip(prompts, responses, strict=True))
    ]


def _group(draws: random.Random, prompt_id: str, prompt: int, lengths: list[int]) -> Group:
    start = _tokens(draws, prompt)
    refs = []
    for index, length in enumerate(lengths):
        trajectory = Trajectory(
            trajectory_id=f"{prompt_id}/{index}",
            prompt_id=prompt_id,
            sample_index=index,
            token_ids=[*start, *_tokens(draws, length)],
            num_prompt_tokens=prompt,
            response_mask=[0] * prompt + [1] * length,
            rollout_logprobs=[float("nan")] * prompt + [-draws.uniform(6, 9) for _ in range(length)],
            version_spans=((prompt, 0),),
            turns=(),
            termination=Termination.ANSWERED,
            reward=float(index % 3 == 0),
        )
        refs.append(TrajectoryRef(summary=_summary(trajectory), ref=trajectory))
    return Group(prompt_id=prompt_id, trajectories=refs)


def _tokens(draws: random.Random, count: int) -> list[int]:
    return [draws.randrange(3, VOCABULARY) for _ in range(count)]


def _summary(trajectory: Trajectory) -> TrajectorySummary:
    return TrajectorySummary(
        trajectory_id=trajectory.trajectory_id,
        prompt_id=trajectory.prompt_id,
        sample_index=trajectory.sample_index,
        reward=trajectory.reward,
        termination=trajectory.termination,
        num_tokens=len(trajectory.token_ids),
        num_response_tokens=trajectory.num_response_tokens,
        num_turns=1,
        num_tool_calls=0,
        num_failed_tool_calls=0,
        num_answer_tags=1,
        num_retries=0,
        wall_time_s=0.0,
        policy_version=0,
    )
