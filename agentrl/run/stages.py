"""The stages of a run: what changes with the steps, such as lengths, data, and what the policy is compared with.

Each stage is a run of its own, with the config that `Stage.config` holds, which begins with the checkpoint that the stage
before it ended with. So a change of stage is a resume, and nothing else has to know that there are stages.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.schema.run import RunConfig, StageSection
from agentrl.data.prompts import name_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of a run.

    Example: of stages with 300 and 85 steps the second is `Stage(index=1, start=300, config=...)`, and its config says
    `run.num_steps = 385`.
    """

    index: int
    start: int
    """Updates made before it."""
    config: RunConfig
    """Config of the stage; `run.num_steps` is its last step."""
    file_names: Mapping[Path, str]
    """Name of each prompt file in prompt ids, for the whole run (`agentrl.data.prompts.name_files`)."""
    reset_optimiser: bool = False
    has_own_data: bool = False
    """True if its prompts differ from those of the stage before."""
    max_pass_rate: float | None = None
    reference_step: int = 0
    """The reference is the policy after that update; 0 is `model.path`."""

    @property
    def end(self) -> int:
        """Updates made when it is over."""
        return self.config.run.num_steps

    def begins_with(self, step: int) -> bool:
        """Return whether nothing of it is done, when `step` updates are: what it changes has to be changed now."""
        return self.index > 0 and step == self.start


def stages_of(config: RunConfig) -> list[Stage]:
    """Return the stages of a run in order; without `stages` the run itself is the only one."""
    if not config.stages:
        return [Stage(index=0, start=0, config=config, file_names=name_files(map(Path, config.data.train_files)))]
    file_names = name_files(Path(file) for stage in config.stages for file in _files_of(stage, config))
    ends = list(itertools.accumulate(stage.num_steps for stage in config.stages))
    stages: list[Stage] = []
    reference_step = 0
    before = StageSection(num_steps=1)
    for index, (stage, end) in enumerate(zip(config.stages, ends, strict=True)):
        start = end - stage.num_steps
        reference_step = start if stage.update_reference else reference_step
        stages.append(
            Stage(
                index=index,
                start=start,
                config=_config_of(stage, config, end=end),
                file_names=file_names,
                reset_optimiser=stage.reset_optimiser,
                has_own_data=_files_of(stage, config) != _files_of(before, config)
                or (stage.max_pass_rate, before.max_pass_rate) != (None, None),
                max_pass_rate=stage.max_pass_rate,
                reference_step=reference_step,
            )
        )
        before = stage
    return stages


def _files_of(stage: StageSection, config: RunConfig) -> list[str]:
    return config.data.train_files if stage.train_files is None else stage.train_files


def _config_of(stage: StageSection, config: RunConfig, *, end: int) -> RunConfig:
    lengths = {"max_response_tokens": stage.max_response_tokens, "max_turns": stage.max_turns}
    changed = {name: value for name, value in lengths.items() if value is not None}
    data = config.data.model_copy(update={"train_files": _files_of(stage, config)})
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"num_steps": end}),
            "data": data,
            "rollout": config.rollout.model_copy(update=changed),
            "stages": [],
        }
    )
