"""Checks of the stages of a run."""

from collections.abc import Iterator

from agentrl.config.schema.checkpoint import StageSection
from agentrl.config.schema.run import RunConfig


def stage_problems(config: RunConfig) -> Iterator[str]:
    """Yield problems of the stages, with the key and the way out."""
    for index, stage in enumerate(config.stages):
        yield from _wrong_numbers(stage, f"stages[{index}]")
        if stage.update_reference and config.actor.lora.rank > 0:
            yield (
                f"`stages[{index}].update_reference` is set, but with `actor.lora` the reference is the base model, which "
                "never changes; leave one of them out"
            )
        if stage.update_reference and config.algorithm.kl_coefficient == 0:
            yield (
                f"`stages[{index}].update_reference` is set, but `algorithm.kl_coefficient` is 0, so there is no reference; "
                "leave one of them out"
            )
    if config.stages:
        first = config.stages[0]
        idle = {
            "max_pass_rate": first.max_pass_rate is not None,
            "reset_optimiser": first.reset_optimiser,
            "update_reference": first.update_reference,
        }
        for key in (key for key, is_set in idle.items() if is_set):
            yield f"`stages[0].{key}` is set, but before the first stage nothing was trained or rolled out; leave it out"


def _wrong_numbers(stage: StageSection, where: str) -> Iterator[str]:
    if stage.train_files == []:
        yield f"`{where}.train_files` is empty; name a file, or leave it out to go on with `data.train_files`"
