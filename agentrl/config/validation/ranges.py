"""Checks beyond the types of the schema: ranges, and keys that contradict each other."""

import importlib.util
import math
from dataclasses import asdict, replace
from enum import StrEnum
from urllib.parse import urlsplit

from agentrl.config.chat_template import template_problems
from agentrl.config.judge_address import judge_urls
from agentrl.config.layout import layout_problems
from agentrl.config.plain import flatten
from agentrl.config.schema.algorithm import UpdateSection
from agentrl.config.schema.run import ActorSection, JudgeSection, RolloutSection, RunConfig, SimulatedEngineSection
from agentrl.config.shared_gpus import kv_memory_problems
from agentrl.config.validation.algorithm import algorithm_counts, algorithm_not_negative, algorithm_problems
from agentrl.config.validation.parallelism import engine_problems, head_problems
from agentrl.config.validation.reward import reward_problems
from agentrl.config.validation.sizes import size_problems
from agentrl.config.validation.stages import stage_problems
from agentrl.config.validation.unused_keys import idle_judge_keys, idle_lora_keys, idle_training_keys
from agentrl.errors import ConfigError

_MAX_SEED = 2**63 - 1
"""Largest seed that torch and NumPy accept: a signed 64-bit number."""


class Purpose(StrEnum):
    """Command that reads a run config."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    SIMULATION = "simulation"
    EXPORT = "export"


def validate(config: RunConfig, *, source: str, purpose: Purpose = Purpose.TRAINING) -> None:
    """Refuse a config that could not run, or whose switches would have no effect.

    Raises:
        ConfigError: names `source`, the keys, their values and the way out.
    """
    problems = [*_not_finite(config), *_out_of_range(config), *_judge_contradictions(config.judge)]
    problems += [*size_problems(config), *_address_problems(config.cluster.address), *template_problems(config.model)]
    problems += reward_problems(config.reward, config.algorithm.selection.metric)
    problems += [
        *_openai_contradictions(config.rollout),
        *_vllm_contradictions(config.rollout),
        *_simulated_contradictions(config.rollout.simulated),
        *_lora_contradictions(config.actor),
        *_liger_contradictions(config.actor),
    ]
    if config.rollout.replay_routing and config.actor.compile:
        problems.append("`rollout.replay_routing` and `actor.compile` are set, which exclude each other; leave one out")
    if "" in config.rollout.stop:
        problems.append("`rollout.stop` holds an empty text, which would end every turn immediately; leave it out")
    if purpose is Purpose.TRAINING:
        misplaced = layout_problems(config)
        problems += [*_training_problems(config), *misplaced, *stage_problems(config)]
        problems += [] if misplaced else kv_memory_problems(config)
        problems += [*head_problems(config), *engine_problems(config)]
    elif purpose is Purpose.EVALUATION:
        problems += [*_evaluation_problems(config), *engine_problems(config)]
    if problems:
        raise ConfigError("; ".join(f"{source}: {problem}" for problem in problems))


def _not_finite(config: RunConfig) -> list[str]:
    values = flatten(asdict(config)).items()
    return [f"`{key}` is {value}" for key, value in values if isinstance(value, float) and not math.isfinite(value)]


def _out_of_range(config: RunConfig) -> list[str]:
    rollout, actor = config.rollout, config.actor
    critic = config.critic
    below_one = {
        "actor.learning_rate": actor.learning_rate,
        "critic.learning_rate": critic.learning_rate,
        "actor.adam_beta1": actor.adam_beta1,
        "actor.adam_beta2": actor.adam_beta2,
        "critic.adam_beta1": critic.adam_beta1,
        "critic.adam_beta2": critic.adam_beta2,
    }
    return [
        *(
            f"`{key}` is {value}, and must be from 0 to below 1"
            for key, value in below_one.items()
            if not 0 <= value < 1
        ),
        *(f"`{key}` is {value}, and must be at least 1" for key, value in _counts(config).items() if value < 1),
        *(f"`{key}` is {value}, and must be above 0" for key, value in _amounts(config).items() if value <= 0),
        *(f"`{key}` is {value}, and must not be negative" for key, value in _not_negative(config).items() if value < 0),
        *(
            []
            if config.run.seed <= _MAX_SEED
            else [f"`run.seed` is {config.run.seed}, and must be at most {_MAX_SEED}"]
        ),
        *(
            f"`{key}` is {value}, and must be above 0 and at most 1"
            for key, value in {"rollout.top_p": rollout.top_p, "validation.top_p": config.validation.top_p}.items()
            if value is not None and not 0 < value <= 1
        ),
        *(
            []
            if 0 <= rollout.max_infra_error_share <= 1
            else [f"`rollout.max_infra_error_share` is {rollout.max_infra_error_share}, and must be from 0 to 1"]
        ),
    ]


def _counts(config: RunConfig) -> dict[str, int]:
    """Return values that must be at least 1."""
    rollout, actor = config.rollout, config.actor
    return {
        "run.num_steps": config.run.num_steps,
        "rollout.num_engines": rollout.num_engines,
        "rollout.num_workers": rollout.num_workers,
        "rollout.prompts_per_step": rollout.prompts_per_step,
        "rollout.samples_per_prompt": rollout.samples_per_prompt,
        "rollout.max_concurrent_trajectories": rollout.max_concurrent_trajectories,
        "data.max_prompt_tokens": config.data.max_prompt_tokens,
        "rollout.max_response_tokens": rollout.max_response_tokens,
        "rollout.max_tool_response_tokens": rollout.max_tool_response_tokens,
        "rollout.max_tool_calls_per_turn": rollout.max_tool_calls_per_turn,
        "rollout.max_turns": rollout.max_turns,
        "rollout.simulated.kv_tokens": rollout.simulated.kv_tokens,
        "rollout.simulated.max_running": rollout.simulated.max_running,
        "rollout.simulated.max_batched_tokens": rollout.simulated.max_batched_tokens,
        "rollout.simulated.min_turns": rollout.simulated.min_turns,
        "rollout.tensor_parallel_size": rollout.tensor_parallel_size,
        "rollout.data_parallel_size": rollout.data_parallel_size,
        "actor.num_workers": actor.num_workers,
        "actor.mini_batches_per_step": actor.mini_batches_per_step,
        "actor.epochs_per_step": actor.epochs_per_step,
        "actor.max_tokens_per_micro_batch": actor.max_tokens_per_micro_batch,
        "actor.sequence_parallel_size": actor.sequence_parallel_size,
        "actor.lora.alpha": actor.lora.alpha,
        **algorithm_counts(config),
        "checkpoint.every_steps": config.checkpoint.every_steps,
        "checkpoint.keep_last": config.checkpoint.keep_last,
        **{f"stages[{index}].num_steps": stage.num_steps for index, stage in enumerate(config.stages)},
        "validation.samples_per_prompt": config.validation.samples_per_prompt,
    }


def _amounts(config: RunConfig) -> dict[str, float]:
    """Return values that must be above 0."""
    rollout, actor = config.rollout, config.actor
    return {
        "rollout.simulated.step_ms": rollout.simulated.step_ms,
        "rollout.simulated.turn_tokens_median": rollout.simulated.turn_tokens_median,
        "rollout.start_timeout_s": rollout.start_timeout_s,
        "rollout.tool_timeout_s": rollout.tool_timeout_s,
        "rollout.turn_timeout_s": rollout.turn_timeout_s,
        "rollout.trajectory_timeout_s": rollout.trajectory_timeout_s,
        "reward.timeout_s": config.reward.timeout_s,
        "algorithm.rollout_correction.max_ratio": config.algorithm.rollout_correction.max_ratio,
        "actor.max_grad_norm": actor.max_grad_norm,
        "critic.max_grad_norm": config.critic.max_grad_norm,
        "judge.max_wall_time_s": config.judge.max_wall_time_s,
        "judge.max_memory_mb": config.judge.max_memory_mb,
        "cluster.max_wait_s": config.cluster.max_wait_s,
    }


def _not_negative(config: RunConfig) -> dict[str, float]:
    """Return values that must not be negative."""
    rollout, actor = config.rollout, config.actor
    return {
        "run.seed": config.run.seed,
        "rollout.num_threads_per_engine": rollout.num_threads_per_engine,
        "rollout.simulated.step_ms_per_request": rollout.simulated.step_ms_per_request,
        "rollout.simulated.step_ms_per_prefill_token": rollout.simulated.step_ms_per_prefill_token,
        "rollout.simulated.turn_tokens_sigma": rollout.simulated.turn_tokens_sigma,
        "rollout.simulated.prompt_sigma": rollout.simulated.prompt_sigma,
        "actor.num_threads_per_worker": actor.num_threads_per_worker,
        "actor.shard_size": actor.shard_size,
        "actor.lora.rank": actor.lora.rank,
        "judge.num_slots": config.judge.num_slots,
        "actor.warmup_steps": actor.warmup_steps,
        "actor.decay_steps": actor.decay_steps,
        "critic.decay_steps": config.critic.decay_steps,
        "actor.weight_decay": actor.weight_decay,
        "actor.router_aux_loss_coef": actor.router_aux_loss_coef,
        **algorithm_not_negative(config),
        "rollout.extra_samples_per_prompt": rollout.extra_samples_per_prompt,
        "rollout.max_judge_queue_s": rollout.max_judge_queue_s,
        "rollout.max_staleness": rollout.max_staleness,
        "rollout.max_retries": rollout.max_retries,
        "rollout.temperature": rollout.temperature,
        "rollout.top_k": rollout.top_k,
        "rollout.kv_memory_gb": rollout.kv_memory_gb,
        "cluster.gpu_memory_gb": config.cluster.gpu_memory_gb,
        "validation.every_steps": config.validation.every_steps,
        "validation.temperature": config.validation.temperature or 0.0,
        "validation.top_k": config.validation.top_k or 0,
        "checkpoint.keep_best": config.checkpoint.keep_best,
    }


def _address_problems(address: str | None) -> list[str]:
    host, _, port = (address or "auto").rpartition(":")
    good_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if address in (None, "auto") or (good_port and host and not set(host) & set("/:@ ")):
        return []
    return [
        f"`cluster.address` is {address!r}, and must be `host:port`, such as `10.0.0.1:6379`, or `auto` on one of its nodes"
        "; absent, the run starts a Ray of its own"
    ]


def _evaluation_problems(config: RunConfig) -> list[str]:
    problems = []
    if config.rollout.engine == "simulated":
        problems.append(
            "`rollout.engine` is `simulated`, which writes no real text; "
            "use it with `python -m agentrl.runners.simulate`"
        )
    if not config.data.validation_files:
        problems.append(
            "`data.validation_files` is empty, so there is nothing to evaluate; name a file of held-out prompts"
        )
    cluster, rollout = config.cluster, config.rollout
    if cluster.pools or cluster.roles or cluster.extra_roles:
        # Servers are outside of the roles, so the layout need not match their engine.
        engine = "transformers" if rollout.engine == "openai" else rollout.engine
        problems += layout_problems(replace(config, rollout=replace(rollout, engine=engine)))
    return problems


def _training_problems(config: RunConfig) -> list[str]:
    rollout, selection = config.rollout, config.algorithm.selection
    problems = [*algorithm_problems(config), *idle_training_keys(config)]
    if not config.data.train_files and not (config.stages and all(stage.train_files for stage in config.stages)):
        problems.append("`data.train_files` is empty, and there is nothing to train on; name a file of prompts")
    if rollout.engine == "openai":
        problems.append(
            "`rollout.engine` is `openai`, whose servers take no new weights; train with `transformers` or `vllm`, or measure "
            "with `python -m agentrl.runners.evaluate`"
        )
    if rollout.engine == "simulated":
        problems.append(
            "`rollout.engine` is `simulated`, which writes nothing to train on; "
            "use it with `python -m agentrl.runners.simulate`"
        )
    if rollout.temperature == 0:
        problems.append("`rollout.temperature` is 0, and must be above 0: greedy samples of a prompt are all equal")
    if selection.method == "resample_on_correct" and selection.keep > rollout.samples_per_prompt:
        problems.append(
            f"`algorithm.selection.keep` is {selection.keep}, more than `rollout.samples_per_prompt` "
            f"({rollout.samples_per_prompt}) can give; lower it, or leave it out to keep half"
        )
    if selection.method == "resample_on_correct" and selection.min_positives + selection.min_negatives > selection.keep:
        problems.append(
            f"`algorithm.selection.min_positives` ({selection.min_positives}) and `min_negatives` "
            f"({selection.min_negatives}) together exceed `keep` ({selection.keep})"
        )
    if selection.min_group_size > rollout.samples_per_prompt:
        problems.append(
            f"`algorithm.selection.min_group_size` is {selection.min_group_size}: every group of "
            f"`rollout.samples_per_prompt` = {rollout.samples_per_prompt} would be dropped"
        )
    if rollout.samples_per_prompt == 1 and selection.min_group_size <= 1 and selection.drop_equal_reward:
        problems.append(
            "`rollout.samples_per_prompt` is 1, and `algorithm.selection.drop_equal_reward` drops groups whose rewards are all "
            "equal, as those of a single trajectory are; take more samples, or set `drop_equal_reward: false`"
        )
    problems += [*_mini_batch_problems(config), *_decay_problems(config)]
    if config.validation.every_steps and not config.data.validation_files:
        problems.append(
            "`validation.every_steps` is set, but `data.validation_files` is empty; name a file, or set it to 0"
        )
    if rollout.top_p < 1 or rollout.top_k > 0:
        problems.append(
            "`rollout.top_p` below 1 or `rollout.top_k` above 0 sample from a truncated distribution, which the actor's "
            "log-probabilities do not describe; train with `top_p: 1` and `top_k: 0`"
        )
    return problems


def _decay_problems(config: RunConfig) -> list[str]:
    problems = []
    updates: dict[str, UpdateSection] = {"actor": config.actor, "critic": config.critic}
    for name, update in updates.items():
        if 0 < update.decay_steps <= update.warmup_steps:
            problems.append(
                f"`{name}.decay_steps` is {update.decay_steps}, and must be above `{name}.warmup_steps` "
                f"({update.warmup_steps}), which it includes; or 0 for a constant learning rate"
            )
        if not 0 <= update.final_learning_rate_fraction <= 1:
            problems.append(
                f"`{name}.final_learning_rate_fraction` is {update.final_learning_rate_fraction}, and must be from 0 to 1"
            )
    return problems


def _mini_batch_problems(config: RunConfig) -> list[str]:
    problems, num_groups = [], config.rollout.prompts_per_step
    trained = {"actor": config.actor.mini_batches_per_step, "critic": config.critic.mini_batches_per_step}
    for name, number in trained.items():
        if number > num_groups:
            wrong = f"more than the {num_groups} groups of `rollout.prompts_per_step`"
        elif number >= 1 and num_groups % number:
            wrong = f"which does not divide the {num_groups} groups of `rollout.prompts_per_step`; change one of them"
        else:
            continue
        problems.append(f"`{name}.mini_batches_per_step` is {number}, {wrong}")
    return problems


def _openai_contradictions(rollout: RolloutSection) -> list[str]:
    section = rollout.openai
    if rollout.engine != "openai":
        if section.base_urls or section.model is not None or section.token_env is not None:
            return [
                f"`rollout.openai` is set, but `rollout.engine` is `{rollout.engine}`; set that to `openai`, or leave it out"
            ]
        return []
    if not section.base_urls:
        return ["`rollout.engine` is `openai`, but `rollout.openai.base_urls` is empty; name at least one server"]
    checks = (_base_url_problem(url, f"rollout.openai.base_urls[{i}]") for i, url in enumerate(section.base_urls))
    return [problem for problem in checks if problem]


def _base_url_problem(url: str, key: str) -> str | None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"`{key}` is {url!r}: {error}; write it as `http://10.0.0.1:8000/v1`"
    if parts.username is not None or parts.password is not None:
        # Not quoted: a config error is logged.
        return f"`{key}` holds a password; name the variable that holds the token in `rollout.openai.token_env` instead"
    if parts.scheme not in ("http", "https") or not host or parts.port == 0 or parts.query or parts.fragment:
        return f"`{key}` is {url!r}; it must be a URL such as `http://10.0.0.1:8000/v1`"
    return None


def _vllm_contradictions(rollout: RolloutSection) -> list[str]:
    if rollout.engine == "vllm":
        if importlib.util.find_spec("vllm") is not None:
            return []
        return [
            "`rollout.engine` is `vllm`, which is not installed: `pip install '.[vllm]'` for CUDA, `make vllm` for CPU; or use "
            "`transformers`"
        ]
    idle = {
        "tensor_parallel_size": rollout.tensor_parallel_size != 1,
        "data_parallel_size": rollout.data_parallel_size != 1,
        "kv_memory_gb": rollout.kv_memory_gb != 0,
        "replay_routing": rollout.replay_routing,
    }
    return [
        f"`rollout.{key}` is {getattr(rollout, key)}, which only `rollout.engine: vllm` can do"
        for key, is_set in idle.items()
        if is_set
    ]


def _simulated_contradictions(section: SimulatedEngineSection) -> list[str]:
    if section.min_turns <= section.max_turns:
        return []
    return [
        f"`rollout.simulated.min_turns` is {section.min_turns}, more than `max_turns` ({section.max_turns}); lower the one, or "
        "raise the other"
    ]


def _lora_contradictions(actor: ActorSection) -> list[str]:
    lora = actor.lora
    if lora.rank > 0:
        if importlib.util.find_spec("peft") is not None:
            return []
        return ["`actor.lora.rank` is set, but PEFT is not installed: `pip install '.[train]'`; or leave it out"]
    return idle_lora_keys(lora)


def _liger_contradictions(actor: ActorSection) -> list[str]:
    if not actor.liger or importlib.util.find_spec("liger_kernel") is not None:
        return []
    return ["`actor.liger` is set, but Liger is not installed: `pip install liger-kernel`; or leave it out"]


def _judge_contradictions(judge: JudgeSection) -> list[str]:
    try:
        urls = judge_urls(host_addr=judge.host_addr, host_port=judge.host_port, hosts=judge.hosts, key="judge.")
    except ConfigError as error:
        return [str(error)]
    problems: list[str] = []
    if judge.token_env is not None and not urls:
        problems.append("`judge.token_env` is for running judges; those that the run starts get their own token")
    if judge.placement == "per_node" and urls:
        problems.append(
            f"`judge.placement` is `per_node`, which starts judges, but {', '.join(urls)} is given; "
            "keep the addresses, or the placement"
        )
    return problems + idle_judge_keys(judge)
