"""The `--check` of a config before training: can it run, and which processes would it start?

A check notes what it tried, warns of what is probably wrong, names what it did not look at, and raises `ConfigError` or
`ToolError` where the run must not start.
"""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from rich.console import Console

from agentrl.cluster.launch import require_room_here
from agentrl.cluster.placement.gpus import gpus_here
from agentrl.config.load import LoadedConfig
from agentrl.observability.sinks.opening import check_sinks
from agentrl.run.directory import RunDirectory
from agentrl.run.fingerprints import code_of_user, inputs_of, tools_of_servers
from agentrl.run.judges import needs_judge
from agentrl.run.plan import check_plugins, training_warnings
from agentrl.run.preflight.memory import check_memory
from agentrl.run.preflight.models.dtype import choose_dtype
from agentrl.run.preflight.models.folders import check_models, check_weights, trained_or_asked
from agentrl.run.preflight.plugins import try_tools_and_reward
from agentrl.run.preflight.policy_chat import check_chat
from agentrl.run.preflight.process_table import concurrency_table, process_table
from agentrl.run.preflight.report import CheckReport, CheckSubject
from agentrl.run.prompt_sets import data_warnings, held_out_prompts, training_prompts
from agentrl.run.stages import stages_of


class CheckLevel(StrEnum):
    """Extent of a check."""

    STATIC = "static"
    """The config and the code that it names: no network, no model, no data, no GPU."""
    FULL = "full"
    """Also reads models and data, starts or asks the judge, calls every tool and the reward, and writes to `run.dir`."""


async def check(loaded: LoadedConfig, level: CheckLevel) -> None:
    """Check a config and print the processes and the concurrency it leads to.

    Raises:
        ConfigError, ToolError: what is wrong, where, and the way out.
    """
    loaded, notes = choose_dtype(loaded)
    config = loaded.config
    tools = check_plugins(loaded, asks_servers=level is CheckLevel.FULL)
    check_sinks(loaded.config.observability)
    report = CheckReport(Console())
    for note in notes:
        report.note(note)
    for warning in training_warnings(config):
        report.warn(warning)
    if level is CheckLevel.FULL:
        subject = CheckSubject(loaded=loaded, tools=tools)
        check_model_files(subject, report)
        subject = read_data(subject, report)
        check_this_machine(subject, report)
        check_chat(subject, report)
        inputs = inputs_of(config, trains=True) | code_of_user() | tools_of_servers(tools)
        report.note(RunDirectory(config).try_out(inputs))
        await try_tools_and_reward(subject, report)
        report.not_checked(
            "how fast the engine and the update are, and whether the policy learns: a few steps show that"
        )
    else:
        report.not_checked(
            "model, data, judge, MCP servers, and calls of tools and reward: `--check` without `=static` tries them"
        )
    if config.agent_loop.agent.is_set:
        report.not_checked("the agent: it was found, and plays no episode; a run of one step shows how it does")
    report.console.print(process_table(config, asks_judge=needs_judge(tools, config.reward)))
    report.console.print(concurrency_table(config))
    report.note(f"{loaded.path.name}: ok ({level} check)")


def check_model_files(subject: CheckSubject, report: CheckReport) -> None:
    """Look at every model folder: its config, tokenizer and the headers of its weights."""
    check_models(subject.config)
    check_weights(subject.config, load=True)
    report.not_checked("numbers inside the weights of models; their names and shapes were")
    for key, path in trained_or_asked(subject.config).items():
        if not Path(path).is_dir():
            report.not_checked(f"`{key}`: weights and shapes of {path}, a model on a hub; fetch it and name its folder")


def read_data(subject: CheckSubject, report: CheckReport) -> CheckSubject:
    """Read every row of the data, and return the subject with its prompts."""
    stages = stages_of(subject.config)
    training = [training_prompts(stage.config, file_names=stage.file_names) for stage in stages]
    validation = held_out_prompts(subject.config)
    for warning in data_warnings([*training, validation]):
        report.warn(warning)
    num_prompts = " + ".join(str(len(prompts)) for prompts in training)
    held_out = validation.all() if validation else []
    report.note(f"data: {num_prompts} training prompts, {len(held_out)} for validation")
    return replace(subject, training=training, validation=held_out)


def check_this_machine(subject: CheckSubject, report: CheckReport) -> None:
    """Compare the processes and the memory that they need with this machine."""
    require_room_here(subject.config, num_gpus=gpus_here())
    memory = [check_memory(stage.config) for stage in stages_of(subject.config)]
    for note in dict.fromkeys(note for estimate in memory for note in estimate.notes):
        report.note(note)
    for warning in dict.fromkeys(warning for estimate in memory for warning in estimate.warnings):
        report.warn(warning)
    if subject.config.cluster.address is not None:
        report.not_checked(f"nodes of the cluster at {subject.config.cluster.address}, and modules that they must have")
