"""Groups without end: rolled out while the actor trains, handed over in the order of their prompts.

`take` starts as many prompts as are wanted now, and those of `rollout.max_staleness` batches more, which go on while the actor
learns from what it got. What was started under version v is then taken at v + max_staleness at the latest, because all that
is in hand is taken in order and is no more than max_staleness + 1 batches (the bound of arXiv:2505.24298, section 5.1). With
max_staleness = 0 nothing goes on: that is the synchronous run.

In order, and not whoever finishes first: else the batches of a run would depend on its speed, short trajectories would be
preferred, and, as all places are always taken, whoever is overtaken would get too old and be thrown away.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import orjson

from agentrl import clock
from agentrl.agent_loop.manager import AgentLoopManager, owned_tasks
from agentrl.cluster.handles import all_of
from agentrl.config.schema import RolloutSection
from agentrl.data.prompts import PromptDataset
from agentrl.errors import UNDECODABLE, DamagedCheckpointError, EngineError
from agentrl.observability.progress import RunProgress
from agentrl.observability.step_time import end_together
from agentrl.types import Group, Prompt, TrajectoryRef

logger = logging.getLogger(__name__)

_INDEX = "groups.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """A prompt and what became of it."""

    prompt: Prompt
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """A group in a checkpoint."""

    number: int
    is_whole: bool
    """Whether it was finished; of any other, what is missing is rolled out again."""
    num_saved: int
    """Trajectories in its file; without any, there is none."""
    digest: str | None = None
    """Of its file; a checkpoint of before there were digests has none."""

    def file_in(self, folder: Path) -> Path:
        """Return where its trajectories are."""
        return folder / f"{self.number:09d}.jsonl"


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A group under way, or finished and not yet taken."""

    number: int
    """Position of its prompt in the data."""
    prompt: Prompt
    group: asyncio.Future[Group]
    finished: list[TrajectoryRef] = field(default_factory=list)
    """Those of its trajectories that have ended."""
    is_awaited: bool = False
    is_second_try: bool = False


class RolloutStream:
    """The groups in hand, in the order of their numbers; `rollout_stream` makes one."""

    def __init__(
        self,
        rollouts: AgentLoopManager,
        prompts: PromptDataset,
        rollout: RolloutSection,
        *,
        num_steps: int,
        progress: RunProgress,
        tasks: asyncio.TaskGroup,
        first_step: int,
        first_position: int,
    ) -> None:
        """Take the parts; the arguments are those of `rollout_stream`."""
        self._rollouts = rollouts
        self._prompts = prompts
        self._rollout = rollout
        self._num_steps = num_steps
        self._progress = progress
        self._tasks = tasks
        self._first_step = first_step
        self._first_position = first_position
        self._flights: dict[str, _Flight] = {}
        """By prompt id, which is unique in a run."""
        self._staleness: list[int] = []
        self._num_too_old = 0
        self._waited_s = 0.0

    async def take(self, count: int, *, step: int) -> list[RolledOut]:
        """Return the next `count` prompts with their groups, for update `step`.

        Raises:
            RolloutError, DataError: too many trajectories could not be made (`FailureBudget`).
            EngineError: an engine keeps sampling with weights older than `rollout.max_staleness` allows.
        """
        self._start_new(count, step=step)
        self._show(itertools.islice(self._flights.values(), count), step=step)
        waits_since = clock.now()
        taken: list[RolledOut] = []
        while len(taken) < count:
            flight = next(iter(self._flights.values()))
            group = await flight.group
            del self._flights[flight.prompt.prompt_id]
            if self._is_fresh(group, step=step):
                taken.append(RolledOut(prompt=flight.prompt, group=group))
            else:
                self._start_again(flight, step=step)
        self._waited_s += clock.now() - waits_since
        groups = end_together([made.group for made in taken])
        return [replace(made, group=group) for made, group in zip(taken, groups, strict=True)]

    def metrics(self) -> dict[str, float]:
        """Return what happened since the last call, and in a run that rolls out ahead what is in hand."""
        num_too_old, self._num_too_old = self._num_too_old, 0
        staleness, self._staleness = self._staleness or [0], []
        waited_s, self._waited_s = self._waited_s, 0.0
        counts = {"rollout/groups_too_old": float(num_too_old)}
        if self._rollout.max_staleness == 0:
            return counts
        return counts | {
            "rollout/staleness_mean": sum(staleness) / len(staleness),
            "rollout/staleness_max": float(max(staleness)),
            "rollout/groups_in_flight": float(sum(not flight.group.done() for flight in self._flights.values())),
            "rollout/groups_waiting": float(sum(flight.group.done() for flight in self._flights.values())),
            "time/rollout_wait_s": waited_s,
        }

    async def save(self, folder: Path) -> None:
        """Write what is in hand: finished trajectories, by workers, and of which prompts some are under way."""
        saved = await all_of(self._save(flight, folder) for flight in self._flights.values())
        _write_index(folder, saved)

    async def restore(self, folder: Path, *, source: str) -> None:
        """Go on with what `save` wrote: what was finished is loaded, what is missing starts again, before anything new.

        Args:
            folder: of this machine.
            source: the folder that it was fetched from, for errors.

        Raises:
            DamagedCheckpointError: a file is missing, or is not what was written.
        """
        groups = _read_index(folder, source)
        loaded = await all_of(self._load(saved, folder, source) for saved in groups)
        missing: dict[int, list[TrajectoryRef]] = {}
        for saved, made in zip(groups, loaded, strict=True):
            if made is None or not saved.is_whole:
                missing[saved.number] = made or []
            else:
                prompt = self._prompts.at(saved.number)
                group = asyncio.get_running_loop().create_future()
                group.set_result(Group(prompt_id=prompt.prompt_id, trajectories=made))
                self._add(saved.number, prompt, group, made)
        self._start(missing, step=0, finished=missing)
        self._flights = dict(sorted(self._flights.items(), key=lambda item: item[1].number))

    def cancel(self) -> None:
        """End what is under way."""
        for flight in self._flights.values():
            flight.group.cancel()

    def _start_new(self, count: int, *, step: int) -> None:
        """Start as many prompts as are missing to `count` and what may go on during the updates that follow."""
        batches_ahead = min(self._rollout.max_staleness, self._num_steps - step)
        missing = count + batches_ahead * self._rollout.prompts_per_step - len(self._flights)
        if missing > 0:
            first = self._prompts.position
            self._prompts.seek(first + missing)
            self._start(range(first, first + missing), step=step)

    def _start(
        self, numbers: Iterable[int], *, step: int, finished: Mapping[int, Sequence[TrajectoryRef]] | None = None
    ) -> None:
        """Start prompts; those of the same batch together, since the first of each goes before the second of any.

        Args:
            numbers: their positions in the data.
            step: see `_step_of`.
            finished: trajectories of them that are there already, by position.
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
        """Return the step that names a group's trajectories, from which their seeds follow.

        In a run that rolls out ahead, the one that it would be for if nothing were dropped in its stage: when a group is
        started, a resumed run may be at another step.
        """
        if self._rollout.max_staleness == 0:
            return step
        return self._first_step + (number - self._first_position) // self._rollout.prompts_per_step

    def _add(
        self, number: int, prompt: Prompt, group: asyncio.Future[Group], finished: Sequence[TrajectoryRef]
    ) -> None:
        self._flights[prompt.prompt_id] = _Flight(number=number, prompt=prompt, group=group, finished=list(finished))

    async def _save(self, flight: _Flight, folder: Path) -> SavedGroup:
        is_whole = flight.group.done()
        # What is lost to the infrastructure is no reason to lose it again: the world may have mended by then.
        made = (
            flight.group.result().trajectories
            if is_whole
            else [m for m in flight.finished if m.summary.reward is not None]
        )
        saved = SavedGroup(number=flight.number, is_whole=is_whole, num_saved=len(made))
        if not made:
            return saved
        return replace(saved, digest=await self._rollouts.save_group(saved.file_in(folder), made))

    async def _load(self, saved: SavedGroup, folder: Path, source: str) -> list[TrajectoryRef] | None:
        """Return what is there of a group; None if it is of another prompt than has its place now."""
        if not saved.num_saved:
            return []
        file = saved.file_in(folder)
        made = await self._rollouts.load_group(
            file, num_trajectories=saved.num_saved, digest=saved.digest, source=source
        )
        prompt_id, was = self._prompts.at(saved.number).prompt_id, made[0].summary.prompt_id
        if was == prompt_id:
            return made
        # Ids of prompts without a column of them were others in earlier versions, and with them the order.
        logger.warning("group `%s` in %s: that place is `%s` now, which is rolled out anew", was, source, prompt_id)
        return None

    def _show(self, flights: Iterable[_Flight], *, step: int) -> None:
        """Let the progress bar count what is missing of the groups that are waited for."""
        missing = 0
        for flight in flights:
            flight.is_awaited = True
            missing += 0 if flight.group.done() else self._rollout.samples_per_prompt - len(flight.finished)
        self._progress.start_rollout(f"step {step} rollout", num_trajectories=missing)

    def _finish_trajectory(self, made: TrajectoryRef) -> None:
        flight = self._flights[made.summary.prompt_id]
        flight.finished.append(made)
        if flight.is_awaited:
            self._progress.finish_trajectory(num_tokens=made.summary.num_response_tokens)

    def _is_fresh(self, group: Group, *, step: int) -> bool:
        """Note how many updates the oldest token of each trajectory lags behind; tell whether that is allowed."""
        scored = [made.summary for made in group.trajectories if made.summary.reward is not None]
        staleness = [step - 1 - summary.policy_version for summary in scored]
        if max(staleness, default=0) > self._rollout.max_staleness:
            return False
        self._staleness += staleness
        return True

    def _start_again(self, flight: _Flight, *, step: int) -> None:
        """Roll out a prompt once more: the order of groups makes none too old, so an engine has had old weights for a while."""
        prompt_id = flight.prompt.prompt_id
        if flight.is_second_try:
            raise EngineError(
                f"group `{prompt_id}`, step {step}: sampled twice with weights older than `rollout.max_staleness` = "
                f"{self._rollout.max_staleness} allows: an engine does not get the new ones"
            )
        logger.warning("group `%s`, step %d: too old: an engine has missed weights; rolled out again", prompt_id, step)
        self._num_too_old += 1
        self._start([flight.number], step=step)
        self._flights[prompt_id].is_second_try = True


def _write_index(folder: Path, groups: Iterable[SavedGroup]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / _INDEX).write_bytes(orjson.dumps([asdict(group) for group in groups]))


def _read_index(folder: Path, source: str) -> list[SavedGroup]:
    try:
        return [SavedGroup(**group) for group in orjson.loads((folder / _INDEX).read_bytes())]
    except (FileNotFoundError, *UNDECODABLE) as error:
        raise DamagedCheckpointError.of(source, _INDEX, error) from error


@contextlib.asynccontextmanager
async def rollout_stream(
    rollouts: AgentLoopManager,
    prompts: PromptDataset,
    rollout: RolloutSection,
    *,
    num_steps: int,
    progress: RunProgress,
    first_step: int = 1,
    first_position: int = 0,
) -> AsyncIterator[RolloutStream]:
    """Roll out for as long as the context lasts; an error of any trajectory's worker ends it at once, and is raised.

    Args:
        rollouts: makes the groups.
        prompts: at the position of the next one to start.
        rollout: what holds in the stage.
        num_steps: where the stage ends, beyond which nothing is started.
        progress: shows what is waited for.
        first_step: of the stage, also where the run goes on in the middle of it.
        first_position: where in `prompts` the stage began.
    """
    async with owned_tasks() as tasks:
        stream = RolloutStream(
            rollouts,
            prompts,
            rollout,
            num_steps=num_steps,
            progress=progress,
            tasks=tasks,
            first_step=first_step,
            first_position=first_position,
        )
        yield stream
        stream.cancel()
