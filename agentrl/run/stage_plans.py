"""The stages that a run still has to go through, and the plan of each."""

from collections.abc import Set
from dataclasses import replace

from agentrl.checkpoints.writer import PASS_RATES
from agentrl.data.pass_rates import PassRates
from agentrl.data.prompts import PromptDataset
from agentrl.errors import CheckpointError
from agentrl.run.plan import Plan
from agentrl.run.prompt_sets import training_prompts
from agentrl.run.stages import Stage


def stages_left(plan: Plan) -> list[Stage]:
    """Return the stages that the run still has to go through, the one that it is in first."""
    if plan.directory.finished:
        return []
    latest = plan.directory.checkpoints.latest()
    num_steps_done = 0 if latest is None else latest.step
    # A run that was killed at its very end has its last checkpoint, and nothing else of its end.
    return [stage for stage in plan.stages if stage.end > num_steps_done] or plan.stages[-1:]


def plan_stage(plan: Plan, stage: Stage) -> Plan:
    """Return the plan of one stage, which begins with the newest checkpoint.

    Raises:
        ConfigError: no prompt is left for it.
        CheckpointError: that of its reference is gone, or a committed one is damaged.
    """
    store, pass_rates, first_epoch = plan.directory.checkpoints, PassRates(), 0
    latest = store.latest()
    if stage.reference_step > 0 and store.state(stage.reference_step) is None:
        raise CheckpointError(
            f"checkpoint {store.url_of(stage.reference_step)} is not there, and holds the reference of this stage "
            "(`update_reference`). Put the whole folder back, or begin anew in another `run.dir`"
        )
    if latest is not None:
        pass_rates = store.read(latest.step, PASS_RATES, PassRates.decode)
        if stage.begins_with(latest.step):
            before = plan.prompts_of_stages[stage.index - 1]
            first_epoch = _epochs_begun(before, left_out=pass_rates.left_out, position=latest.prompts_taken)
            pass_rates.leave_out_above(stage.max_pass_rate)
    return replace(
        plan,
        loaded=replace(plan.loaded, config=stage.config),
        prompts=training_prompts(stage.config, file_names=stage.file_names).without(pass_rates.left_out),
        stage=stage,
        pass_rates=pass_rates,
        first_epoch=first_epoch,
    )


def _epochs_begun(prompts: PromptDataset, *, left_out: Set[str], position: int) -> int:
    """Return the first epoch that neither a stage at `position` nor an earlier one has begun; each continues from there.

    Another data set that began with an earlier one could give an id (`sums-17@epoch1`) for the second time.
    """
    num_prompts = sum(prompt.prompt_id not in left_out for prompt in prompts.all())
    return -(-position // num_prompts)
