"""Checks for numbers that no machine could hold, and for time limits that have no effect."""

from collections.abc import Mapping

from agentrl.config.schema.run import RolloutSection, RunConfig

_MOST_PROCESSES = 10_000
_MOST_AT_ONCE = 1_000_000
MOST_STEPS = 100_000_000
_MOST_SECONDS = 10_000_000
_MOST_MEGABYTES = 1_000_000_000


def size_problems(config: RunConfig) -> list[str]:
    """Return the problems, one line each."""
    most: dict[int, Mapping[str, float]] = {
        _MOST_PROCESSES: _processes(config),
        _MOST_AT_ONCE: _at_once(config),
        MOST_STEPS: _steps_and_tokens(config),
        _MOST_SECONDS: _seconds(config),
        _MOST_MEGABYTES: {"judge.max_memory_mb": config.judge.max_memory_mb},
    }
    return [
        *(
            f"`{key}` is {value:.15g}, and must be at most {limit}"
            for limit, values in most.items()
            for key, value in values.items()
            if value > limit
        ),
        *_deadlines_cut_short(config.rollout),
    ]


def _processes(config: RunConfig) -> dict[str, int]:
    rollout, actor = config.rollout, config.actor
    return {
        "rollout.num_engines": rollout.num_engines,
        "rollout.num_workers": rollout.num_workers,
        "rollout.num_threads_per_engine": rollout.num_threads_per_engine,
        "rollout.tensor_parallel_size": rollout.tensor_parallel_size,
        "rollout.data_parallel_size": rollout.data_parallel_size,
        "rollout.max_retries": rollout.max_retries,
        "actor.num_workers": actor.num_workers,
        "actor.num_threads_per_worker": actor.num_threads_per_worker,
        "actor.sequence_parallel_size": actor.sequence_parallel_size,
        "actor.epochs_per_step": actor.epochs_per_step,
        "critic.epochs_per_step": config.critic.epochs_per_step,
        "judge.num_slots": config.judge.num_slots,
        **{f"cluster.pools.{name}.num_processes": pool.num_processes for name, pool in config.cluster.pools.items()},
        **{
            f"cluster.pools.{name}.processes_per_node": sum(pool.processes_per_node)
            for name, pool in config.cluster.pools.items()
        },
        "algorithm.selection.max_refill_rounds": config.algorithm.selection.max_refill_rounds,
    }


def _at_once(config: RunConfig) -> dict[str, int]:
    rollout = config.rollout
    return {
        "rollout.prompts_per_step": rollout.prompts_per_step,
        "rollout.samples_per_prompt": rollout.samples_per_prompt,
        "rollout.extra_samples_per_prompt": rollout.extra_samples_per_prompt,
        "rollout.max_concurrent_trajectories": rollout.max_concurrent_trajectories,
        "rollout.max_staleness": rollout.max_staleness,
        "rollout.max_turns": rollout.max_turns,
        "rollout.max_tool_calls_per_turn": rollout.max_tool_calls_per_turn,
        "validation.samples_per_prompt": config.validation.samples_per_prompt,
        "actor.lora.rank": config.actor.lora.rank,
    }


def _steps_and_tokens(config: RunConfig) -> dict[str, int]:
    return {
        "run.num_steps": config.run.num_steps,
        **{f"stages[{index}].num_steps": stage.num_steps for index, stage in enumerate(config.stages)},
        "actor.warmup_steps": config.actor.warmup_steps,
        "actor.decay_steps": config.actor.decay_steps,
        "critic.warmup_steps": config.critic.warmup_steps,
        "critic.decay_steps": config.critic.decay_steps,
        "data.max_prompt_tokens": config.data.max_prompt_tokens,
        "rollout.max_response_tokens": config.rollout.max_response_tokens,
        "rollout.max_tool_response_tokens": config.rollout.max_tool_response_tokens,
        "actor.max_tokens_per_micro_batch": config.actor.max_tokens_per_micro_batch,
        "critic.max_tokens_per_micro_batch": config.critic.max_tokens_per_micro_batch,
    }


def _seconds(config: RunConfig) -> dict[str, float]:
    rollout = config.rollout
    return {
        "rollout.start_timeout_s": rollout.start_timeout_s,
        "rollout.tool_timeout_s": rollout.tool_timeout_s,
        "rollout.turn_timeout_s": rollout.turn_timeout_s,
        "rollout.trajectory_timeout_s": rollout.trajectory_timeout_s,
        "rollout.max_judge_queue_s": rollout.max_judge_queue_s,
        "reward.timeout_s": config.reward.timeout_s,
        "judge.max_wall_time_s": config.judge.max_wall_time_s,
        "cluster.max_wait_s": config.cluster.max_wait_s,
    }


def _deadlines_cut_short(rollout: RolloutSection) -> list[str]:
    """Return explicitly set time limits of a turn or call that exceed the episode's."""
    defaults = RolloutSection()
    inner = {
        "turn_timeout_s": (rollout.turn_timeout_s, defaults.turn_timeout_s),
        "tool_timeout_s": (rollout.tool_timeout_s, defaults.tool_timeout_s),
    }
    return [
        f"`rollout.{name}` is {value:g}, above `rollout.trajectory_timeout_s` ({rollout.trajectory_timeout_s:g}), which ends "
        "the episode first; lower the one, or raise the other"
        for name, (value, default) in inner.items()
        if value != default and value > rollout.trajectory_timeout_s
    ]
