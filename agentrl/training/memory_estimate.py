"""How much memory the models of a run take, before any of them is loaded. Pure functions, without torch.

What is certain (weights, gradients, optimiser, the engine's copy, a KV cache of a given size) is kept apart from what may be
taken at most (a KV cache that grows, activations, copies, what the allocator keeps).

With N weights over R ranks, of which G are gathered at once, b bytes in the type of the computation and T tokens in the longest
row, a rank that trains all weights takes at most

    runtime + a (16 N / R + b G + (b + 4) G' + b T K + 8 C) + 12 N / R,

where 16 are the bytes of weight, gradient and AdamW's two moments; G is N on a single rank, which gathers all weights for an
update, else the embedding, the head and two layers; G' is the largest group, whose gradients are reduced; K is what the layers
keep of a token; C is a chunk of logits; 12 are the bytes of the copy for a checkpoint, on the host; and a is 1 on a GPU, and
1 + `_ALLOCATOR_SHARE` on a CPU. `benchmarks/training/memory.py` compares it with measured peaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from agentrl.config.layout import Placement
from agentrl.config.schema import RunConfig

GIB = 2**30
_MASTER_BYTES = 4
"""What is trained, its gradients and both moments of AdamW are float32, whatever the type of the computation."""
_LOGIT_ARRAYS = 2
"""Arrays of a chunk of logits that exist at once in the backward pass."""
_CHUNK_LOGITS = {True: 2**28, False: 2**25}
"""Logits that exist at once, with a GPU or without (`agentrl.training.vocabulary`)."""

_ALLOCATOR_SHARE = 0.35
"""Share of a model's memory on a CPU that glibc keeps in pieces after it was freed (three sizes measured)."""
_RUNTIME_BYTES = {True: 0.75 * GIB, False: 0.375 * GIB}
"""Bytes of each process: on a GPU its CUDA context, else Python and the libraries."""

_TRAINED = ("actor", "critic")
"""The other models are asked only: what a layer of theirs has computed is gone when the next has."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What of a model decides how much memory it takes; of an 8B model, about `num_weights=8 * 10**9, num_layers=36, ...`."""

    num_weights: int
    """Of the language model with its head; tied weights count once."""
    vocabulary: int
    num_layers: int
    width: int
    heads_width: int
    """All query heads of a layer side by side."""
    kv_width: int
    """All key heads of a layer side by side; the value heads take as much."""
    inner_width: int
    """Of the feed-forward part; with experts, of those that a token goes through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, by what takes them. Added up where processes share a device."""

    weights: float = 0.0
    """Of everything that is trained or asked, sharded."""
    gradients: float = 0.0
    optimiser: float = 0.0
    engine: float = 0.0
    """The engine's copy of the policy."""
    kv_cache: float = 0.0
    """Of a size that the config gives."""
    checkpoint: float = 0.0
    """The copy of what is trained that is written while training goes on; always in the memory of the host."""
    shared_weights: float = 0.0
    """The copy of what the actor publishes that the engines of a machine map, in the memory of the host."""
    kv_cache_at_most: float = 0.0
    """Of the embedded engine, which takes what its sequences need."""
    activations_at_most: float = 0.0
    """Of the largest micro-batch, with its logits where there are some."""
    gathered_at_most: float = 0.0
    """Whole weights that a rank computes with, and whole gradients of the group that is reduced."""
    allocator_at_most: float = 0.0
    """Freed memory that the allocator of the host keeps."""
    runtime_at_most: float = 0.0
    """Memory of the processes themselves."""

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(Memory)})

    def times(self, number: float) -> "Memory":
        """Return what `number` such processes take."""
        return Memory(**{item.name: getattr(self, item.name) * number for item in fields(Memory)})

    def in_turns(self, other: "Memory") -> "Memory":
        """Return what two take that never compute at the same time, and leave nothing of it behind."""
        return replace(
            self + other,
            gradients=max(self.gradients, other.gradients),
            activations_at_most=max(self.activations_at_most, other.activations_at_most),
            gathered_at_most=max(self.gathered_at_most, other.gathered_at_most),
        )

    def in_updates(self) -> "Memory":
        """Return what is there while engines sleep: nothing of theirs."""
        return replace(self, engine=0.0, kv_cache=0.0, kv_cache_at_most=0.0)

    def in_rollouts(self) -> "Memory":
        """Return what is there while nothing is trained or scored; while weights are synced, it is this without a KV cache."""
        return replace(self, gradients=0.0, activations_at_most=0.0, gathered_at_most=0.0)

    @property
    def certain(self) -> float:
        """What is taken in any case."""
        models = self.weights + self.gradients + self.optimiser + self.checkpoint + self.shared_weights
        return models + self.engine + self.kv_cache

    @property
    def in_a_full_row(self) -> float:
        """Bytes taken once a row is as long as it may be, as the first long trajectories make it."""
        return self.at_most - self.kv_cache_at_most

    @property
    def at_most(self) -> float:
        """What may be taken."""
        return sum(getattr(self, item.name) for item in fields(Memory))

    def describe(self) -> str:
        """Return the parts as text, largest first: `weights 32.0, optimiser 64.0 GiB`."""
        parts = {item.name.replace("_", " "): getattr(self, item.name) / GIB for item in fields(Memory)}
        ordered = sorted(parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {amount:.2f}" for name, amount in ordered if amount) + " GiB"


def memory_of_process(
    placement: Placement, config: RunConfig, sizes: Mapping[str, ModelSize], *, on_gpu: bool
) -> Memory:
    """Return what each process of a role takes, on its device; an engine on several GPUs, on each of them.

    Args:
        placement: the role, and over how many processes its models are sharded.
        config: the whole, checked tree.
        sizes: of the models, by the key that names each: `model.path`, and `critic.path` and `reward.model.path` where set.
        on_gpu: whether the device is a GPU.
    """
    total = _models(placement, config, sizes)
    if on_gpu:
        total = Memory() if config.actor.cpu_offload else replace(total, checkpoint=0.0)
    for component in placement.components:
        if component == "rollout":
            total += _engine(sizes["model.path"], config, on_gpu=on_gpu)
        else:
            size = _size_of(component, sizes)
            activations = _activations(component, config, size, on_gpu=on_gpu)
            gathered = _gathered(component, placement, config, size)
            total = total.in_turns(Memory(activations_at_most=activations, gathered_at_most=gathered))
    computed_with = (
        total.weights + total.gradients + total.optimiser + total.activations_at_most + total.gathered_at_most
    )
    kept = 0.0 if on_gpu else _ALLOCATOR_SHARE * computed_with
    return replace(total, allocator_at_most=kept, runtime_at_most=_RUNTIME_BYTES[on_gpu])


def _gathered(component: str, placement: Placement, config: RunConfig, size: ModelSize) -> float:
    """Return what a rank holds of whole weights in one pass, and of whole gradients while they are reduced."""
    each, is_frozen = DTYPE_BYTES[config.model.dtype], component == "actor" and config.actor.lora.rank > 0
    root = min(size.num_weights, 2 * size.vocabulary * size.width)  # embedding and head, which are gathered together
    layer = max(0, size.num_weights - root) / size.num_layers
    if component not in _TRAINED or is_frozen:
        return each * (root + 2 * layer)
    is_alone = placement.num_processes == 1 and not config.actor.cpu_offload
    whole = size.num_weights if is_alone else root + 2 * layer
    return each * whole + (each + _MASTER_BYTES) * max(root, layer)


def host_memory_of_process(placement: Placement, config: RunConfig, sizes: Mapping[str, ModelSize]) -> Memory:
    """Return what each process of a role that has a GPU takes of the host: its copy for a checkpoint, or all (offloaded)."""
    models = _models(placement, config, sizes)
    return models if config.actor.cpu_offload else Memory(checkpoint=models.checkpoint)


def shared_weights(config: RunConfig, sizes: Mapping[str, ModelSize]) -> Memory:
    """Return what the weights take that engines map, of LoRA its factors; once, as on the machine of the actor."""
    size = sizes["model.path"]
    if factors := factor_weights(size, config.actor.lora.rank):
        return Memory(shared_weights=_MASTER_BYTES * factors)
    return Memory(shared_weights=DTYPE_BYTES[config.model.dtype] * size.num_weights)


def _models(placement: Placement, config: RunConfig, sizes: Mapping[str, ModelSize]) -> Memory:
    """Return this process's part of the models that it trains or asks, and of the copy for a checkpoint."""
    total = Memory()
    for component in placement.components:
        if component == "rollout":
            continue
        size = _size_of(component, sizes)
        factors = factor_weights(size, config.actor.lora.rank) if component == "actor" else 0
        if component in _TRAINED:
            total = total.in_turns(_trained(factors or size.num_weights))
        if component not in _TRAINED or factors:
            total += Memory(weights=DTYPE_BYTES[config.model.dtype] * size.num_weights)
    return total.times(1 / (config.actor.shard_size or placement.num_processes))


def _size_of(component: str, sizes: Mapping[str, ModelSize]) -> ModelSize:
    keys = {"critic": "critic.path", "reward": "reward.model.path"}
    return sizes.get(keys.get(component, "model.path"), sizes["model.path"])


def _trained(num_weights: int) -> Memory:
    each = _MASTER_BYTES * num_weights
    return Memory(weights=each, gradients=each, optimiser=2 * each, checkpoint=3 * each)


def factor_weights(size: ModelSize, rank: int) -> int:
    """Return the numbers in LoRA's factors beside all linear layers of the decoder, of which a config may choose some."""
    width = size.width
    attention = 2 * (width + size.heads_width) + 2 * (width + size.kv_width)
    return rank * size.num_layers * (attention + 3 * (width + size.inner_width))


def _engine(size: ModelSize, config: RunConfig, *, on_gpu: bool) -> Memory:
    rollout, each = config.rollout, DTYPE_BYTES[config.model.dtype]
    copy = each * size.num_weights / rollout.tensor_parallel_size
    if rollout.kv_memory_gb:
        return Memory(engine=copy, kv_cache=rollout.kv_memory_gb * GIB)
    if rollout.engine == "vllm" and on_gpu:
        return Memory(engine=copy)  # its KV cache is what is left
    tokens = rollout.max_concurrent_trajectories * config.max_trajectory_tokens
    cache = tokens * 2 * size.num_layers * size.kv_width * each / rollout.tensor_parallel_size
    if rollout.engine == "vllm":
        return Memory(engine=copy, kv_cache=cache)
    return Memory(engine=copy, kv_cache_at_most=cache)


def _activations(component: str, config: RunConfig, size: ModelSize, *, on_gpu: bool) -> float:
    """Return what the largest pass of a model takes, without the weights: of one that is trained, until its backward pass."""
    rollout, actor = config.rollout, config.actor
    micro_batches = {"critic": config.critic, "reward": config.reward.model}
    longest = config.max_trajectory_tokens
    in_a_step = rollout.prompts_per_step * rollout.samples_per_prompt * longest
    in_a_row = min(micro_batches.get(component, actor).max_tokens_per_micro_batch, in_a_step)
    tokens = max(longest, in_a_row) / actor.sequence_parallel_size
    # A critic and a reward model have a head of one number.
    logits = min(_CHUNK_LOGITS[on_gpu], tokens * size.vocabulary) if component in ("actor", "ref") else 0
    kept = size.width + kept_per_token(size)
    if component in _TRAINED and actor.activation_checkpointing:
        kept += (size.num_layers - 1) * size.width  # the input of each layer, and one layer again
    elif component in _TRAINED:
        kept = size.num_layers * kept_per_token(size)
    return tokens * kept * DTYPE_BYTES[config.model.dtype] + _LOGIT_ARRAYS * logits * 4


def kept_per_token(size: ModelSize) -> int:
    """Return the numbers that one decoder layer keeps of a token for its backward pass, without recomputation.

    Counted for Qwen3, which keeps more than Llama: three times the width for each norm with what goes into the products behind
    it; queries and keys before and after their norm and their rotation; the four arrays of the feed-forward part.
    """
    return 6 * size.width + 5 * size.heads_width + 4 * size.kv_width + 4 * size.inner_width
