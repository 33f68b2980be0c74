"""A run before and while it runs: everything that is checked first, then everything that is alive."""

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from rich.console import Console

from agentrl import clock
from agentrl.agent_loop.gateway.agents import check_agent
from agentrl.agent_loop.scheduling.manager import AgentLoopManager
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.checkpoints.full_disk import report_full_disk
from agentrl.checkpoints.writer import CheckpointKeeper
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.launch import Cluster, launch, launch_engines, require_room_here
from agentrl.cluster.learner import Learner
from agentrl.cluster.placement.gpus import gpus_here
from agentrl.cluster.placement.nodes import Nodes
from agentrl.cluster.ray.handles import all_of
from agentrl.cluster.ray.runtime import guarded_run
from agentrl.cluster.ray.user_modules import search_like_workers
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.weight_sync import WeightSync
from agentrl.cluster.workers.extra_roles import ExtraRoles
from agentrl.config.class_path import import_by_path
from agentrl.config.load import LoadedConfig
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.warnings import config_warnings
from agentrl.data.pass_rates import PassRates
from agentrl.data.prompts import PromptDataset
from agentrl.environments.loader import check_environment
from agentrl.errors import ConfigError
from agentrl.judge.connection import ToolContext
from agentrl.observability.advice.advisor import Advisor
from agentrl.observability.dashboard_process import dashboard_process
from agentrl.observability.logs import configure_logging, repeating
from agentrl.observability.metrics import MetricsLogger
from agentrl.observability.progress import RunProgress
from agentrl.observability.sinks.opening import check_sinks
from agentrl.rewards.loader import check_reward
from agentrl.rewards.math_answer import MATH_ANSWER_REWARD
from agentrl.run.directory import RunDirectory
from agentrl.run.fingerprints import code_of_user, inputs_of, tools_of_servers
from agentrl.run.judges import MAX_SESSIONS, driver_judge, judges_on_nodes
from agentrl.run.preflight.extra_roles import check_extra_roles
from agentrl.run.preflight.memory import check_memory
from agentrl.run.preflight.models.dtype import choose_dtype
from agentrl.run.preflight.models.folders import check_evaluated, check_model_path, check_models, check_weights
from agentrl.run.preflight.policy_chat import check_chat_of_run
from agentrl.run.preflight.user_functions import check_algorithm_functions
from agentrl.run.prompt_sets import data_warnings, held_out_prompts, overlong_warnings, training_prompts
from agentrl.run.stages import Stage, stages_of
from agentrl.tools.base import ToolConfig
from agentrl.tools.builder import read_tool_schema
from agentrl.tools.executor import validator_of
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.tools.jupyter_tool import JUPYTER_TOOL
from agentrl.tools.loader import load_tool_configs, with_server_tools
from agentrl.types import Prompt

logger = logging.getLogger(__name__)

ClusterT = TypeVar("ClusterT", bound=Cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """An evaluation that could start: config, tools and data are read and checked."""

    loaded: LoadedConfig
    directory: RunDirectory
    tools: list[ToolConfig]
    validation_prompts: list[Prompt]
    notes: list[str] = field(default_factory=list)
    """Values chosen for this machine, for the log."""
    warnings: list[str]
    """Warnings about the config (`config_warnings` and others), logged when the run has its log."""

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return self.loaded.config

    def prompts_to_check(self) -> list[list[Prompt]]:
        """Return every prompt that may be rolled out; those of what is about to begin come last."""
        return [self.validation_prompts]

    def without(self, prompt_ids: Collection[str]) -> Self:
        """Return the plan without these prompts, which are too long.

        Raises:
            ConfigError: no training prompt is left, or no held-out one.
        """
        left = [prompt for prompt in self.validation_prompts if prompt.prompt_id not in prompt_ids]
        if self.validation_prompts and not left:
            raise ConfigError("data.validation_files: every prompt is longer than `data.max_prompt_tokens`; raise it")
        return replace(self, validation_prompts=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(EvaluationPlan):
    """A training run, or a stage of it, that could start; `loaded.config` is the stage's config."""

    prompts: PromptDataset
    prompts_of_stages: list[PromptDataset]
    stages: list[Stage]
    stage: Stage
    pass_rates: PassRates
    first_epoch: int = 0
    """First epoch of the stage's own data, when the stage is about to start."""
    history: RunHistory = field(default_factory=RunHistory)
    """The same in all stages, and continued from the commands before this one."""

    def prompts_to_check(self) -> list[list[Prompt]]:
        """Return every prompt that may be rolled out, in later stages too; those of what is about to begin come last."""
        later = [prompts.all() for prompts in self.prompts_of_stages[self.stage.index + 1 :]]
        return [*later, [*self.prompts.all(), *self.validation_prompts]]

    def without(self, prompt_ids: Collection[str]) -> Self:
        """See `EvaluationPlan.without`; prompts that the stage leaves out stay left out on resume."""
        self.pass_rates.left_out |= frozenset(prompt_ids)
        held_out = EvaluationPlan.without(self, prompt_ids).validation_prompts
        return replace(self, prompts=self.prompts.without(prompt_ids), validation_prompts=held_out)


PlanT = TypeVar("PlanT", bound=EvaluationPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRun:
    """An evaluation that is alive."""

    plan: EvaluationPlan
    rollouts: AgentLoopManager
    engines: EngineFleet
    metrics: MetricsLogger
    progress: RunProgress

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return self.plan.config


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(EvaluationRun):
    """A training run that is alive."""

    plan: Plan
    nodes: Nodes
    extra_roles: ExtraRoles
    learner: Learner
    weight_sync: WeightSync
    checkpoints: CheckpointKeeper
    advisor: Advisor


def prepare(loaded: LoadedConfig) -> Plan:
    """Read and check everything that a training run needs; no process has started when this raises.

    Raises:
        ConfigError: where, what and the way out.
    """
    loaded, notes = choose_dtype(loaded)
    config, directory = loaded.config, RunDirectory(loaded.config)
    tools = check_plugins(loaded, asks_servers=not directory.finished)
    stages = stages_of(config)
    prompts = [training_prompts(stage.config, file_names=stage.file_names) for stage in stages]
    held_out = held_out_prompts(config)
    warnings = training_warnings(config) + data_warnings([held_out, *prompts])
    if not directory.finished:  # a finished run is only shown, here too if it was made elsewhere
        check_sinks(config.observability)
        check_models(config)
        check_weights(config)
        require_room_here(config, num_gpus=gpus_here())
        warnings += [warning for stage in stages for warning in check_memory(stage.config).warnings]
        check_chat_of_run(config, tools)
    _open(directory, config, tools, trains=True)
    return Plan(
        loaded=loaded,
        directory=directory,
        tools=tools,
        prompts=prompts[0],
        prompts_of_stages=prompts,
        stages=stages,
        stage=stages[0],
        pass_rates=PassRates(),
        validation_prompts=held_out.all() if held_out else [],
        warnings=list(dict.fromkeys(warnings)),
        notes=notes,
        history=RunHistory.of_run(directory.metrics),
    )


def prepare_evaluation(loaded: LoadedConfig) -> EvaluationPlan:
    """Read and check everything that an evaluation needs; see `prepare`."""
    loaded, notes = choose_dtype(loaded)
    config, directory = loaded.config, RunDirectory(loaded.config)
    tools = check_plugins(loaded, asks_servers=not directory.finished)
    held_out = held_out_prompts(config)
    if not directory.finished:
        check_sinks(config.observability)
        check_without_actor(config, tools)
    _open(directory, config, tools, trains=False)
    return EvaluationPlan(
        loaded=loaded,
        directory=directory,
        tools=tools,
        validation_prompts=held_out.all() if held_out else [],
        warnings=data_warnings([held_out]),
        notes=notes,
    )


def check_without_actor(config: RunConfig, tools: Sequence[ToolConfig]) -> None:
    """Check machine, model and chat template of an evaluation or a service.

    Raises:
        ConfigError: see `prepare`.
    """
    require_room_here(config, num_gpus=gpus_here(), with_models=False)
    check_model_path(config.model.path)
    if config.rollout.engine == "transformers":  # vLLM knows other models, and refuses what is missing itself
        check_evaluated(config)
    check_chat_of_run(config, tools)


def _open(directory: RunDirectory, config: RunConfig, tools: Sequence[ToolConfig], *, trains: bool) -> None:
    inputs = inputs_of(config, trains=trains) | code_of_user() | tools_of_servers(tools)
    with report_full_disk(directory.path):
        directory.open(inputs, trains=trains)


def training_warnings(config: RunConfig) -> list[str]:
    """Return warnings about the config of a training run.

    Raises:
        ConfigError: a function of the user's own cannot be used; see `check_algorithm_functions`.
    """
    check_algorithm_functions(config.algorithm, has_critic=config.has_critic)
    return config_warnings(config)


def check_plugins(loaded: LoadedConfig, *, asks_servers: bool = True) -> list[ToolConfig]:
    """Return the tools as plain data, after importing their classes, the reward's, the environment's and those of extra roles.

    Without `asks_servers`, an MCP server stands for its tools.

    Raises:
        ConfigError: a wrong key, or a class that is not there.
    """
    tools = load_tool_configs(loaded.config)
    if asks_servers:
        tools = with_server_tools(tools)
    search_like_workers(loaded.path.parent, on_cluster=loaded.config.cluster.address is not None)
    for tool in tools:
        import_by_path(tool.class_name, key="class_name")
        if tool.class_name == FUNCTION_TOOL:
            import_by_path(tool.config["function"], key="function")
        if tool.tool_schema is not None:
            validator_of(read_tool_schema(tool.tool_schema))
    _check_sessions(loaded.config, tools)
    check_extra_roles(loaded.config.cluster, tools)
    check_reward(loaded.config.reward, loaded.config.judge)
    check_environment(loaded.config.agent_loop)
    if loaded.config.agent_loop.agent.is_set:
        check_agent(loaded.config.agent_loop.agent, loaded.path.resolve().parent)
    return tools


def _check_sessions(config: RunConfig, tools: Sequence[ToolConfig]) -> None:
    """Refuse more trajectories at once than notebooks of the judge that the run starts, of which each keeps one."""
    at_once, held = config.rollout.max_concurrent_trajectories * config.rollout.num_engines, int(MAX_SESSIONS * 0.8)
    is_own = not config.judge.hosts and config.judge.placement == "driver"
    notebooks = [tool for tool in tools if tool.class_name == JUPYTER_TOOL and tool.config["host_addr"] is None]
    if notebooks and is_own and at_once > held:
        raise ConfigError(
            f"`rollout.max_concurrent_trajectories` x `rollout.num_engines` is {at_once}, and the run's judge holds {held} "
            "notebooks at once. Lower them, or name judges with more sessions in `judge.hosts`"
        )


@contextlib.asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Run]:
    """Start every process of a training run, and end them all, whatever happens."""
    launcher = functools.partial(launch, history=plan.history)
    async with _alive(plan, launcher, num_steps=plan.config.run.num_steps) as (cluster, plan, run):
        keeper = CheckpointKeeper(
            plan.directory.checkpoints,
            plan.config.checkpoint,
            cluster.learner,
            note=plan.directory.note_checkpoint,
            scratch=plan.directory.in_hand,
            pinned={plan.stage.reference_step},
        )
        async with contextlib.aclosing(keeper):
            yield Run(
                plan=plan,
                rollouts=run.rollouts,
                nodes=cluster.nodes,
                extra_roles=cluster.extra_roles,
                learner=cluster.learner,
                engines=cluster.engines,
                weight_sync=cluster.weight_sync,
                checkpoints=keeper,
                advisor=Advisor(
                    num_ahead=plan.config.rollout.max_staleness, has_agent=plan.config.agent_loop.agent.is_set
                ),
                metrics=run.metrics,
                progress=run.progress,
            )


@contextlib.asynccontextmanager
async def evaluating(plan: EvaluationPlan, *, num_steps: int = 1) -> AsyncIterator[EvaluationRun]:
    """Start every process of an evaluation, which has no actor, and end them all, whatever happens.

    `num_steps` is for the progress bar; 0: there is none.
    """
    async with _alive(plan, launch_engines, num_steps=num_steps) as (_, _, run):
        yield run


def _worker_config(plan: EvaluationPlan, context: ToolContext, tokenizer_class: str | None) -> WorkerConfig:
    config = plan.config
    return WorkerConfig(
        model=config.model,
        rollout=config.rollout,
        reward=config.reward,
        tools=tuple(plan.tools),
        context=context,
        run_seed=config.run.seed,
        run_dir=str(plan.directory.path),
        validation=config.validation,
        agent_loop=config.agent_loop,
        max_row_tokens=config.max_trajectory_tokens,
        max_session_tokens=config.max_session_tokens,
        tokenizer_class=tokenizer_class,
    )


@contextlib.asynccontextmanager
async def _alive(
    plan: PlanT, launcher: Callable[..., AbstractAsyncContextManager[ClusterT]], *, num_steps: int
) -> AsyncIterator[tuple[ClusterT, PlanT, EvaluationRun]]:
    """Start what every run has; the plan comes back without the prompts that are too long."""
    config, path = plan.config, plan.directory.path
    console, started_at = Console(), clock.now()
    configure_logging(path, console=console)
    for note in plan.notes:
        logger.info("%s", note, extra=repeating(note))  # once, and not in each stage
    for warning in plan.warnings:
        logger.warning("%s: %s", plan.loaded.path.name, warning)
    if any(scorer.class_name == MATH_ANSWER_REWARD for scorer in config.reward.scorers):
        logger.info("reward: answers are read by `reward.answer_format: %s`", config.reward.answer_format)
    with report_full_disk(path), guarded_run() as temp_dir, dashboard_process(path, config.observability):
        async with (
            driver_judge(plan.tools, config.reward, config.judge) as judge,
            launcher(config, temp_dir=temp_dir, user_folder=plan.loaded.path.parent) as cluster,
            judges_on_nodes(plan.tools, config.reward, config.judge) as node_judges,
        ):
            [engine, *_] = cluster.engines
            context = ToolContext(judge=judge or node_judges, workers=dict(cluster.extra_roles))
            worker_config = _worker_config(plan, context, await engine.tokenizer_class(config.model.path))
            workers = await cluster.spawn_loop_workers(AgentLoopWorker, worker_config)
            stats = await all_of(engine.stats() for engine in cluster.engines)
            rollouts = AgentLoopManager(
                config.rollout,
                cluster.engines,
                workers,
                max_prompt_tokens=config.data.max_prompt_tokens,
                kv_tokens=[engine.kv_tokens_capacity for engine in stats],
                kv_block_tokens=max(engine.kv_block_tokens for engine in stats),
                reward_timeout_s=config.reward.timeout_s,
                max_wait_s=config.cluster.max_wait_s,
                has_agent=config.agent_loop.agent.is_set,
            )
            overlong: dict[str, int] = {}
            for prompts in plan.prompts_to_check():
                overlong |= await rollouts.check_prompts(prompts)
            for warning in overlong_warnings(overlong, config.data):
                logger.warning("%s: %s", plan.loaded.path.name, warning)
            plan = plan.without(overlong)
            logger.info("run: all processes are ready after %.0f s", clock.now() - started_at)
            with (
                MetricsLogger(path, config.observability, config=config.model_dump()) as metrics,
                RunProgress(console, num_steps=num_steps) as progress,
            ):
                alive = EvaluationRun(
                    plan=plan, rollouts=rollouts, engines=cluster.engines, metrics=metrics, progress=progress
                )
                try:
                    yield cluster, plan, alive
                finally:
                    await rollouts.aclose()
