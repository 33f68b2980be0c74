"""Load of vLLM, from the statistics of every step."""

from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.loggers import StatLoggerBase  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.stats import IterationStats, SchedulerStats  # pyright: ignore[reportMissingImports]


class RankLoad(StatLoggerBase):
    """Load of one data-parallel rank; vLLM builds one per rank, and calls `record` after every step."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
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
