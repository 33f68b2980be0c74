"""Every trajectory of a run on disk, with the prompts needed to score or replay them.

    <run>/trajectories/step_000012.jsonl         rolled out for update 12
    <run>/trajectories/validation_000012.jsonl   rolled out to validate the policy after update 12

Each file holds one line per prompt and trajectory (see `codec`). Call `append` before the checkpoint of the same step is
written, so that the files of a checkpoint are complete.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from agentrl.errors import UNDECODABLE, DamagedCheckpointError
from agentrl.observability.json_lines import append_json_lines, read_json_lines
from agentrl.trajectories.codec import (
    RecordKind,
    decode_prompt,
    decode_trajectory,
    encode_prompt,
    encode_trajectory,
    record_kind,
)
from agentrl.types import Prompt, Trajectory

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

        `prompts` has each prompt of `trajectories` once, so that these can be scored again. With `leave_out_recorded`,
        trajectories whose ids are already in the file are skipped, because a writer was killed.

        Returns:
            The file, once all is on the disk.
        """
        path = self._folder / f"{'validation' if validation else 'step'}_{step:06d}.jsonl"
        recorded: set[str] = set()
        if leave_out_recorded:
            recorded = {trajectory.trajectory_id for trajectory in read_trajectories(path)}
        new = (trajectory for trajectory in trajectories if trajectory.trajectory_id not in recorded)
        append_json_lines(path, chain(map(encode_prompt, prompts), map(encode_trajectory, new)))
        return path

    def take_back(self, *, after_step: int) -> None:
        """Remove the steps after `after_step`, a checkpoint; -1 removes all."""
        for path in self._folder.glob("*.jsonl"):
            match = _FILE_NAME.fullmatch(path.name)
            if match and int(match[1]) > after_step:
                path.unlink()


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of one file in order.

    Raises:
        ValueError: a line is damaged or from another version of the format.
    """
    for record in read_json_lines(path):
        if record_kind(record) is RecordKind.TRAJECTORY:
            yield decode_trajectory(record)


def write_saved_group(path: Path, trajectories: Iterable[Trajectory]) -> str:
    """Write trajectories into a new file of a checkpoint, and return its digest."""
    path.unlink(missing_ok=True)
    append_json_lines(path, map(encode_trajectory, trajectories))
    return _digest_of(path)


def read_saved_group(path: Path, num_trajectories: int, *, digest: str, source: str) -> list[Trajectory]:
    """Return the trajectories that `write_saved_group` wrote; `source` names the place it was fetched from, for errors.

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
