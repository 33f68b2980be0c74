"""Config tree of a run: types, defaults and documentation of all keys.

Code takes the section it needs, never the root. Relative paths are resolved by `agentrl.config.load` (next to the config file
first) before any use.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl.config.schema.addresses import ServerUrl
from agentrl.config.schema.agent_loop import AgentLoopSection
from agentrl.config.schema.algorithm import AlgorithmSection, CriticSection, LoraSection
from agentrl.config.schema.cluster import ClusterSection
from agentrl.config.schema.fields import (
    Amount,
    AmountOrZero,
    BelowOne,
    Count,
    CountOrZero,
    Probability,
    Seconds,
    Section,
    Seed,
    Share,
    resumable,
)
from agentrl.config.schema.judge import JudgeSection, ToolsSection
from agentrl.config.schema.observability import ObservabilitySection
from agentrl.config.schema.paths import FolderOrStore, InputFiles, InputPath, RunFolder
from agentrl.config.schema.reward import RewardSection

DType = Literal["float32", "bfloat16"]
"""Values of `model.dtype` after `auto` is resolved."""


class RunSection(Section):
    """Folder, length and seed of the run."""

    dir: RunFolder = None
    """Folder for everything that the run writes; `runs/<config name>` when absent."""
    num_steps: Count = 100
    """Total number of actor updates; with `stages`, their sum."""
    seed: Seed = 0
    """Seed of the order of the prompts, the sampling of every turn, and the resampling of groups."""
    accept_code_changes: bool = resumable(False)
    """Resume although your own tools, rewards or other modules were edited, or an MCP server changed its tools."""


class DataSection(Section):
    """Prompts, from JSONL or Parquet files; the columns of rStar2 and verl are read too."""

    train_files: InputFiles = []
    """Files of training prompts; a pattern (`data/*.parquet`) is all files that it matches, sorted."""
    validation_files: InputFiles = []
    """Files of held-out prompts, or patterns; empty means no validation."""
    prompt_key: str = "prompt"
    """Column that holds the chat messages, their JSON text, or one user message as text; by default `messages` is read too."""
    answer_key: str = "answer"
    """Column that holds the reference answer, any plain data; dots enter a struct (`reward_model.ground_truth`). With the
    default, rows may lack it if the reward needs none.
    """
    system_prompt: str | None = None
    """System message for every prompt that has none."""
    shuffle: bool = True
    """Shuffle each epoch, by the run's seed."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Treatment of unusable rows: refuse the run, or leave them out and report their number and the first reason."""
    max_prompt_tokens: Count = 2048
    """Tokens of the longest prompt, tools and system text included."""
    overlong_prompts: Literal["error", "drop"] = "error"
    """Treatment of longer prompts: refuse the run and name them, or leave them out and report their number."""


class ModelSection(Section):
    """The policy."""

    path: InputPath
    """Folder (or hub name) of a Hugging Face causal LM with its tokenizer and chat template."""
    chat_template: InputPath | None = None
    """Jinja file that replaces the tokenizer's chat template, exported with the policy; `configs/templates/` has three."""
    tool_format: str = "auto"
    """Format of the policy's tool calls: a name in docs/models.md, a class path, or `auto`: found by the template."""
    template_kwargs: dict[str, Any] = {}
    """Variables for every rendering of the chat template, such as `{enable_thinking: false}`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Type of computations and frozen weights; trained weights stay float32. `auto` chooses by this machine."""


class OpenAIEngineSection(Section):
    """Running servers of OpenAI's completions protocol, for `rollout.engine: openai`; they take no new weights."""

    base_urls: list[ServerUrl] = resumable([])
    """Address of each server, such as `http://10.0.0.1:8000/v1`; a completion goes to the server with the fewest in flight."""
    model: str | None = None
    """Name under which the servers offer the policy; absent: the only name that they list."""
    token_env: str | None = resumable(None)
    """Environment variable that holds the servers' bearer token; the token itself is never written."""


class RolloutSection(Section):
    """Rollouts: engines, workers, sampling and limits."""

    engine: Literal["transformers", "vllm", "openai"] = "transformers"
    """`transformers` is the embedded engine, which needs only torch; `vllm` needs vLLM (see docs/installing.md); `openai` uses
    running servers (evaluation only).
    """
    openai: OpenAIEngineSection = Field(default_factory=OpenAIEngineSection)
    """Servers of OpenAI's completions protocol."""
    num_engines: Count = resumable(1)
    """Engine processes; each holds a full copy of the policy."""
    tensor_parallel_size: Count = resumable(1)
    """GPUs over which one copy of the policy is split (`vllm` only); without GPUs, processes."""
    data_parallel_size: Count = resumable(1)
    """Copies of the policy within one engine (`vllm` only); a trajectory uses the KV memory of one copy."""
    kv_memory_gb: AmountOrZero = resumable(0.0)
    """KV cache in GiB per GPU (`vllm` only); 0 uses the free memory, on CPU as much as the concurrent trajectories can fill."""
    replay_routing: bool = False
    """Return each token's experts from the engine, and route it to the same experts in training (`vllm` on GPUs only)."""
    num_workers: Count = resumable(1)
    """Agent-loop processes; each runs many trajectories at once."""
    prompts_per_step: Count = 128
    """Prompts rolled out for one update, refills not included."""
    samples_per_prompt: Count = 32
    """Trajectories of one prompt: the size of a group before selection."""
    extra_samples_per_prompt: CountOrZero = 0
    """Trajectories of a prompt started in addition to `samples_per_prompt`: a group is complete when `samples_per_prompt` have
    a reward, and the others are cancelled. Shortens the tail of a step, but prefers short trajectories.
    """
    max_staleness: CountOrZero = 0
    """Largest number of updates by which a trajectory's oldest token lags behind the actor: 0 rolls out, then updates; above 0,
    rollouts continue during updates, as many batches ahead.
    """
    max_concurrent_trajectories: Count = resumable(64)
    """Largest number of trajectories at once on one engine; also the number of KV-cache rows of the embedded engine."""
    admission: Literal["reserve_max", "expected"] = "reserve_max"
    """Admission of trajectories to an engine. `reserve_max`: while its KV memory holds all of them at their longest, so that
    none is preempted; `expected`: by the lengths of finished ones, which admits more, but some tokens may be computed twice.
    """
    temperature: AmountOrZero = 1.0
    """Sampling temperature, also of held-out prompts unless `validation.temperature` is set; 0 (greedy) is for evaluations."""
    stop: list[Annotated[str, Field(min_length=1)]] = []
    """Texts that end a turn, such as `</search>`. The turn's text ends with the stop text; its tokens, up to the one that
    completes it, are kept and trained on.
    """
    max_response_tokens: Count = 8192
    """Largest number of tokens after the prompt, sampled and observed together."""
    max_turns: Count = 10
    """Largest number of assistant turns of one trajectory."""
    max_tool_response_tokens: Count = 1024
    """Tokens of the longest tool result or answer of the environment; a longer one is cut and marked."""
    tool_timeout_s: Seconds = resumable(30.0)
    """Time limit for one tool call, queueing included, or one answer of the environment, in seconds."""
    turn_timeout_s: Seconds = resumable(300.0)
    """Time limit for one completion, in seconds."""
    trajectory_timeout_s: Seconds = resumable(1200.0)
    """Time limit for one episode, in seconds; a cut episode is treated as unfinished (`reward.score_unfinished`)."""
    max_infra_error_share: Share = resumable(0.25)
    """Largest share of the last trajectories lost to the infrastructure, beyond which the run ends; 1 never ends it."""
    tool_config_path: InputPath | None = None
    """Tool YAML; the same key may be set at the root instead."""


class ActorSection(Section):
    """The policy update; the critic's is the same but for its learning rate."""

    learning_rate: BelowOne = 1e-6
    """AdamW learning rate after warm-up."""
    warmup_steps: CountOrZero = 20
    """Steps over which the learning rate rises linearly."""
    decay_steps: CountOrZero = 0
    """Steps, warm-up included, after which the learning rate has fallen along half a cosine to `final_learning_rate_fraction`,
    where it stays; 0 keeps it constant. A stage with `reset_optimiser` restarts the count.
    """
    final_learning_rate_fraction: Share = 0.1
    """Share of the learning rate at the end of the decay."""
    weight_decay: AmountOrZero = 0.01
    """AdamW weight decay."""
    max_grad_norm: Amount = 1.0
    """Gradients are clipped to this global norm."""
    mini_batches_per_step: Count = 1
    """Optimiser updates per step, each on a part of its trajectories; a divisor of `rollout.prompts_per_step`, though parts
    differ in size after groups were dropped. With 1 and one epoch, every ratio is 1 and no clipping takes effect.
    """
    epochs_per_step: Count = 1
    """Passes over these mini-batches; ratios refer to the model before the first (GRPO's mu, verl's `ppo_epochs`)."""
    max_tokens_per_micro_batch: Count = resumable(16384)
    """Packed tokens of one forward pass on one rank; a longer trajectory gets a pass of its own. Limit of all rows of an
    agent's trajectory together.
    """
    num_workers: Count = resumable(1)
    """FSDP ranks, one process each."""
    sequence_parallel_size: Count = resumable(1)
    """Ranks that compute each packed row together (Ulysses), also of reference, critic and reward model; each holds a part of
    the row's tokens and of every layer's heads. Must divide the number of ranks and the models' attention heads.
    """
    activation_checkpointing: bool = resumable(False)
    """Store only each layer's input and recompute the rest in the backward pass, also in the critic: far less memory, about a
    third more time, the same gradients.
    """
    shard_size: CountOrZero = resumable(0)
    """Number of neighbouring ranks that share one sharded copy of the weights, such as those of one machine. 0: all ranks."""
    cpu_offload: bool = resumable(False)
    """Keep weights, gradients and optimiser in host memory, and move each layer to the GPU when it is needed, also in
    reference, critic and reward model; updates run on the CPU.
    """
    compile: bool = resumable(False)
    """Compile the layers, except attention, with `torch.compile`; the first updates take minutes longer."""
    liger: bool = resumable(False)
    """Compute norms, rotary embeddings and gated layers with Liger's kernels (CUDA only, `pip install liger-kernel`)."""
    router_aux_loss_coef: AmountOrZero = 0.0
    """Weight of the load-balancing loss of a mixture of experts, as in transformers, in the actor's loss; 0 leaves it out,
    whatever the model's `config.json` says.
    """
    lora: LoraSection = Field(default_factory=LoraSection)
    """LoRA factors, trained instead of the weights."""


class ValidationSection(Section):
    """Measurement of accuracy on the held-out prompts."""

    every_steps: CountOrZero = resumable(0)
    """Updates between validations; also before the first and after the last update. 0: never."""
    samples_per_prompt: Count = 1
    """Trajectories per held-out prompt; accuracy is their mean, and with 2 or more pass@k is measured."""
    temperature: AmountOrZero | None = None
    """Sampling temperature of held-out prompts, 0: greedy; absent: `rollout.temperature`."""
    top_p: Probability = 1.0
    """Nucleus sampling of held-out prompts; 1 keeps the whole distribution, from which training always samples."""
    top_k: CountOrZero = 0
    """Sample held-out prompts from the k likeliest tokens; 0 keeps every token."""
    category_column: str | None = resumable(None)
    """Column of the held-out prompts whose values are also measured one by one; dots enter a struct (`extra_info.level`)."""


class CheckpointSection(Section):
    """Checkpoints, from which a stopped or killed run resumes."""

    every_steps: Count = resumable(10)
    """Updates between checkpoints; the last update of each stage also writes one. Training continues while it is written."""
    dir: FolderOrStore | None = None
    """Folder of the checkpoints, or a URL that fsspec knows, such as `s3://bucket/runs/demo`, whose address and keys come from
    the environment; `checkpoints` in `run.dir` when absent.
    """
    keep_last: Count = resumable(2)
    """Number of latest checkpoints kept; older ones are deleted."""
    keep_best: CountOrZero = resumable(1)
    """Number of checkpoints with the highest validation accuracy kept in addition, if there is validation."""


class StageSection(Section):
    """A part of the run with its own lengths, data or reference; keys that a stage leaves out come from the other sections."""

    num_steps: Count
    """Actor updates of this stage."""
    max_response_tokens: Count | None = None
    """Value of `rollout.max_response_tokens` in this stage."""
    max_turns: Count | None = None
    """Value of `rollout.max_turns` in this stage."""
    train_files: InputFiles | None = None
    """Value of `data.train_files` in this stage."""
    max_pass_rate: BelowOne | None = None
    """Leave out prompts of which a larger share was solved in their last rollout before this stage."""
    reset_optimiser: bool = False
    """Start with a new optimiser state and the warm-up of the learning rate."""
    update_reference: bool = False
    """Use the policy at the start of this stage as the new reference of the KL term."""


class ServiceSection(Section):
    """The HTTP server of the rollout service (`python -m agentrl.serve`)."""

    host: str = resumable("127.0.0.1")
    """Address that it listens on; any other than this machine's own (loopback) needs `service.token_env`."""
    port: Annotated[int, Field(ge=0, le=65535)] = resumable(8400)
    """Port; 0 takes a free one, which the log names."""
    token_env: str | None = resumable(None)
    """Environment variable that holds the bearer token which clients must send; the token itself is never written."""
    max_open_trajectories: Count = resumable(4096)
    """Largest number of unfinished trajectories over all open requests; a request beyond it is answered by 429."""


class RunConfig(Section):
    """The root of the tree."""

    run: RunSection = Field(default_factory=RunSection)
    data: DataSection = Field(default_factory=DataSection)
    model: ModelSection
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    agent_loop: AgentLoopSection = Field(default_factory=AgentLoopSection)
    reward: RewardSection = Field(default_factory=RewardSection)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    actor: ActorSection = Field(default_factory=ActorSection)
    critic: CriticSection = Field(default_factory=CriticSection)
    cluster: ClusterSection = Field(default_factory=ClusterSection)
    judge: JudgeSection = Field(default_factory=JudgeSection)
    validation: ValidationSection = Field(default_factory=ValidationSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    service: ServiceSection = Field(default_factory=ServiceSection)
    observability: ObservabilitySection = Field(default_factory=ObservabilitySection)
    stages: list[StageSection] = []
    """Successive parts of the run; empty: the same settings from the first step to the last."""
    tools: ToolsSection | None = None
    """Tools in the short form, instead of a file in `tool_config_path`."""
    tool_config_path: InputPath | None = None
    """Tool YAML; the same key may be set in `rollout` instead."""

    @property
    def has_reference(self) -> bool:
        """True if there is a KL term against a reference policy."""
        return self.algorithm.kl_coefficient > 0

    @property
    def has_reference_model(self) -> bool:
        """True if the reference is a separate model; with LoRA it is the actor without its factors."""
        return self.has_reference and self.actor.lora.rank == 0

    @property
    def has_critic(self) -> bool:
        """True if a critic is trained: for `gae`, or if `critic.path` is set for the user's own estimator."""
        return self.algorithm.advantage == "gae" or self.critic.path is not None

    @property
    def has_reward_model(self) -> bool:
        """True if a reward model adds to the reward."""
        return self.reward.model.path is not None

    @property
    def max_trajectory_tokens(self) -> int:
        """Tokens of the longest trajectory, prompt included; of an agent's, tokens of the longest row."""
        return self.data.max_prompt_tokens + self.rollout.max_response_tokens

    @property
    def max_session_tokens(self) -> int:
        """Tokens of all rows of an agent's trajectory: a micro-batch, which is never split, but at least one row."""
        return max(self.max_trajectory_tokens, self.actor.max_tokens_per_micro_batch)
