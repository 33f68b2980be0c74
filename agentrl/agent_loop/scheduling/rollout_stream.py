"""Stream of groups: rolled out while the actor trains, delivered in the order of their prompts.

`take` starts the prompts of this batch and of `rollout.max_staleness` further ones, which run on while the actor is updated.
A group started under version v is taken at v + max_staleness at the latest, because pending groups are taken in order and
there are at most max_staleness + 1 batches of them (the bound of arXiv:2505.24298, section 5.1). With max_staleness = 0
nothing runs during the update: the synchronous run.

Groups are delivered in order, not as they finish. Otherwise the batches would depend on the run's speed, short trajectories
would be preferred, and overtaken groups would become too old and be dropped.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from agentrl import clock
from agentrl.agent_loop.scheduling.manager import AgentLoopManager, owned_tasks
from agentrl.cluster.ray.handles import all_of
from agentrl.config.schema.run import RolloutSection
from agentrl.data.prompts import PromptDataset
from agentrl.errors import UNDECODABLE, DamagedCheckpointError, EngineError
from agentrl.observability.progress import RunProgress
from agentrl.observability.step_time import end_together
from agentrl.types import Group, Prompt, TrajectoryRef

logger = logging.getLogger(__name__)

_INDEX = "groups.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """A prompt and its group."""

    prompt: Prompt
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A group in a checkpoint."""

    number: int
    is_whole: bool
    """True if the group was finished; otherwise its missing trajectories are rolled out again."""
    num_saved: int
    """Trajectories in its file; 0: there is no file."""
    digest: str = ""
    """Digest of its file."""

    def file_in(self, folder: Path) -> Path:
        """Return the path of its trajectories."""
        return folder / f"{self.number:09d}.atr"


@dataclass(slots=True, kw_only=True)
class PendingGroup:
    """A group that is running, or finished and not yet taken."""

    number: int
    """Position of its prompt in the data."""
    prompt: Prompt
    group: asyncio.Future[Group]
    finished: list[TrajectoryRef] = field(default_factory=list)
    """Its trajectories that have ended."""
    is_awaited: bool = False
    is_retry: bool = False


class RolloutStream:
    """Pending groups in the order of their numbers; `async with` rolls out until its end.

    The first error of a trajectory cancels the block, and is raised.
    """

    def __init__(
        self,
        rollouts: AgentLoopManager,
        prompts: PromptDataset,
        rollout: RolloutSection,
        *,
        num_steps: int,
        progress: RunProgress,
        first_step: int = 1,
        first_position: int = 0,
    ) -> None:
        """Take the parts; nothing runs yet.

        `prompts` is at the position of the next prompt to start; none is started for a step after `num_steps`, the stage's
        last. The stage began with `first_step`, at `first_position` of the prompts, also in a run that resumes within it.
        """
        self._rollouts = rollouts
        self._prompts = prompts
        self._rollout = rollout
        self._num_steps = num_steps
        self._progress = progress
        self._first_step = first_step
        self._first_position = first_position
        self._resources = contextlib.AsyncExitStack()
        self._pending: dict[str, PendingGroup] = {}
        """Pending groups, keyed by prompt id, which is unique in a run."""
        self._staleness: list[int] = []
        self._num_too_old = 0
        self._waited_s = 0.0

    async def __aenter__(self) -> Self:
        self._tasks = await self._resources.enter_async_context(owned_tasks())
        self._resources.callback(self._cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._resources.__aexit__(kind, error, traceback)

    async def take(self, count: int, *, step: int) -> list[RolledOut]:
        """Return the next `count` prompts with their groups, for update `step`.

        Raises:
            RolloutError, DataError: too many trajectories were lost (`FailureBudget`).
            EngineError: an engine sampled a group twice with weights older than `rollout.max_staleness` allows.
        """
        self._start_new(count, step=step)
        self._show(itertools.islice(self._pending.values(), count), step=step)
        waits_since = clock.now()
        taken: list[RolledOut] = []
        while len(taken) < count:
            pending = next(iter(self._pending.values()))
            group = await pending.group
            del self._pending[pending.prompt.prompt_id]
            if self._is_fresh(group, step=step):
                taken.append(RolledOut(prompt=pending.prompt, group=group))
            else:
                self._roll_out_again(pending, step=step)
        self._waited_s += clock.now() - waits_since
        groups = end_together([rolled_out.group for rolled_out in taken])
        return [replace(rolled_out, group=group) for rolled_out, group in zip(taken, groups, strict=True)]

    def metrics(self) -> dict[str, float]:
        """Return counts since the last call and, with `max_staleness` above 0, the state of the pending groups."""
        num_too_old, self._num_too_old = self._num_too_old, 0
        staleness, self._staleness = self._staleness or [0], []
        waited_s, self._waited_s = self._waited_s, 0.0
        counts = {"rollout/groups_too_old": float(num_too_old)}
        if self._rollout.max_staleness == 0:
            return counts
        return counts | {
            "rollout/staleness_mean": sum(staleness) / len(staleness),
            "rollout/staleness_max": float(max(staleness)),
            "rollout/groups_in_flight": float(sum(not item.group.done() for item in self._pending.values())),
            "rollout/groups_waiting": float(sum(item.group.done() for item in self._pending.values())),
            "time/rollout_wait_s": waited_s,
        }

    async def save(self, folder: Path) -> None:
        """Write the finished trajectories (by the workers) and an index of all pending groups."""
        saved = await all_of(self._save(pending, folder) for pending in self._pending.values())
        _write_index(folder, saved)

    async def restore(self, folder: Path, *, source: str) -> None:
        """Restore the groups that `save` wrote: load finished trajectories, and restart missing ones before any new prompt.

        `source` names the place that `folder` was fetched from, for errors.

        Raises:
            DamagedCheckpointError: a file is missing, or differs from what was written.
        """
        groups = _read_index(folder, source)
        loaded = await all_of(self._load(saved, folder, source) for saved in groups)
        missing: dict[int, list[TrajectoryRef]] = {}
        for saved, trajectories in zip(groups, loaded, strict=True):
            if not saved.is_whole:
                missing[saved.number] = trajectories
            else:
                prompt = self._prompts.at(saved.number)
                group = asyncio.get_running_loop().create_future()
                group.set_result(Group(prompt_id=prompt.prompt_id, trajectories=trajectories))
                self._add(saved.number, prompt, group, trajectories)
        self._start(missing, step=0, finished=missing)
        self._pending = dict(sorted(self._pending.items(), key=lambda item: item[1].number))

    def _cancel(self) -> None:
        for pending in self._pending.values():
            pending.group.cancel()

    def _start_new(self, count: int, *, step: int) -> None:
        """Start prompts until `count` and the batches that may run ahead are pending."""
        batches_ahead = min(self._rollout.max_staleness, self._num_steps - step)
        missing = count + batches_ahead * self._rollout.prompts_per_step - len(self._pending)
        if missing > 0:
            first = self._prompts.position
            self._prompts.seek(first + missing)
            self._start(range(first, first + missing), step=step)

    def _start(
        self, numbers: Iterable[int], *, step: int, finished: Mapping[int, Sequence[TrajectoryRef]] | None = None
    ) -> None:
        """Start prompts; those of one batch together, so that the first trajectory of each precedes the second of any.

        `numbers` are positions in the data; `finished` has existing trajectories of these prompts, keyed by position.
        """
        finished = finished or {}
        for for_step, batch in itertools.groupby(numbers, key=lambda number: self._step_of(number, step)):
            positions = list(batch)
            prompts = [self._prompts.at(position) for position in positions]
            started = self._rollouts.start(
                prompts,
                step=for_step,
                samples_per_prompt=self._rollout.samples_per_prompt,
                extra_samples=self._rollout.extra_samples_per_prompt,
                finished={
                    prompt.prompt_id: finished.get(position, ())
                    for position, prompt in zip(positions, prompts, strict=True)
                },
                on_finished=self._finish_trajectory,
                tasks=self._tasks,
            )
            for position, prompt, group in zip(positions, prompts, started, strict=True):
                self._add(position, prompt, group, finished.get(position, ()))

    def _step_of(self, number: int, step: int) -> int:
        """Return the step in the names of a group's trajectories; their seeds depend on it.

        With `max_staleness` above 0 it follows from the position in the data alone, because a resumed run may start a group at
        another step.
        """
        if self._rollout.max_staleness == 0:
            return step
        return self._first_step + (number - self._first_position) // self._rollout.prompts_per_step

    def _add(
        self, number: int, prompt: Prompt, group: asyncio.Future[Group], finished: Sequence[TrajectoryRef]
    ) -> None:
        self._pending[prompt.prompt_id] = PendingGroup(
            number=number, prompt=prompt, group=group, finished=list(finished)
        )

    async def _save(self, pending: PendingGroup, folder: Path) -> SavedGroup:
        is_whole = pending.group.done()
        # Trajectories lost to the infrastructure are rolled out again after a restore: it may work by then.
        trajectories = (
            pending.group.result().trajectories
            if is_whole
            else [trajectory for trajectory in pending.finished if trajectory.summary.reward is not None]
        )
        saved = SavedGroup(number=pending.number, is_whole=is_whole, num_saved=len(trajectories))
        if not trajectories:
            return saved
        return replace(saved, digest=await self._rollouts.save_group(saved.file_in(folder), trajectories))

    async def _load(self, saved: SavedGroup, folder: Path, source: str) -> list[TrajectoryRef]:
        if not saved.num_saved:
            return []
        return await self._rollouts.load_group(
            saved.file_in(folder), num_trajectories=saved.num_saved, digest=saved.digest, source=source
        )

    def _show(self, pending_groups: Iterable[PendingGroup], *, step: int) -> None:
        """Show the missing trajectories of the awaited groups in the progress bar."""
        missing = 0
        for pending in pending_groups:
            pending.is_awaited = True
            missing += 0 if pending.group.done() else self._rollout.samples_per_prompt - len(pending.finished)
        self._progress.start_rollout(f"step {step} rollout", num_trajectories=missing)

    def _finish_trajectory(self, trajectory: TrajectoryRef) -> None:
        pending = self._pending[trajectory.summary.prompt_id]
        pending.finished.append(trajectory)
        if pending.is_awaited:
            self._progress.finish_trajectory(num_tokens=trajectory.summary.num_response_tokens)

    def _is_fresh(self, group: Group, *, step: int) -> bool:
        """Return whether `max_staleness` allows the age of each trajectory's oldest token; if so, record the ages."""
        scored = [trajectory.summary for trajectory in group.trajectories if trajectory.summary.reward is not None]
        staleness = [step - 1 - summary.policy_version for summary in scored]
        if max(staleness, default=0) > self._rollout.max_staleness:
            return False
        self._staleness += staleness
        return True

    def _roll_out_again(self, pending: PendingGroup, *, step: int) -> None:
        """Roll out a prompt again that was too old; because groups are taken in order, an engine must have had old weights."""
        prompt_id = pending.prompt.prompt_id
        if pending.is_retry:
            raise EngineError(
                f"group `{prompt_id}`, step {step}: sampled twice with weights older than `rollout.max_staleness` = "
                f"{self._rollout.max_staleness} allows. An engine does not receive new weights"
            )
        logger.warning("group `%s`, step %d: too old, an engine missed new weights, rolling out again", prompt_id, step)
        self._num_too_old += 1
        self._start([pending.number], step=step)
        self._pending[prompt_id].is_retry = True


def _write_index(folder: Path, groups: Iterable[SavedGroup]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / _INDEX).write_bytes(orjson.dumps([asdict(group) for group in groups]))


def _read_index(folder: Path, source: str) -> list[SavedGroup]:
    try:
        return [SavedGroup(**group) for group in orjson.loads((folder / _INDEX).read_bytes())]
    except (FileNotFoundError, *UNDECODABLE) as error:
        raise DamagedCheckpointError.of(source, _INDEX, error) from error
