"""A run before and while it runs: everything that is checked first, then everything that is alive."""

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl.agent_loop.manager import AgentLoopManager
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.cluster.handles import all_of
from agentrl.cluster.launch import launch
from agentrl.cluster.learner import Learner, WeightSync
from agentrl.cluster.runtime import guarded_run
from agentrl.config.class_path import import_by_path
from agentrl.config.load import LoadedConfig
from agentrl.config.schema import DataSection, RewardSection, RunConfig
from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError
from agentrl.observability.logs import configure_logging
from agentrl.observability.metrics import MetricsLogger
from agentrl.observability.progress import RunProgress
from agentrl.rewards.loader import check_reward
from agentrl.runners.judges import judge_for, node_judges_for
from agentrl.runners.run_directory import RunDirectory
from agentrl.tools.base import ToolConfig
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.tools.loader import load_tool_configs
from agentrl.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run that could start: config, tools and data are read and checked."""

    loaded: LoadedConfig
    directory: RunDirectory
    tools: list[ToolConfig]
    reward: RewardSection
    prompts: PromptDataset
    validation_prompts: list[Prompt]

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return self.loaded.config


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is alive."""

    plan: Plan
    rollouts: AgentLoopManager
    learner: Learner
    weight_sync: WeightSync
    metrics: MetricsLogger
    progress: RunProgress

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return self.plan.config


def prepare(loaded: LoadedConfig) -> Plan:
    """Read and check everything that a run needs; no process has started when this raises.

    Raises:
        ConfigError: where, what and the way out.
    """
    directory = RunDirectory(loaded.config)
    tools, reward = check_plugins(loaded)
    check_model_path(loaded.config.model.path)
    prompts, validation_prompts = read_data(loaded.config)
    directory.open(_inputs(loaded.config))
    return Plan(
        loaded=loaded,
        directory=directory,
        tools=tools,
        reward=reward,
        prompts=prompts,
        validation_prompts=validation_prompts,
    )


def _inputs(config: RunConfig) -> dict[str, Path]:
    """Return the files that decide what a run does, by the key that names them."""
    files = {f"data.train_files[{index}]": Path(file) for index, file in enumerate(config.data.train_files)}
    files |= {f"data.validation_files[{index}]": Path(file) for index, file in enumerate(config.data.validation_files)}
    tool_file = config.tool_config_path or config.rollout.tool_config_path
    return files | ({"tool_config_path": Path(tool_file)} if tool_file else {})


def check_plugins(loaded: LoadedConfig) -> tuple[list[ToolConfig], RewardSection]:
    """Return tools and reward as plain data, after a look whether their classes can be imported.

    Raises:
        ConfigError: a wrong key, or a class that is not there.
    """
    tools = load_tool_configs(loaded.config)
    reward = check_reward(loaded.config.reward, loaded.config.judge)
    # The workers find the user's modules in the folder that the run ships to them; here it is the config's own.
    sys.path.append(str(loaded.path.parent))
    for tool in tools:
        import_by_path(tool.class_name, key="class_name")
        if tool.class_name == FUNCTION_TOOL:
            import_by_path(tool.config["function"], key="function")
    import_by_path(reward.class_name, key="reward.class_name")
    return tools, reward


def check_model_path(path: str) -> None:
    """Refuse a model folder that is not there; the name of a model on a hub is left to the workers.

    Raises:
        ConfigError: `path` is no folder with a `config.json` and a `tokenizer.json`, and no hub name either.
    """
    folder = Path(path)
    if folder.is_dir():
        missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
        if missing:
            raise ConfigError(
                f"model.path: {path} has no {' and no '.join(missing)}. Name a Hugging Face model folder."
            )
    elif folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ConfigError(f"model.path: {path}: no such folder. Name a Hugging Face model folder, or a model on a hub.")


def read_data(config: RunConfig) -> tuple[PromptDataset, list[Prompt]]:
    """Return the training prompts, and the held-out ones.

    Raises:
        ConfigError: a file, a row or a column is missing or malformed.
    """
    data, seed = config.data, config.run.seed
    prompts = _dataset(data.train_files, data, shuffle=data.shuffle, seed=seed)
    if not data.validation_files:
        return prompts, []
    held_out = _dataset(data.validation_files, data, shuffle=False, seed=seed)
    return prompts, held_out.take(len(held_out))


@contextlib.asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Run]:
    """Start every process of the run, and end them all, whatever happens."""
    config, path = plan.config, plan.directory.path
    console = Console()
    configure_logging(path, console=console)
    with guarded_run() as temp_dir:
        async with (
            judge_for(plan.tools, plan.reward, config.judge) as judged,
            launch(config, temp_dir=temp_dir, user_folder=plan.loaded.path.parent) as cluster,
            node_judges_for(judged, config.judge) as judged,
        ):
            worker_config = WorkerConfig(
                model_path=config.model.path,
                rollout=config.rollout,
                reward=judged.reward,
                tools=tuple(judged.tools),
                run_seed=config.run.seed,
                run_dir=str(path),
            )
            workers = await cluster.spawn_loop_workers(AgentLoopWorker, worker_config, secret_env=judged.secret_env)
            stats = await all_of(engine.stats() for engine in cluster.engines)
            rollouts = AgentLoopManager(
                config.rollout,
                cluster.engines,
                workers,
                kv_tokens=[engine.kv_tokens_capacity for engine in stats],
                reward_timeout_s=config.reward.timeout_s,
            )
            await rollouts.check_prompts([*plan.prompts.all(), *plan.validation_prompts])
            with MetricsLogger(path) as metrics, RunProgress(console, num_steps=config.run.num_steps) as progress:
                try:
                    yield Run(
                        plan=plan,
                        rollouts=rollouts,
                        learner=cluster.learner,
                        weight_sync=cluster.weight_sync,
                        metrics=metrics,
                        progress=progress,
                    )
                finally:
                    await rollouts.aclose()


def _dataset(files: list[str], data: DataSection, *, shuffle: bool, seed: int) -> PromptDataset:
    return PromptDataset(
        [Path(file) for file in files],
        prompt_key=data.prompt_key,
        answer_key=data.answer_key,
        system_prompt=data.system_prompt,
        shuffle=shuffle,
        seed=seed,
    )
