"""Estimate of the memory that a run's models need, before any is loaded. Pure functions, without torch.

With N weights over R ranks, of which G are gathered at once, b bytes in the type of the computation and T tokens in the longest
row, a rank that trains all weights takes at most

    runtime + a (16 N / R + b G + (b + 4) G' + b T K + 8 C) + 12 N / R.

16 are the bytes of weight, gradient and AdamW's two moments; G is N on a single rank, which gathers all weights for an
update, else the embedding, the head and two layers; G' is the largest group, whose gradients are reduced; K is the number of
activations kept per token; C is a chunk of logits; 12 are the bytes of the checkpoint's copy, on the host; and a is 1 on a
GPU, and 1 + `_ALLOCATOR_SHARE` on a CPU. `benchmarks/training/memory.py` compares it with measured peaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from agentrl.config.layout import Placement
from agentrl.config.schema.run import RunConfig

GIB = 2**30
_MASTER_BYTES = 4
"""Trained weights, gradients and both moments of AdamW are float32, whatever the type of the computation."""
_LOGIT_ARRAYS = 2
"""Arrays of a chunk of logits that exist at once in the backward pass."""
_CHUNK_LOGITS = {True: 2**28, False: 2**25}
"""Logits that exist at once, on a GPU or a CPU (`agentrl.training.scoring.chunked_logits`)."""

_ALLOCATOR_SHARE = 0.35
"""Share of a model's memory that glibc keeps after it was freed, on a CPU (measured for three sizes)."""
_RUNTIME_BYTES = {True: 0.75 * GIB, False: 0.375 * GIB}
"""Bytes of each process: its CUDA context on a GPU, Python and libraries on a CPU."""

_TRAINED = ("actor", "critic")
"""Components that are trained; the others free a layer's activations after the next layer."""
_IN_TURNS = ("gradients", "activations_at_most", "gathered_at_most")
"""Parts of `Memory` that models of one process take one after another, and only in updates."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a model that determine its memory. Example: `ModelSize(num_weights=8 * 10**9, num_layers=36, ...)`."""

    num_weights: int
    """Weights of the language model with its head; tied ones count once."""
    vocabulary: int
    num_layers: int
    width: int
    heads_width: int
    """Width of all query heads of a layer together."""
    kv_width: int
    """Width of all key heads of a layer together, which is also that of the value heads."""
    inner_width: int
    """Width of the feed-forward part; with experts, of those that a token uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by use; added up if processes share a device. Names with `at_most` are upper bounds, the others certain."""

    weights: float = 0.0
    gradients: float = 0.0
    optimiser: float = 0.0
    engine: float = 0.0
    """The engine's copy of the policy, with a KV cache whose size the config sets."""
    copies: float = 0.0
    """On the host: the trained state that a checkpoint writes, and the published weights that engines map."""
    kv_cache_at_most: float = 0.0
    """KV cache of the embedded engine, which grows with its sequences."""
    activations_at_most: float = 0.0
    """Activations of the largest micro-batch, with its logits."""
    gathered_at_most: float = 0.0
    """Gathered weights, and gradients of the group that is reduced."""
    overhead_at_most: float = 0.0
    """Base memory of the processes, and freed memory that the host's allocator keeps."""

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(Memory)})

    def times(self, number: float) -> "Memory":
        """Return the memory of `number` such processes."""
        return Memory(**{item.name: getattr(self, item.name) * number for item in fields(Memory)})

    def in_turns(self, other: "Memory") -> "Memory":
        """Return the memory of two models that never compute at the same time."""
        largest = {name: max(getattr(self, name), getattr(other, name)) for name in _IN_TURNS}
        return replace(self + other, **largest)

    def in_phases(self) -> dict[str, "Memory"]:
        """Return the memory while engines sleep, and while only they compute."""
        return {
            "updates": replace(self, engine=0.0, kv_cache_at_most=0.0),
            "rollouts": replace(self, **dict.fromkeys(_IN_TURNS, 0.0)),
        }

    @property
    def certain(self) -> float:
        """Bytes needed in any case."""
        return sum(getattr(self, item.name) for item in fields(Memory) if not item.name.endswith("at_most"))

    @property
    def at_most(self) -> float:
        """Upper bound of the bytes."""
        return sum(getattr(self, item.name) for item in fields(Memory))

    def describe(self) -> str:
        """Return the parts as text, largest first: `weights 32.0, optimiser 64.0 GiB`."""
        parts = {item.name.replace("_", " "): getattr(self, item.name) / GIB for item in fields(Memory)}
        ordered = sorted(parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {amount:.2f}" for name, amount in ordered if amount) + " GiB"


def memory_of_process(
    placement: Placement, config: RunConfig, sizes: Mapping[str, ModelSize], *, on_gpu: bool
) -> Memory:
    """Return the memory of each process of a role on its device; of an engine on several GPUs, on each of them.

    `sizes` has an entry for `model.path`, and for `critic.path` and `reward.model.path` if set.
    """
    total = _models(placement, config, sizes)
    if on_gpu:
        total = Memory() if config.actor.cpu_offload else replace(total, copies=0.0)
    for component in placement.components:
        if component != "rollout":
            size = _size_of(component, sizes)
            activations = _activations(component, config, size, on_gpu=on_gpu)
            gathered = _gathered(component, placement, config, size)
            total = total.in_turns(Memory(activations_at_most=activations, gathered_at_most=gathered))
    kept = 0.0 if on_gpu else _ALLOCATOR_SHARE * (total.at_most - total.copies)
    total += Memory(overhead_at_most=_RUNTIME_BYTES[on_gpu] + kept)
    if "rollout" in placement.components:
        total += _engine(sizes["model.path"], config, on_gpu=on_gpu)
    return total


def host_memory_of_process(placement: Placement, config: RunConfig, sizes: Mapping[str, ModelSize]) -> Memory:
    """Return the host memory of each process of a role with a GPU: the checkpoint's copy, or everything if offloaded."""
    models = _models(placement, config, sizes)
    return models if config.actor.cpu_offload else Memory(copies=models.copies)


def shared_weights(config: RunConfig, sizes: Mapping[str, ModelSize]) -> Memory:
    """Return the memory of the weights (or LoRA factors) that engines map, once per machine."""
    size = sizes["model.path"]
    if factors := factor_weights(size, config.actor.lora.rank):
        return Memory(copies=_MASTER_BYTES * factors)
    return Memory(copies=DTYPE_BYTES[config.model.dtype] * size.num_weights)


def _models(placement: Placement, config: RunConfig, sizes: Mapping[str, ModelSize]) -> Memory:
    """Return this process's part of its models, and of the checkpoint's copy."""
    total = Memory()
    for component in placement.components:
        if component == "rollout":
            continue
        size = _size_of(component, sizes)
        trained = frozen = 0
        if component not in _TRAINED:
            frozen = size.num_weights
        elif component == "actor" and config.actor.lora.rank:
            trained, frozen = factor_weights(size, config.actor.lora.rank), size.num_weights
        else:
            trained = size.num_weights
        each = _MASTER_BYTES * trained
        weights = each + DTYPE_BYTES[config.model.dtype] * frozen
        total = total.in_turns(Memory(weights=weights, gradients=each, optimiser=2 * each, copies=3 * each))
    return total.times(1 / (config.actor.shard_size or placement.num_processes))


def _size_of(component: str, sizes: Mapping[str, ModelSize]) -> ModelSize:
    keys = {"critic": "critic.path", "reward": "reward.model.path"}
    return sizes.get(keys.get(component, "model.path"), sizes["model.path"])


def factor_weights(size: ModelSize, rank: int) -> int:
    """Return the number of weights in LoRA's factors if all linear layers of the decoder have some."""
    width = size.width
    attention = 2 * (width + size.heads_width) + 2 * (width + size.kv_width)
    return rank * size.num_layers * (attention + 3 * (width + size.inner_width))


def _engine(size: ModelSize, config: RunConfig, *, on_gpu: bool) -> Memory:
    rollout, each = config.rollout, DTYPE_BYTES[config.model.dtype]
    copy = each * size.num_weights / rollout.tensor_parallel_size
    if rollout.kv_memory_gb:
        return Memory(engine=copy + rollout.kv_memory_gb * GIB)
    if rollout.engine == "vllm" and on_gpu:
        return Memory(engine=copy)  # its KV cache takes the rest of the GPU
    tokens = rollout.max_concurrent_trajectories * config.max_trajectory_tokens
    cache = tokens * 2 * size.num_layers * size.kv_width * each / rollout.tensor_parallel_size
    if rollout.engine == "vllm":
        return Memory(engine=copy + cache)
    return Memory(engine=copy, kv_cache_at_most=cache)


def _gathered(component: str, placement: Placement, config: RunConfig, size: ModelSize) -> float:
    """Return the bytes of gathered weights in one pass, and of gradients while they are reduced."""
    each, is_frozen = DTYPE_BYTES[config.model.dtype], component == "actor" and config.actor.lora.rank > 0
    root = min(size.num_weights, 2 * size.vocabulary * size.width)  # embedding and head are gathered together
    layer = max(0, size.num_weights - root) / size.num_layers
    if component not in _TRAINED or is_frozen:
        return each * (root + 2 * layer)
    is_alone = placement.num_processes == 1 and not config.actor.cpu_offload
    whole = size.num_weights if is_alone else root + 2 * layer
    return each * whole + (each + _MASTER_BYTES) * max(root, layer)


def _activations(component: str, config: RunConfig, size: ModelSize, *, on_gpu: bool) -> float:
    """Return the bytes of a model's largest pass without its weights, up to the backward pass if it is trained."""
    rollout, actor = config.rollout, config.actor
    longest = config.max_session_tokens if config.agent_loop.agent.is_set else config.max_trajectory_tokens
    in_a_step = rollout.prompts_per_step * rollout.samples_per_prompt * longest
    in_a_row = min(actor.max_tokens_per_micro_batch, in_a_step)
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
    """Return the number of activations per token that a decoder layer keeps for its backward pass.

    Counted for Qwen3, which keeps more than Llama: three widths for each norm and the input of the products behind it;
    queries and keys before and after norm and rotation; four arrays of the feed-forward part.
    """
    return 6 * size.width + 5 * size.heads_width + 4 * size.kv_width + 4 * size.inner_width
