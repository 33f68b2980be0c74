"""One real update on a GPU: bfloat16, NCCL, FSDP2.

Needs only torch, transformers and pytest, so that it also runs in a plain CUDA image:
`python -m pytest -c /dev/null --rootdir . -p no:cacheprovider tests/training/update/test_gpu_update.py`.
Settings are plain namespaces here, because the typed sections need OmegaConf.
"""

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.training.actor import Actor
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import pack_trajectories
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.reference import Reference
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.update.update_plan import plan_update
from agentrl.weight_sync.transports.shared_memory import read_tensors
from tests.training.training_cases import alone, make_group, make_policy

ON_GPU = torch.cuda.is_available()

ACTOR: Any = SimpleNamespace(
    learning_rate=0.02,  # a smaller step would be lost when weights near 1 are rounded to bfloat16
    warmup_steps=0,
    decay_steps=0,
    final_learning_rate_fraction=0.1,
    weight_decay=0.01,
    max_grad_norm=1.0,
    epochs_per_step=1,
    max_tokens_per_micro_batch=128,
    activation_checkpointing=False,
    shard_size=0,
    cpu_offload=False,
    compile=False,
    liger=False,
    router_aux_loss_coef=0.0,
    lora=SimpleNamespace(rank=0),
)


def algorithm(kl_coefficient: float) -> Any:
    return SimpleNamespace(
        advantage="grpo",
        normalise_by_std=True,
        policy_loss="ppo",
        aggregation="token_mean",
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_dual=0.0,
        kl_coefficient=kl_coefficient,
        kl_in_reward=False,
        kl_target=0.0,
        kl_estimator="k3",
        entropy_coefficient=0.0,
        rollout_correction=SimpleNamespace(method="none"),
    )


def model_at(folder: Path, dtype: str) -> Any:
    return SimpleNamespace(path=str(folder), dtype=dtype)


def weights_of(actor: Actor) -> dict[str, Tensor]:
    source = actor.publish_weights()
    assert source is not None
    return {name: tensor.clone() for name, tensor in read_tensors(source)}


def update_once(folder: Path, dtype: str, *, kl_coefficient: float = 0.0) -> tuple[dict[str, float], dict[str, Tensor]]:
    config: Any = SimpleNamespace(
        run=SimpleNamespace(seed=0),
        model=model_at(folder, dtype),
        actor=ACTOR,
        algorithm=algorithm(kl_coefficient),
        cluster=SimpleNamespace(check_weights=True),
        rollout=SimpleNamespace(temperature=1.0, max_response_tokens=64, replay_routing=False),
    )
    parallel = Parallel(alone())
    actor, reference = Actor(config, "actor"), Reference(config, "ref")
    for component in (actor, reference):
        component.setup(parallel)
    draws = random.Random(0)
    groups = [make_group(draws, f"p{index}", 8) for index in range(3)]
    [(shard, refs)] = plan_update(groups, step=1, num_ranks=1, num_mini_batches=2)
    trajectories = [trajectory.ref for trajectory in refs]
    ref_logprobs = reference.logprobs(trajectories) if kl_coefficient else [None] * len(trajectories)
    metrics = actor.update(shard, trajectories, [TokenInputs(ref_logprobs=logprobs) for logprobs in ref_logprobs])
    weights = weights_of(actor)
    actor.save(str(folder / f"checkpoint_{dtype}_{kl_coefficient}"))
    actor.close()
    parallel.close()
    return metrics, weights


@pytest.mark.skipif(ON_GPU, reason="the tests below make the same update")
def test_an_update_reads_no_missing_setting(tmp_path: Path):
    """Keep the settings of this file complete on machines without a GPU, where its other tests do not run."""
    metrics, _ = update_once(make_policy(tmp_path), "float32", kl_coefficient=0.1)
    assert math.isfinite(metrics["actor/kl_reference"])


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="no CUDA device")
def test_a_bfloat16_update_is_close_to_float32(tmp_path: Path):
    folder = make_policy(tmp_path)
    start = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    exact, _ = update_once(folder, "float32")
    metrics, weights = update_once(folder, "bfloat16")
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["actor/entropy"] == pytest.approx(exact["actor/entropy"], rel=0.02)
    assert metrics["actor/grad_norm"] == pytest.approx(exact["actor/grad_norm"], rel=0.1)
    assert metrics["actor/memory_bytes_max"] > 0
    for name, tensor in weights.items():
        assert tensor.dtype == torch.bfloat16
        assert not torch.equal(tensor, start[name].bfloat16()), f"{name} did not move"


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="no CUDA device")
def test_the_kl_term_works_with_a_reference_on_the_same_gpu(tmp_path: Path):
    metrics, _ = update_once(make_policy(tmp_path), "bfloat16", kl_coefficient=0.1)
    assert math.isfinite(metrics["actor/kl_reference"])


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="no CUDA device")
def test_packed_attention_on_the_gpu_equals_the_cpu(tmp_path: Path):
    model = load_model(model_at(make_policy(tmp_path), "float32"))
    draws = random.Random(0)
    trajectories = [trajectory.ref for trajectory in make_group(draws, "p", 8).trajectories]
    [batch] = pack_trajectories(trajectories, [0.0] * 8, packing=Packing(max_tokens=10_000))
    with torch.no_grad():
        on_cpu = score_tokens(model, batch.tokens, temperature=1.0).logprobs_N
        device = torch.device("cuda")
        torch.nn.Module.cuda(model)
        on_gpu = score_tokens(model, batch.to(device, None).tokens, temperature=1.0).logprobs_N
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=1e-4, rtol=0)
