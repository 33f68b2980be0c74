"""A warm start before and while it runs: what is read and checked first, then the trainer, the metrics and the checkpoints."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from agentrl.checkpoints.atomic_folder import PolicyFolder
from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.full_disk import report_full_disk
from agentrl.config.schema.sft import SftConfig
from agentrl.errors import ConfigError
from agentrl.observability.dashboard_process import dashboard_process
from agentrl.observability.logs import ONLY_IN_FILE, configure_logging
from agentrl.observability.metrics import SFT_COLUMNS, MetricsLogger
from agentrl.observability.progress import RunProgress
from agentrl.observability.reports.text_curve import loss_curve
from agentrl.observability.sinks.opening import check_sinks
from agentrl.run.fingerprints import named_files
from agentrl.run.preflight.models.dtype import chosen_dtype
from agentrl.run.preflight.models.folders import check_architecture, check_lora, check_model_path, check_weights_of
from agentrl.run.resumable_folder import ResumableFolder
from agentrl.run.resume_rules import Changes, changes_of_keys
from agentrl.run.sft.data import SftData, read_data, shuffled_forever
from agentrl.run.stop_request import StopRequest

if TYPE_CHECKING:
    from agentrl.training.packing.sequences import TokenisedExample
    from agentrl.training.supervised import SupervisedTrainer

logger = logging.getLogger(__name__)

_MODEL = "model"
"""Folder of weights and optimiser in a checkpoint."""


class SftDirectory(ResumableFolder):
    """The folder of a warm start."""

    def __init__(self, config: SftConfig) -> None:
        super().__init__(config, num_steps=1)  # a finished run has all its steps, whose number cannot change
        self._config = config
        if config.output_dir is not None:
            self.policy = PolicyFolder(Path(config.output_dir))

    def describe_result(self) -> str:
        """Return what a person wants to see at the end."""
        return f"{loss_curve(self.metrics)}\ntrained model: {self.result()['policy']}\nmetrics:       {self.metrics}"

    def _changes(self, saved: bytes, *, num_steps_done: int) -> Changes:
        return changes_of_keys(saved, self._config)


@dataclass(frozen=True, slots=True, kw_only=True)
class SftPlan:
    """A warm start that is ready to start or resume."""

    config: SftConfig
    directory: SftDirectory
    data: SftData | None
    """None: the run is finished, and only its result is wanted."""


def prepare(config: SftConfig) -> SftPlan:
    """Read and check everything that a warm start needs, and take its folder.

    Raises:
        ConfigError: where, what and the way out.
    """
    config = resolved(config, Console())
    directory = SftDirectory(config)
    data = None if directory.finished else read_inputs(config)
    with report_full_disk(directory.path):
        directory.open(inputs_of(config), trains=True)
    return SftPlan(config=config, directory=directory, data=data)


def resolved(config: SftConfig, console: Console) -> SftConfig:
    """Return the config with a type in the place of `auto`; this and all that follows is logged to `console`."""
    configure_logging(None, console=console)
    if config.model.dtype != "auto":
        return config
    model, note = chosen_dtype(config.model, run_dir=config.run.dir)
    logger.info(note)
    return config.model_copy(update={"model": model})


def read_inputs(config: SftConfig) -> SftData:
    """Check the model folder, tokenise the dialogues, and check that the trained model can be put where it belongs.

    Raises:
        ConfigError: where, what and the way out.
    """
    check_sinks(config.observability)
    logger.info("reading and tokenising %s", ", ".join([*config.data.train_files, *config.data.validation_files]))
    check_model_path(config.model.path)
    check_architecture(config.model.path)
    check_lora(config.lora, config.model.path, key="lora")
    if config.training.initial_weights == "pretrained":
        check_weights_of(config.model.path, load=True)
    target = Path(config.output_dir or "")
    is_foreign = target.is_file() or (target.is_dir() and any(target.iterdir()))
    if config.output_dir is not None and is_foreign and not (target / "config.json").is_file():
        raise ConfigError(f"output_dir: {target} holds no model, and would be replaced by one. Name another folder.")
    return read_data(config)


def inputs_of(config: SftConfig) -> dict[str, Path]:
    """Return the files and model folders that a warm start reads, by the key that names each."""
    lists = {"data.train_files": config.data.train_files, "data.validation_files": config.data.validation_files}
    single = {"tool_config_path": config.tool_config_path, "model.chat_template": config.model.chat_template}
    files = named_files(lists, single)
    # A model may be written over the folder without weights that describes it.
    if Path(config.model.path).is_dir() and config.output_dir != config.model.path:
        files["model.path"] = Path(config.model.path)
    return files


@dataclass(slots=True, kw_only=True)
class SftRun:
    """A warm start that is alive; `restore` must be called first."""

    config: SftConfig
    directory: SftDirectory
    data: SftData
    trainer: "SupervisedTrainer"
    metrics: MetricsLogger
    progress: RunProgress
    stop: StopRequest
    num_steps: int
    order: Iterator[int]
    """Indices of the dialogues, without end."""
    _step_saved: int = 0
    _position: int = 0

    def restore(self) -> int:
        """Go on from the last checkpoint; returns its step, or 0."""
        store = self.directory.checkpoints
        latest = store.latest()
        step = 0 if latest is None else latest.step
        self.metrics.take_back(after_step=-1 if latest is None else step)
        if latest is not None:
            self.trainer.load(f"{store.url_of(step)}/{_MODEL}", step=step)
            logger.info("resumed from %s", store.url_of(step))
        self._step_saved = step
        self.progress.resume(num_steps_done=step)
        return step

    def batch(self, step: int) -> "list[TokenisedExample]":
        """Return the dialogues of update `step`, from 1; steps must ascend."""
        size = self.config.training.examples_per_step
        start = (step - 1) * size
        indices = list(islice(self.order, start - self._position, start - self._position + size))
        self._position = start + size
        return self.data.training.examples(indices)

    def held_out_loss(self, step: int) -> dict[str, float]:
        """Measure the loss on the held-out dialogues, where it is time to; otherwise give no metrics."""
        every = self.config.validation.every_steps
        if self.data.validation is None or (step % every != 0 and step != self.num_steps):
            return {}
        self.progress.start_phase(f"step {step} held-out loss")
        started = time.monotonic()
        loss = self.trainer.mean_loss(self.data.validation.examples())
        return {"validation/loss": loss, "time/validation_s": time.monotonic() - started}

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record the numbers of a step, if there are any."""
        if metrics:
            self.metrics.log(step, metrics)

    def save(self, step: int) -> None:
        """Write a checkpoint of `step`, if that is not done."""
        if step <= self._step_saved:
            return
        self.progress.start_phase(f"step {step} checkpoint")
        store = self.directory.checkpoints
        self.trainer.save(f"{store.begin(step)}/{_MODEL}")
        store.commit(RunState(step=step, prompts_taken=step * self.config.training.examples_per_step))
        self.directory.note_checkpoint(step)
        store.prune(keep_last=self.config.checkpoint.keep_last, keep_best=0)
        self._step_saved = step
        logger.info("checkpoint of step %d: written to %s", step, store.url_of(step), extra=ONLY_IN_FILE)

    def finish(self) -> None:
        """Write the model and mark the run as finished."""
        self.progress.start_phase("export")
        policy = self.directory.policy
        self.trainer.export(str(policy.begin()))
        policy.take()
        self.directory.finish({"num_steps": self.num_steps, "policy": str(policy.path)})


def num_steps_of(config: SftConfig, num_dialogues: int) -> int:
    """Return the updates of the whole run."""
    training = config.training
    return training.num_steps or math.ceil(training.num_epochs * num_dialogues / training.examples_per_step)


@contextlib.contextmanager
def running(plan: SftPlan, stop: StopRequest) -> Iterator[SftRun]:
    """Build model and optimiser, and leave everything in order, whatever happens."""
    from agentrl.training.supervised import SupervisedTrainer  # loads torch

    assert plan.data is not None
    config, path, console = plan.config, plan.directory.path, Console()
    configure_logging(path, console=console)
    for name, dialogues in {"training": plan.data.training, "held-out": plan.data.validation}.items():
        if dialogues is not None:
            logger.info("%s: %s", name, dialogues.describe())
    num_dialogues = len(plan.data.training.dialogues)
    num_steps = num_steps_of(config, num_dialogues)
    trainer = SupervisedTrainer(config.model, config.training, num_steps=num_steps, lora=config.lora)
    with (
        report_full_disk(path),
        contextlib.closing(trainer),
        dashboard_process(path, config.observability),
        MetricsLogger(path, config.observability, columns=SFT_COLUMNS, config=config.model_dump()) as metrics,
        RunProgress(console, num_steps=num_steps) as progress,
    ):
        trainer.setup()
        logger.info("model: %s: %s", config.model.path, trainer.describe())
        yield SftRun(
            config=config,
            directory=plan.directory,
            data=plan.data,
            trainer=trainer,
            metrics=metrics,
            progress=progress,
            stop=stop,
            num_steps=num_steps,
            order=shuffled_forever(num_dialogues, config.training.seed),
        )
