"""Relations between keys: keys that contradict each other, or need a missing package."""

import importlib.util
from enum import StrEnum
from urllib.parse import urlsplit

from agentrl.config.chat_template import template_problems
from agentrl.config.judge_address import judge_urls
from agentrl.config.layout import layout_problems
from agentrl.config.schema.algorithm import UpdateSection
from agentrl.config.schema.run import ActorSection, JudgeSection, RolloutSection, RunConfig, SimulatedEngineSection
from agentrl.config.shared_gpus import kv_memory_problems
from agentrl.config.validation.algorithm import algorithm_problems
from agentrl.config.validation.parallelism import engine_problems, head_problems
from agentrl.config.validation.reward import reward_problems
from agentrl.config.validation.stages import stage_problems
from agentrl.config.validation.unused_keys import changed, idle_judge_keys, idle_lora_keys, idle_training_keys
from agentrl.errors import ConfigError


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
    problems = [*_judge_contradictions(config.judge), *_deadlines_cut_short(config.rollout)]
    problems += [*_address_problems(config.cluster.address), *template_problems(config.model)]
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
    if purpose in (Purpose.TRAINING, Purpose.SIMULATION) and not _has_prompts(config):
        problems.append("`data.train_files` is empty, and there is nothing to train on; name a file of prompts")
    if purpose is Purpose.TRAINING:
        misplaced = layout_problems(config)
        problems += [*_training_problems(config), *misplaced, *stage_problems(config)]
        problems += [] if misplaced else kv_memory_problems(config)
        problems += [*head_problems(config), *engine_problems(config)]
    elif purpose is Purpose.EVALUATION:
        problems += [*_evaluation_problems(config), *engine_problems(config)]
    if problems:
        raise ConfigError("; ".join(f"{source}: {problem}" for problem in problems))


def _has_prompts(config: RunConfig) -> bool:
    return bool(config.data.train_files or (config.stages and all(stage.train_files for stage in config.stages)))


def _address_problems(address: str | None) -> list[str]:
    host, _, port = (address or "auto").rpartition(":")
    good_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if address in (None, "auto") or (good_port and host and not set(host) & set("/:@ ")):
        return []
    return [
        f"`cluster.address` is {address!r}, and must be `host:port`, such as `10.0.0.1:6379`, or `auto` on one of its nodes"
        "; absent, the run starts a Ray of its own"
    ]


def _deadlines_cut_short(rollout: RolloutSection) -> list[str]:
    """Return explicitly set time limits of a turn or call that exceed the episode's."""
    return [
        f"`rollout.{name}` is {value:g}, above `rollout.trajectory_timeout_s` ({rollout.trajectory_timeout_s:g}), which ends "
        "the episode first; lower the one, or raise the other"
        for name, value in changed(rollout, "turn_timeout_s", "tool_timeout_s")
        if value > rollout.trajectory_timeout_s
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
        problems += layout_problems(
            config.model_copy(update={"rollout": rollout.model_copy(update={"engine": engine})})
        )
    return problems


def _training_problems(config: RunConfig) -> list[str]:
    rollout, selection = config.rollout, config.algorithm.selection
    problems = [*algorithm_problems(config), *idle_training_keys(config)]
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
    return problems


def _mini_batch_problems(config: RunConfig) -> list[str]:
    problems, num_groups = [], config.rollout.prompts_per_step
    trained = {"actor": config.actor.mini_batches_per_step, "critic": config.critic.mini_batches_per_step}
    for name, number in trained.items():
        if number > num_groups:
            wrong = f"more than the {num_groups} groups of `rollout.prompts_per_step`"
        elif num_groups % number:
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
