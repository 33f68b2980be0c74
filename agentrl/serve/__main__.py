"""Serves rollouts to any trainer: `python -m agentrl.serve config.yaml [section.key=value ...] [--check]`.

request -> agent loop -> engine -> tool call -> judge -> trajectory -> reward -> line of the reply. The workers, tools and
rewards of a training run without an actor: the trainer is elsewhere, and hands new weights over as folders.
"""

import logging

from rich.console import Console

from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.rewards.loader import prompt_check
from agentrl.run.judges import needs_judge
from agentrl.run.plan import evaluating
from agentrl.run.preflight.plugins import try_tools_and_reward
from agentrl.run.preflight.process_table import process_table
from agentrl.run.preflight.report import CheckReport, CheckSubject
from agentrl.runners.command_line import exit_without_threads, make_parser, run_command
from agentrl.serve.app import ServiceApp, listening
from agentrl.serve.plan import bind, check_service, prepare_service
from agentrl.serve.requests import PromptReader
from agentrl.serve.rollouts import RolloutService
from agentrl.serve.weights import PolicyWeights
from agentrl.types import Prompt

_SAMPLE = Prompt(prompt_id="check", messages=[{"role": "user", "content": "What is 0 + 1?"}], answer="1")
"""Prompt with which `--check` calls tools and reward."""

logger = logging.getLogger("agentrl.serve")  # also where it is `__main__`


async def serve(loaded: LoadedConfig) -> None:
    """Answer requests until a signal comes, or nothing can be rolled out any more."""
    plan = prepare_service(loaded)  # all checks, before any process starts
    config = plan.run.config
    reader = PromptReader(config.data, prompt_check(config.reward))
    with plan.socket:
        async with evaluating(plan.run, num_steps=0) as run:  # judge, Ray, engines, agent-loop workers
            rollouts = RolloutService(
                run.rollouts,
                max_open=config.service.max_open_trajectories,
                max_prompt_tokens=config.data.max_prompt_tokens,
            )
            weights = PolicyWeights(config, run.engines)
            app = ServiceApp(rollouts, weights, run.engines, reader).build(token=plan.token)
            async with weights.serving_late_engines(), listening(app, plan.socket):
                host, port = plan.socket.getsockname()[:2]
                logger.info("service: ready at http://%s:%d", f"[{host}]" if ":" in host else host, port)
                await rollouts.until_failed()


async def check(loaded: LoadedConfig) -> None:
    """Check a config, call its tools and reward, and print the processes that it leads to; nothing is written."""
    checked, report = check_service(loaded), CheckReport(Console())
    config = checked.config
    for note in checked.notes:
        report.note(note)
    with bind(config.service):
        report.note(f"service: {config.service.host}:{config.service.port} is free")
    subject = CheckSubject(loaded=checked.loaded, tools=checked.tools, validation=[_SAMPLE], prompt_is_invented=True)
    await try_tools_and_reward(subject, report)
    report.not_checked("columns that tools and reward want of a prompt: these come with requests")
    report.console.print(process_table(config, asks_judge=needs_judge(checked.tools, config.reward), trains=False))
    report.note(f"{loaded.path.name}: ok (check of the service)")


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = make_parser("serve", "Serve rollouts to any trainer.", package="agentrl")
    parser.add_argument("--check", action="store_true", help="check and print the plan instead of serving")
    arguments = parser.parse_intermixed_args()

    async def command() -> None:
        loaded = load_run_config(arguments.config, arguments.overrides, purpose=Purpose.SERVICE)
        await (check(loaded) if arguments.check else serve(loaded))

    return run_command(command, when_stopped="open requests were cancelled")


if __name__ == "__main__":
    exit_without_threads(main())  # a tool of the user's may have one that never returns
