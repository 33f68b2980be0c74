"""Sampling speed of the embedded engine, compared with transformers' `generate` and continuous batching.

    python benchmarks/rollout/embedded_engine.py [--rounds 3] [--threads 1]

Two loads of 64 concurrent requests, on a random Qwen3 of 0.85M parameters:

- equal: 128 prompt tokens and 128 sampled tokens each, what `generate` is made for;
- turns: trajectories of 2 or 3 turns whose prompts, observations and answers differ in length, what agents do.

All sample from the full distribution at temperature 1; the two batching engines return log-probabilities, `generate`
the logits. Prints tokens sampled per second of CPU time (of all threads, so that what else runs on the machine counts
little), medians over interleaved rounds, and their ratios.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.types import Deadline, SamplingParams

VOCABULARY = 449
NUM_CONCURRENT = 64
Generate = Callable[[list[int], int], Awaitable[list[int]]]


def save_model(folder: str) -> None:
    """Write a random Qwen3 of 4 layers x 128 without an end-of-sequence token, so that lengths are known."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def random_tokens(rng: random.Random, count: int) -> list[int]:
    """Return `count` ids of the vocabulary."""
    return [rng.randrange(VOCABULARY) for _ in range(count)]


async def run_equal(generate: Generate, seed: int) -> int:
    """Sample 128 tokens for each of 64 prompts of 128; return the number of sampled tokens."""
    rng = random.Random(seed)
    replies = await asyncio.gather(*(generate(random_tokens(rng, 128), 128) for _ in range(NUM_CONCURRENT)))
    return sum(map(len, replies))


async def run_turns(generate: Generate, seed: int) -> int:
    """Run 64 trajectories of 2 or 3 turns; return the number of sampled tokens."""

    async def trajectory(index: int) -> int:
        rng = random.Random(seed * NUM_CONCURRENT + index)
        tokens, num_sampled = random_tokens(rng, rng.randint(64, 128)), 0
        for _ in range(rng.randint(2, 3)):
            reply = await generate(tokens, rng.randint(32, 96))
            num_sampled += len(reply)
            tokens = tokens + reply + random_tokens(rng, rng.randint(16, 48))
        return num_sampled

    return sum(await asyncio.gather(*(trajectory(index) for index in range(NUM_CONCURRENT))))


def time_generate(model: Qwen3ForCausalLM, seed: int) -> float:
    """Return the tokens per CPU second of `generate` on one batch of the equal load."""
    rng = random.Random(seed)
    prompts = torch.tensor([random_tokens(rng, 128) for _ in range(NUM_CONCURRENT)])
    start = time.process_time()
    output = model.generate(  # pyright: ignore[reportAttributeAccessIssue]  # its protocol does not fit its own models
        prompts,
        attention_mask=torch.ones_like(prompts),
        generation_config=GenerationConfig(
            max_new_tokens=128, do_sample=True, top_k=0, output_logits=True, return_dict_in_generate=True
        ),
    )
    num_sampled = output.sequences.numel() - prompts.numel()
    return num_sampled / (time.process_time() - start)


async def time_load(run: Callable[[Generate, int], Awaitable[int]], generate: Generate, seed: int) -> float:
    """Return the tokens per CPU second of one load."""
    start = time.process_time()
    num_sampled = await run(generate, seed)
    return num_sampled / (time.process_time() - start)


def engine_generate(engine: TransformersEngine) -> Generate:
    """Return the embedded engine as a `Generate`."""
    count = 0

    async def generate(token_ids: list[int], max_tokens: int) -> list[int]:
        nonlocal count
        count += 1
        completion = await engine.generate(
            token_ids,
            SamplingParams(max_tokens=max_tokens, seed=count),
            request_id=str(count),
            deadline=Deadline.after(600),
        )
        return completion.token_ids

    return generate


async def measure(folder: str, rounds: int, threads: int) -> dict[str, list[float]]:
    """Return the tokens per CPU second of every round of every system and load."""
    figures: dict[str, list[float]] = {}
    engine = TransformersEngine(
        ModelSection(path=folder),
        RolloutSection(max_concurrent_trajectories=NUM_CONCURRENT),
        max_tokens=1024,
        num_threads=threads,
    )
    await engine.start()
    plain, batching = (Qwen3ForCausalLM.from_pretrained(folder).eval() for _ in range(2))
    manager = batching.init_continuous_batching(
        GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=128),
        ContinuousBatchingConfig(num_blocks=256, page_size=256, max_batch_tokens=2048, return_logprobs=True),
    )
    manager.start()

    async def batching_generate(token_ids: list[int], max_tokens: int) -> list[int]:
        nonlocal count
        count += 1
        reply: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        manager.register_result_handler(str(count), lambda output: reply.set_result(output.generated_tokens))
        manager.add_request(token_ids, request_id=str(count), max_new_tokens=max_tokens)
        return await reply

    count = 0
    ours = engine_generate(engine)
    for seed in range(rounds + 1):
        row = {
            "equal generate": await asyncio.to_thread(time_generate, plain, seed),
            "equal batching": await time_load(run_equal, batching_generate, seed),
            "equal agentrl": await time_load(run_equal, ours, seed),
            "turns batching": await time_load(run_turns, batching_generate, seed),
            "turns agentrl": await time_load(run_turns, ours, seed),
        }
        for name, figure in row.items() if seed else ():  # the first round warms up
            figures.setdefault(name, []).append(figure)
    await engine.aclose()
    await asyncio.to_thread(manager.stop, block=True)
    return figures


def report(figures: dict[str, list[float]]) -> None:
    """Print medians and ratios."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    for name, values in figures.items():
        print(f"{name:16} {medians[name]:8.0f} tokens/CPU s   {' '.join(f'{value:.0f}' for value in values)}")
    for load, peer in (("equal", "generate"), ("equal", "batching"), ("turns", "batching")):
        ratio = medians[f"{load} agentrl"] / medians[f"{load} {peer}"]
        print(f"{load}: agentrl / {peer} = {ratio:.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        report(asyncio.run(measure(folder, options.rounds, options.threads)))


if __name__ == "__main__":
    main()
