"""Every knob of a run: one typed tree, one line of documentation each, one default each.

Code takes the section it needs, never the root. Relative paths are resolved by `agentrl.config.load` (next to the
config file first) before anyone sees them.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from omegaconf import MISSING

from agentrl.config.algorithm_schema import AlgorithmSection, CriticSection, LoraSection
from agentrl.config.checkpoint_schema import CheckpointSection, StageSection
from agentrl.config.cluster_schema import ClusterSection
from agentrl.config.reward_schema import RewardSection
from agentrl.config.update_schema import UpdateSection

DType = Literal["float32", "bfloat16"]
"""Values of `model.dtype` once it is chosen."""


@dataclass(frozen=True)
class RunSection:
    """What the run is called and how long it goes on."""

    dir: str | None = None
    """Where everything of the run is written; `runs/<config name>` when absent."""
    num_steps: int = 100
    """Actor updates in all; with `stages`, their sum."""
    seed: int = 0
    """Seeds the order of the prompts, the sampling of every turn, and the resampling of groups."""
    accept_code_changes: bool = False
    """Go on although tools, rewards or other modules of your own were edited since the run last started."""


@dataclass(frozen=True)
class DataSection:
    """Prompts, from JSONL or Parquet files; the columns of rStar2 and verl are read too."""

    train_files: list[str] = MISSING
    """Files of training prompts; a pattern (`data/*.parquet`) is all files that it matches, sorted."""
    validation_files: list[str] = field(default_factory=list)
    """Files of held-out prompts, or patterns; empty means no validation."""
    prompt_key: str = "prompt"
    """Column that holds the chat messages, their JSON text, or one user message as text; by default `messages` is read too."""
    answer_key: str = "answer"
    """Column that holds the reference answer, any plain data; dots enter a struct (`reward_model.ground_truth`). Rows may
    lack it while this is the default, and the reward needs none.
    """
    system_prompt: str | None = None
    """Put before every prompt that has no system message of its own."""
    shuffle: bool = True
    """Shuffle each epoch, by the run's seed."""
    on_bad_row: Literal["error", "skip"] = "error"
    """A row that cannot be used stops the run before it starts, or is left out: how many, and why the first, is told."""
    max_prompt_tokens: int = 2048
    """Length of a prompt at most, tools and system text included."""
    overlong_prompts: Literal["error", "drop"] = "error"
    """Treatment of longer prompts: refuse the run and name them, or leave them out and report their number."""


@dataclass(frozen=True)
class ModelSection:
    """The policy."""

    path: str = MISSING
    """Folder (or hub name) of a Hugging Face causal LM with its tokenizer and chat template."""
    chat_template: str | None = None
    """Jinja file in place of the tokenizer's chat template, exported with the policy; `configs/templates/` has two."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Variables for every rendering of the chat template, such as `{enable_thinking: false}`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Type in which models compute and frozen weights are kept; trained ones stay float32. `auto`: what suits this machine."""


@dataclass(frozen=True)
class SimulatedEngineSection:
    """An engine that computes nothing: how long its steps take, what its memory holds, and what it writes.

    The times are fitted to what is published of vLLM with an 8B model on one H100 (docs/benchmarks.md says how); measure your
    own for plans that count.
    """

    step_ms: float = 6.4
    """Time of a step, whatever runs in it."""
    step_ms_per_request: float = 0.055
    """Added for each request that runs."""
    step_ms_per_prefill_token: float = 0.06
    """Added for each prompt token that is computed."""
    kv_tokens: int = 400_000
    """Tokens whose keys and values fit in the memory."""
    max_running: int = 256
    """Requests that run at once."""
    max_batched_tokens: int = 8192
    """Prompt tokens computed in one step; a longer prompt takes several."""
    turn_tokens_median: float = 400.0
    """Median of the tokens of a turn; they are log-normal."""
    turn_tokens_sigma: float = 0.8
    """Standard deviation of the logarithm of the tokens of a turn: 0 makes all equal, 1 gives a heavy tail."""
    prompt_sigma: float = 0.4
    """Standard deviation of the logarithm of what a prompt multiplies all its turns by: some take longer than others."""
    min_turns: int = 2
    """Turns of the shortest trajectory; each but the last calls a tool."""
    max_turns: int = 10
    """Turns of the longest; all numbers in between are as frequent."""


@dataclass(frozen=True)
class OpenAIEngineSection:
    """Servers of OpenAI's completions protocol, for `rollout.engine: openai`; others run them, so they take no weights."""

    base_urls: list[str] = field(default_factory=list)
    """Address of each server, such as `http://10.0.0.1:8000/v1`; a completion goes to the one with the fewest in flight."""
    model: str | None = None
    """Name under which they serve the policy; absent: the only one that they list."""
    token_env: str | None = None
    """Environment variable that holds their bearer token; the token itself is never written."""


@dataclass(frozen=True)
class RolloutSection:
    """How trajectories are made."""

    engine: Literal["transformers", "vllm", "openai", "simulated"] = "transformers"
    """`transformers` is the embedded engine, which needs torch alone; `vllm` needs vLLM (see docs/installing.md);
    `openai` asks running servers (evaluation only); `simulated` only takes time (`runners.simulate`).
    """
    openai: OpenAIEngineSection = field(default_factory=OpenAIEngineSection)
    """Servers of OpenAI's completions protocol."""
    simulated: SimulatedEngineSection = field(default_factory=SimulatedEngineSection)
    """What the simulated engine is like."""
    num_engines: int = 1
    """Engine processes; each holds a full copy of the policy."""
    num_threads_per_engine: int = 0
    """CPU threads of an engine without a GPU; 0 shares the cores among the processes that compute at once."""
    tensor_parallel_size: int = 1
    """GPUs over which one copy of the policy is split (`vllm` only); without GPUs, processes."""
    data_parallel_size: int = 1
    """Copies of the policy within one engine (`vllm` only); a trajectory stays with one of them, whose memory it has to fit."""
    kv_memory_gb: float = 0.0
    """KV cache in GiB per GPU (`vllm` only); 0 takes what is free, on CPU what the trajectories at once can fill."""
    replay_routing: bool = False
    """Have the engine return the experts of each token, and send it to the same ones in training (`vllm` on GPUs only)."""
    num_workers: int = 1
    """Agent-loop processes; each runs many trajectories at once."""
    prompts_per_step: int = 128
    """Prompts rolled out for one update (refills come on top)."""
    samples_per_prompt: int = 32
    """Trajectories of one prompt: the size of a group before selection."""
    extra_samples_per_prompt: int = 0
    """Trajectories of a prompt begun beyond `samples_per_prompt`: a group is complete when so many have a reward, and the
    others are ended. It cuts the tail, and prefers trajectories that take less time.
    """
    max_staleness: int = 0
    """Updates by which a trajectory's oldest token may lag behind the actor that learns from it: 0 rolls out, then updates;
    above 0, rollouts go on during updates, so many batches ahead.
    """
    max_concurrent_trajectories: int = 64
    """Trajectories that run at once on one engine; also the number of KV-cache rows of the embedded engine."""
    admission: Literal["reserve_max", "expected"] = "reserve_max"
    """Trajectories enter an engine while its KV memory holds all of them at their longest, so that nothing is ever preempted;
    or by the lengths of those that finished, which lets in more at the price of some tokens computed again.
    """
    max_judge_queue_s: float = 10.0
    """Wait of a call in the judge's queue above which fewer trajectories run at once, until it is half as long; 0 never limits
    them.
    """
    temperature: float = 1.0
    """Sampling temperature, of held-out prompts too unless `validation.temperature` is set; 0, greedy, is for evaluations.
    """
    top_p: float = 1.0
    """Nucleus sampling; 1 keeps the whole distribution."""
    top_k: int = 0
    """Sample from the k likeliest tokens; 0 keeps every token."""
    stop: list[str] = field(default_factory=list)
    """Texts that end a turn, such as `</search>`: its tokens, up to the one that completes such a text, are kept and trained;
    the turn's text ends with it.
    """
    max_response_tokens: int = 8192
    """Tokens after the prompt, sampled and observed together."""
    max_turns: int = 10
    """Assistant turns of one trajectory."""
    max_tool_response_tokens: int = 1024
    """A longer tool result is cut, and says so."""
    max_tool_calls_per_turn: int = 16
    """Further calls of one turn are refused, and count as failed: one trajectory cannot fill the judge's queue by itself."""
    start_timeout_s: float = 600.0
    """Wall clock for `start` of one tool or reward of your own, which may load an index."""
    tool_timeout_s: float = 30.0
    """Wall clock for one tool call, queueing included."""
    turn_timeout_s: float = 300.0
    """Wall clock for one completion."""
    trajectory_timeout_s: float = 1200.0
    """Wall clock for one episode; what is there by then is scored as a truncated answer."""
    max_retries: int = 2
    """Fresh episodes for a trajectory whose infrastructure failed, before it is left out of its group."""
    max_infra_error_share: float = 0.25
    """The run ends where more of its last trajectories, as many as a step has, were left out for that; 1 never ends it."""
    tool_config_path: str | None = None
    """Tool YAML; may stand at the root instead."""


@dataclass(frozen=True)
class ActorSection(UpdateSection):
    """The policy update."""

    num_workers: int = 1
    """FSDP ranks, one process each."""
    num_threads_per_worker: int = 0
    """CPU threads of a rank without a GPU; 0 shares the cores among the processes that compute at once."""
    sequence_parallel_size: int = 1
    """Ranks that compute each packed row together (Ulysses), of reference, critic and reward model too; each then holds a part
    of its tokens, and of every layer's heads. It divides the ranks, and the attention heads of the models.
    """
    share_prefixes: bool = True
    """Compute what the trajectories of a prompt begin with in common once per forward pass, of reference and critic too; the
    gradients are the same. In float32 on GPUs there is no kernel for it, and every trajectory is computed by itself.
    """
    activation_checkpointing: bool = False
    """Keep of each layer only its input, and compute the rest again in the backward pass, of the critic too: far less memory
    for about a third more time; the gradients are the same.
    """
    shard_size: int = 0
    """Neighbouring ranks that divide the weights, such as those of one machine; others hold copies. 0: all ranks."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimiser in the memory of the host, and bring a layer to the GPU when its turn comes, of
    reference, critic and reward model too; updates are made on the CPU.
    """
    compile: bool = False
    """Compile the layers with `torch.compile`, but their attention; the first updates take minutes longer."""
    liger: bool = False
    """Compute norms, rotary embeddings and gated layers with Liger's kernels (CUDA only, `pip install liger-kernel`)."""
    router_aux_loss_coef: float = 0.0
    """Weight of the auxiliary loss that balances the experts of a mixture, as transformers computes it, in the actor's loss;
    0 leaves it out, whatever the model's `config.json` says.
    """
    lora: LoraSection = field(default_factory=LoraSection)
    """Train factors beside the weights, and not the weights."""


@dataclass(frozen=True)
class JudgeSection:
    """The code judges of the run: remote ones by their addresses, or one or several that the run starts and stops."""

    host_addr: str | None = None
    """Address of a running judge; absent, as `hosts` is: the run starts its own."""
    host_port: int | None = None
    """Port of a running judge; absent: a free one."""
    hosts: list[str] = field(default_factory=list)
    """Addresses of several running judges, `host:port` or URLs; each call goes to the one with the least estimated wait."""
    token_env: str | None = None
    """Environment variable that holds the bearer token of running judges; the token itself is never written."""
    placement: Literal["driver", "per_node"] = "driver"
    """Where the run starts its own: one on the machine of the runner, or one on every Ray node."""
    num_slots: int = 0
    """Programs judged at once by a judge that the run starts; 0 takes one per core and one more."""
    max_wall_time_s: float = 10.0
    """Wall clock of one judged program, for a judge that the run starts; half of it is its CPU time, so that a crowded machine
    fails no honest one.
    """
    max_memory_mb: int = 512
    """Memory of one judged program, for a judge that the run starts."""
    min_isolation: Literal["A", "B", "C", "D"] = "B"
    """Weakest isolation tier accepted, of a remote judge too; `D` (no isolation) must be named here."""


@dataclass(frozen=True)
class ValidationSection:
    """How accuracy on the held-out prompts is measured."""

    every_steps: int = 0
    """Validate after every so many updates (and before the first, and after the last); 0 never."""
    samples_per_prompt: int = 1
    """Trajectories per held-out prompt; accuracy is their mean, and from 2 on pass@k is measured."""
    temperature: float | None = None
    """Sampling temperature of held-out prompts, 0 is greedy; absent: `rollout.temperature`."""
    top_p: float | None = None
    """Nucleus sampling of held-out prompts; absent: `rollout.top_p`."""
    top_k: int | None = None
    """Sample held-out prompts from the k likeliest tokens; absent: `rollout.top_k`."""


@dataclass(frozen=True)
class CodeJudgeTools:
    """rStar2-Agent's short form: the built-in Python tool against a code judge."""

    host_addr: str | None = None
    """As `judge.host_addr`, which it must equal where both are given."""
    host_port: int | None = None
    """As `judge.host_port`."""
    hosts: list[str] = field(default_factory=list)
    """As `judge.hosts`."""
    batch_size: int = 64
    """Submissions sent in one request at most."""
    concurrency: int = 32
    """Requests in flight per worker; those that wait for their last few programs are not counted."""
    batch_timeout_seconds: float = 30.0
    """Wall clock for one batch."""
    enable_jupyter: bool = False
    """The stateful `jupyter_code` tool; this version has none yet, and refuses true."""


@dataclass(frozen=True)
class ToolsSection:
    """Tools given in the run config itself."""

    code_judge: CodeJudgeTools | None = None
    """The short form; absent where `tool_config_path` names a file instead."""


@dataclass(frozen=True)
class RunConfig:
    """The root of the tree."""

    run: RunSection = field(default_factory=RunSection)
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    rollout: RolloutSection = field(default_factory=RolloutSection)
    reward: RewardSection = field(default_factory=RewardSection)
    algorithm: AlgorithmSection = field(default_factory=AlgorithmSection)
    actor: ActorSection = field(default_factory=ActorSection)
    critic: CriticSection = field(default_factory=CriticSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    judge: JudgeSection = field(default_factory=JudgeSection)
    validation: ValidationSection = field(default_factory=ValidationSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    stages: list[StageSection] = field(default_factory=list)
    """Parts of the run, one after the other; none: the same from the first step to the last."""
    tools: ToolsSection | None = None
    """Tools in the short form; or name a file in `tool_config_path`."""
    tool_config_path: str | None = None
    """Tool YAML; the same key may stand under `rollout` instead."""

    @property
    def has_reference(self) -> bool:
        """Whether the starting policy is kept, to measure the distance from it."""
        return self.algorithm.kl_coefficient > 0

    @property
    def has_reference_model(self) -> bool:
        """Whether that policy is a model of its own, and not the actor without its LoRA factors."""
        return self.has_reference and self.actor.lora.rank == 0

    @property
    def has_critic(self) -> bool:
        """Whether values are learnt: for `gae`, and for an estimator of the user's own where `critic.path` is named."""
        return self.algorithm.advantage == "gae" or self.critic.path is not None

    @property
    def has_reward_model(self) -> bool:
        """Whether a model adds to the reward."""
        return self.reward.model.path is not None

    @property
    def max_trajectory_tokens(self) -> int:
        """Tokens of the longest trajectory, its prompt too."""
        return self.data.max_prompt_tokens + self.rollout.max_response_tokens
