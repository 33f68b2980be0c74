"""Relations between keys: keys that contradict each other, have no effect, or need a missing package."""

import importlib.util
from collections.abc import Iterator
from enum import StrEnum

from agentrl.config.chat_template import template_problems
from agentrl.config.schema.addresses import is_loopback
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.algorithm import algorithm_problems, stage_problems
from agentrl.config.validation.layout import kv_memory_problems, layout_problems
from agentrl.config.validation.reward import reward_problems
from agentrl.config.validation.unused_keys import unused_keys
from agentrl.errors import ConfigError


class Purpose(StrEnum):
    """Command that reads a run config."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    SIMULATION = "simulation"
    EXPORT = "export"
    SERVICE = "service"


def validate(config: RunConfig, *, source: str, purpose: Purpose = Purpose.TRAINING) -> None:
    """Refuse a config that could not run, or whose switches would have no effect.

    Raises:
        ConfigError: names `source`, the keys, their values and the way out.
    """
    trains = purpose is Purpose.TRAINING
    problems = [*_general_problems(config), *template_problems(config.model), *unused_keys(config, trains=trains)]
    problems += reward_problems(config.reward, config.algorithm.selection.metric)
    prompts = config.data.train_files or (config.stages and all(stage.train_files for stage in config.stages))
    if purpose in (Purpose.TRAINING, Purpose.SIMULATION) and not prompts:
        problems.append("`data.train_files` is empty, and there is nothing to train on; name a file of prompts")
    if trains:
        misplaced = layout_problems(config)
        problems += [*_training_problems(config), *algorithm_problems(config), *misplaced, *stage_problems(config)]
        problems += [] if misplaced else kv_memory_problems(config)
    elif purpose is Purpose.EVALUATION:
        problems += [*_evaluation_problems(config), *_problems_of_layout_without_models(config)]
    elif purpose is Purpose.SERVICE:
        problems += [*_service_problems(config), *_problems_of_layout_without_models(config)]
    if problems:
        raise ConfigError("; ".join(f"{source}: {problem}" for problem in problems))


def _general_problems(config: RunConfig) -> Iterator[str]:
    rollout, actor = config.rollout, config.actor
    if rollout.engine == "openai" and not rollout.openai.base_urls:
        yield "`rollout.engine` is `openai`, but `rollout.openai.base_urls` is empty; name at least one server"
    if rollout.replay_routing and actor.compile:
        yield "`rollout.replay_routing` and `actor.compile` are set, which exclude each other; leave one out"
    yield from _agent_problems(config)
    yield from _missing_packages(config)


def _agent_problems(config: RunConfig) -> Iterator[str]:
    agent = config.agent_loop.agent
    if not agent.is_set:
        return
    if agent.callable is not None and agent.command:
        yield "`agent_loop.agent` has `callable` and `command`; name the agent by one of them"
    if config.tools is not None or config.tool_config_path is not None or config.rollout.tool_config_path is not None:
        yield "`agent_loop.agent` and tools are set; an agent brings tools of its own, so leave the run's out"
    if config.agent_loop.environment is not None:
        yield "`agent_loop.agent` and `agent_loop.environment` are set; an agent plays the whole episode, so leave one out"
    if config.rollout.replay_routing:
        yield "`rollout.replay_routing` is set, and the experts of an agent's rows are not recorded; leave it out"


def _missing_packages(config: RunConfig) -> Iterator[str]:
    def is_missing(package: str) -> bool:
        return importlib.util.find_spec(package) is None

    if config.rollout.engine == "vllm" and is_missing("vllm"):
        yield (
            "`rollout.engine` is `vllm`, which is not installed: `pip install '.[vllm]'` for CUDA, `make vllm` for CPU; or use "
            "`transformers`"
        )
    if config.actor.lora.rank > 0 and is_missing("peft"):
        yield "`actor.lora.rank` is set, but PEFT is not installed: `pip install '.[train]'`; or leave it out"
    if config.actor.liger and is_missing("liger_kernel"):
        yield "`actor.liger` is set, but Liger is not installed: `pip install liger-kernel`; or leave it out"


def _evaluation_problems(config: RunConfig) -> Iterator[str]:
    if not config.data.validation_files:
        yield "`data.validation_files` is empty, so there is nothing to evaluate; name a file of held-out prompts"


def _service_problems(config: RunConfig) -> Iterator[str]:
    if config.service.token_env is None and not is_loopback(config.service.host):
        yield (
            f"`service.host` is {config.service.host}, which other machines reach, and `service.token_env` is not set; name a "
            "variable that holds a token, or listen on 127.0.0.1"
        )


def _problems_of_layout_without_models(config: RunConfig) -> Iterator[str]:
    cluster, rollout = config.cluster, config.rollout
    if cluster.pools or cluster.roles or cluster.extra_roles:
        if rollout.engine == "openai":  # servers are outside of the roles, so the layout need not match their engine
            rollout = rollout.model_copy(update={"engine": "transformers"})
        yield from layout_problems(config.model_copy(update={"rollout": rollout}))


def _training_problems(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    if rollout.engine == "openai":
        yield (
            "`rollout.engine` is `openai`, whose servers take no new weights; train with `transformers` or `vllm`, or measure "
            "with `python -m agentrl.runners.evaluate`"
        )
    if rollout.temperature == 0:
        yield "`rollout.temperature` is 0, and must be above 0: greedy samples of a prompt are all equal"
    if config.validation.every_steps and not config.data.validation_files:
        yield "`validation.every_steps` is set, but `data.validation_files` is empty; name a file, or set it to 0"
