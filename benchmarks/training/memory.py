"""Peak memory of an actor on a CPU by phase, with the estimate of `agentrl.run.preflight.memory_model`.

    python -m benchmarks.training.memory [--width 768] [--layers 8] [--vocabulary 32768] [--tokens 512] [--dtype float32]

Phases: set-up, two updates, weights in shared memory, and an update while a checkpoint is written; all rows are full. Prints a
line of JSON, in GiB; `runtime` is the resident memory before the set-up.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.config.layout import Placement
from agentrl.config.schema.run import ActorSection, DataSection, ModelSection, RolloutSection, RunConfig
from agentrl.observability.peak_memory import take_peak_memory
from agentrl.run.preflight.memory import read_size
from agentrl.run.preflight.memory_model import GIB, Memory, memory_of_process, shared_weights
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel, ParallelContext, open_store
from agentrl.training.update.update_plan import plan_update
from benchmarks.training.workload import make_groups

_NUM_PROMPTS, _SAMPLES = 4, 4
_TRAJECTORIES_PER_ROW = 4


def save_model(folder: str, width: int, layers: int, vocabulary: int) -> None:
    """Write a random Qwen3; called in another process than the measured one."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 128),
        head_dim=64,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def measure(folder: str, *, tokens: int, dtype: Literal["float32", "bfloat16"]) -> dict[str, float]:
    """Return measured peaks and estimates of an actor, in GiB.

    Args:
        folder: folder of the model.
        tokens: tokens per row.
        dtype: type of the computation.
    """
    length = tokens // _TRAJECTORIES_PER_ROW // 2
    config = RunConfig(
        data=DataSection(max_prompt_tokens=length),
        model=ModelSection(path=folder, dtype=dtype),
        actor=ActorSection(max_tokens_per_micro_batch=tokens),
        rollout=RolloutSection(
            prompts_per_step=_NUM_PROMPTS,
            samples_per_prompt=_SAMPLES,
            max_response_tokens=length,
        ),
    )
    size = read_size(folder)
    assert size is not None
    sizes = {"model.path": size}
    estimate = memory_of_process(Placement(role="actor", num_processes=1), config, sizes, on_gpu=False)
    estimate += shared_weights(config, sizes)
    peaks = {"weights_millions": size.num_weights / 1e6, "runtime": take_peak_memory() / GIB}
    peaks |= _phases(config, [length] * _NUM_PROMPTS, [[length] * _SAMPLES] * _NUM_PROMPTS)
    return peaks | _estimates(estimate)


def _phases(config: RunConfig, prompts: list[int], responses: list[list[int]]) -> dict[str, float]:
    store = open_store("127.0.0.1")
    context = ParallelContext(rank=0, world_size=1, master_addr="127.0.0.1", master_port=store.port, store=store)
    actor, parallel = Actor(config, "actor"), Parallel(context)
    actor.setup(parallel)
    actor._packing = replace(actor._packing, share_prefixes=False)  # the estimate is that of the longest rows
    peaks = {"set_up": take_peak_memory() / GIB}
    groups = make_groups(random.Random(0), prompts=prompts, responses=responses)

    def update(step: int) -> float:
        [(shard, chosen)] = plan_update(groups, step=step, num_ranks=1, num_mini_batches=1)
        actor.update(shard, [trajectory.ref for trajectory in chosen], [TokenInputs()] * len(chosen))
        return take_peak_memory() / GIB

    peaks |= {"update_1": update(1), "update_2": update(2)}
    source = actor.publish_weights()
    assert source is not None
    with tempfile.TemporaryDirectory() as folder:
        actor.save(str(Path(folder) / "checkpoint"))
        peaks["update_3_and_checkpoint"] = update(3)
        actor.close()
    parallel.close()
    return peaks


def _estimates(estimate: Memory) -> dict[str, float]:
    update = estimate.at_most - estimate.copies
    return {"estimated_update": update / GIB, "estimated_with_checkpoint": estimate.at_most / GIB}


def main(words: Sequence[str] | None = None) -> None:
    """Build the model, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--tokens", type=int, default=512, help="tokens per row")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, options.width, options.layers, options.vocabulary)
        builder = multiprocessing.get_context("fork").Process(target=save_model, args=arguments)
        builder.start()
        builder.join()
        print(json.dumps(measure(folder, tokens=options.tokens, dtype=options.dtype)), flush=True)


if __name__ == "__main__":
    main()
