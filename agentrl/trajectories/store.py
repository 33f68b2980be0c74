"""Every trajectory of a run on disk, with the prompts needed to score or replay them.

    <run>/trajectories/step_000012.jsonl         rolled out for update 12
    <run>/trajectories/validation_000012.jsonl   rolled out to validate the policy after update 12

Each file holds one line per batch, prompt and trajectory (see `codec`). Call `append` before the checkpoint of the same step is
written, so that the files of a checkpoint are complete.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.errors import UNDECODABLE, DamagedCheckpointError
from agentrl.observability.json_lines import append_json_lines, read_json_lines
from agentrl.trajectories.codec import (
    RecordKind,
    decode_prompt,
    decode_trajectory,
    encode_batch,
    encode_prompt,
    encode_trajectory,
    record_kind,
)
from agentrl.types import Prompt, Trajectory

logger = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"(?:step|validation)_(\d{6,})\.jsonl")


class TrajectoryStore:
    """The `trajectories/` folder of a run. Several processes may append to it at once."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "trajectories"

    def append(
        self,
        step: int,
        trajectories: Iterable[Trajectory],
        *,
        prompts: Iterable[Prompt] = (),
        validation: bool = False,
        leave_out_recorded: bool = False,
    ) -> Path:
        """Append the rollout of update `step`, or of the validation after it; may be called several times for a step.

        Args:
            step: the update that these trajectories are for; with `validation`, the last update.
            trajectories: the trajectories, failed ones (`infra_error`) included.
            prompts: the prompts of `trajectories`, each once, so that these can be scored again.
            validation: the trajectories only measure the policy.
            leave_out_recorded: skip trajectories whose ids are already in the file, because a writer was killed.

        Returns:
            The file, once all is on the disk.
        """
        path = self._folder / f"{'validation' if validation else 'step'}_{step:06d}.jsonl"
        trajectories, num_missing = list(trajectories), 0
        if leave_out_recorded:
            recorded, num_announced = _recorded_ids(path)
            trajectories = [trajectory for trajectory in trajectories if trajectory.trajectory_id not in recorded]
            num_missing = num_announced - len(recorded)
        append_json_lines(path, _encode_all(prompts, trajectories, num_to_announce=len(trajectories) - num_missing))
        return path

    def take_back(self, *, after_step: int) -> None:
        """Remove the steps after `after_step`, a checkpoint; -1 removes all."""
        for path in self._folder.glob("*.jsonl"):
            match = _FILE_NAME.fullmatch(path.name)
            if match and int(match[1]) > after_step:
                path.unlink()


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of one file in order; warn at its end if some are lost.

    Raises:
        ValueError: a line is damaged or from another version of the format.
    """
    num_read = num_announced = 0
    for record in read_json_lines(path):
        match record_kind(record):
            case RecordKind.BATCH:
                num_announced += record["num_trajectories"]
            case RecordKind.TRAJECTORY:
                num_read += 1
                yield decode_trajectory(record)
            case RecordKind.PROMPT:
                pass
    if num_read < num_announced:
        logger.warning("%s: %d of %d trajectories: its end is lost, or is being written", path, num_read, num_announced)


def write_saved_group(path: Path, trajectories: Iterable[Trajectory]) -> str:
    """Write trajectories into a new file of a checkpoint, and return its digest."""
    path.unlink(missing_ok=True)
    append_json_lines(path, map(encode_trajectory, trajectories))
    return _digest_of(path)


def read_saved_group(path: Path, num_trajectories: int, *, digest: str, source: str) -> list[Trajectory]:
    """Return the trajectories of a file of a checkpoint, which was fetched from the folder `source`.

    Args:
        path: the file.
        num_trajectories: expected number of trajectories.
        digest: result of `write_saved_group`.
        source: the folder, for errors.

    Raises:
        DamagedCheckpointError: the file is missing or was changed.
    """
    try:
        actual = _digest_of(path)  # always: a missing file would read as an empty one
        if digest != actual:
            raise ValueError("its SHA-256 differs from the recorded one")
        trajectories = list(read_trajectories(path))
        if len(trajectories) != num_trajectories:
            raise EOFError(f"{len(trajectories)} trajectories of {num_trajectories}")
    except (FileNotFoundError, EOFError, *UNDECODABLE) as error:
        raise DamagedCheckpointError.of(source, path.name, error) from error
    return trajectories


def read_prompts(path: Path) -> dict[str, Prompt]:
    """Return the prompts of one file, keyed by id.

    Raises:
        ValueError: a line is damaged or from another version of the format.
    """
    records = (record for record in read_json_lines(path) if record_kind(record) is RecordKind.PROMPT)
    return {prompt.prompt_id: prompt for prompt in map(decode_prompt, records)}


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recorded_ids(path: Path) -> tuple[set[str], int]:
    """Return the ids of the trajectories of a file, and how many its batches announce."""
    ids, num_announced = set[str](), 0
    for record in read_json_lines(path):
        kind = record_kind(record)
        if kind is RecordKind.TRAJECTORY:
            ids.add(record["trajectory_id"])
        elif kind is RecordKind.BATCH:
            num_announced += record["num_trajectories"]
    return ids, num_announced


def _encode_all(
    prompts: Iterable[Prompt], trajectories: Iterable[Trajectory], *, num_to_announce: int
) -> Iterator[dict[str, object]]:
    if num_to_announce > 0:
        yield encode_batch(num_to_announce)
    for prompt in prompts:
        yield encode_prompt(prompt)
    for trajectory in trajectories:
        yield encode_trajectory(trajectory)
