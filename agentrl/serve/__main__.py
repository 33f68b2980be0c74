"""Serves rollouts to any trainer: `python -m agentrl.serve config.yaml [section.key=value ...] [--check]`.

request -> agent loop -> engine -> tool call -> judge -> trajectory -> reward -> line of the reply. The workers, tools and
rewards of a training run without an actor: the trainer is elsewhere, and hands new weights over as folders.
"""

import logging
import sys

from rich.console import Console

from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.rewards.loader import prompt_check
from agentrl.run.judges import needs_judge
from agentrl.run.plan import evaluating
from agentrl.run.preflight.process_table import process_table
from agentrl.runners.command_line import make_parser, run_command
from agentrl.serve.app import ServiceApp, listening
from agentrl.serve.plan import check_service, prepare_service
from agentrl.serve.requests import PromptReader
from agentrl.serve.rollouts import RolloutService
from agentrl.serve.weights import PolicyWeights

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


def check(loaded: LoadedConfig) -> None:
    """Check a config and print the processes that it leads to."""
    checked = check_service(loaded)
    console = Console()
    for note in checked.notes:
        console.print(note, markup=False)
    console.print(process_table(checked.config, asks_judge=needs_judge(checked.tools, checked.config.reward)))
    console.print(f"{loaded.path.name}: ok (check of the service)", markup=False, highlight=False)


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = make_parser("serve", "Serve rollouts to any trainer.", package="agentrl")
    parser.add_argument("--check", action="store_true", help="check and print the plan instead of serving")
    arguments = parser.parse_intermixed_args()

    async def command() -> None:
        loaded = load_run_config(arguments.config, arguments.overrides, purpose=Purpose.SERVICE)
        if arguments.check:
            check(loaded)
        else:
            await serve(loaded)

    return run_command(command, when_stopped="open requests were cancelled")


if __name__ == "__main__":
    sys.exit(main())
