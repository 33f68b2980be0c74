"""Load of vLLM, from the statistics of every step."""

from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.loggers import StatLoggerBase  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.stats import IterationStats, SchedulerStats  # pyright: ignore[reportMissingImports]

from agentrl.engine.base import EngineStats


class RankLoad(StatLoggerBase):
    """Load of one data-parallel rank; vLLM calls `record` after every step."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        """Start at zero; vLLM builds one per rank."""
        self.num_running = 0
        self.kv_usage = 0.0
        self.num_generated_tokens = 0
        self.num_prefill_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Add the statistics of one step."""
        if scheduler_stats is not None:
            self.num_running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.num_generated_tokens += iteration_stats.num_generation_tokens
            self.num_prefill_tokens += iteration_stats.prompt_token_stats.computed
            self.num_cached_tokens += iteration_stats.prompt_token_stats.cached_tokens
            self.num_preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Do nothing; vLLM requires the method."""


class EngineLoad:
    """Load of all ranks together."""

    def __init__(self) -> None:
        """Start without ranks; vLLM adds them with `new_rank`."""
        self._ranks: list[RankLoad] = []

    def new_rank(self, vllm_config: VllmConfig, engine_index: int = 0) -> RankLoad:
        """Add a rank."""
        self._ranks.append(RankLoad(vllm_config, engine_index))
        return self._ranks[-1]

    def stats(
        self, *, num_open: int, kv_tokens_capacity: int, kv_block_tokens: int, policy_version: int
    ) -> EngineStats:
        """Return the load at the last step.

        The statistics stop with the last request, so running requests and KV use are bounded by the open requests.

        Args:
            num_open: number of open requests.
            kv_tokens_capacity: capacity of all ranks together.
            kv_block_tokens: block size of the KV memory.
            policy_version: version of the current weights.
        """
        num_running = min(num_open, sum(rank.num_running for rank in self._ranks))
        usage = sum(rank.kv_usage for rank in self._ranks) / max(1, len(self._ranks))
        return EngineStats(
            num_running=num_running,
            num_waiting=num_open - num_running,
            kv_tokens_used=round(usage * kv_tokens_capacity) if num_open else 0,
            kv_tokens_capacity=kv_tokens_capacity,
            policy_version=policy_version,
            num_generated_tokens=sum(rank.num_generated_tokens for rank in self._ranks),
            num_prefill_tokens=sum(rank.num_prefill_tokens for rank in self._ranks),
            num_cached_tokens=sum(rank.num_cached_tokens for rank in self._ranks),
            num_preemptions=sum(rank.num_preemptions for rank in self._ranks),
            kv_block_tokens=kv_block_tokens,
        )
