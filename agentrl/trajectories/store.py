"""Every trajectory of a run on disk, with the prompts needed to score or replay them.

    <run>/trajectories/step_000012.atr         rolled out for update 12
    <run>/trajectories/validation_000012.atr   rolled out to validate the policy after update 12
    <run>/trajectories/fates_000012.jsonl      use of each trajectory in update 12: the ids of each fate

Each file holds a frame per prompt and trajectory (see `frames`, `codec`). Call `append` before the checkpoint of the same step
is written, so that the files of a checkpoint are complete.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from agentrl.errors import UNDECODABLE, DamagedCheckpointError
from agentrl.observability.json_lines import append_json_lines, decode_line, encode_line, read_json_lines
from agentrl.trajectories.codec import (
    decode_prompt,
    decode_trajectory,
    encode_prompt,
    encode_without_tokens,
    record_kind,
)
from agentrl.trajectories.frames import Frame, FrameEncoder, FrameKind, append_frames, read_frames
from agentrl.trajectories.heads import HEAD_FIELDS, TrajectoryHead, head_of
from agentrl.trajectories.token_arrays import pack_tokens, unpack_tokens
from agentrl.types import Prompt, Trajectory

_FATES = re.compile(r"fates_\d{6,}\.jsonl")
_FILE_NAME = re.compile(r"(?:step|validation)_\d{6,}\.atr")


class TrajectoryStore:
    """The `trajectories/` folder of a run. Several processes may append to it at once."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "trajectories"

    def file(self, step: int, *, validation: bool = False) -> Path:
        """Return the path of a step's rollout, or of the validation after it."""
        return self._folder / f"{'validation' if validation else 'step'}_{step:06d}.atr"

    def files(self) -> list[Path]:
        """Return the existing files: those of the rollouts by step, then those of validation."""
        return sorted(path for path in self._folder.glob("*.atr") if _FILE_NAME.fullmatch(path.name))

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
        path = self.file(step, validation=validation)
        recorded = {head.trajectory_id for head in read_heads(path)} if leave_out_recorded else set[str]()
        new = (trajectory for trajectory in trajectories if trajectory.trajectory_id not in recorded)
        _append(path, prompts, new)
        return path

    def record_fates(self, step: int, ids_by_fate: Mapping[str, Sequence[str]]) -> None:
        """Append the use of a batch's trajectories in update `step`, ids keyed by `agentrl.algorithms.group_filter.Fate`."""
        append_json_lines(self._folder / f"fates_{step:06d}.jsonl", [dict(ids_by_fate)])

    def fates(self, step: int) -> dict[str, str]:
        """Return the fate of each trajectory of update `step`, keyed by trajectory id; empty before the update."""
        batches = read_json_lines(self._folder / f"fates_{step:06d}.jsonl")
        return {name: fate for batch in batches for fate, names in batch.items() for name in names}

    def fate_files(self) -> list[Path]:
        """Return the existing files of fates, by step."""
        return sorted(path for path in self._folder.glob("*.jsonl") if _FATES.fullmatch(path.name))

    def take_back(self, *, after_step: int) -> None:
        """Remove the steps after `after_step`, a checkpoint; -1 removes all."""
        for path in (*self.files(), *self.fate_files()):
            if int(path.stem.rpartition("_")[2]) > after_step:
                path.unlink()


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of one file in order.

    Raises:
        ValueError: a record is damaged or from another version of the format.
    """
    for frame in read_frames(path):
        if frame.kind is FrameKind.TRAJECTORY:
            yield _trajectory_of(frame)


def read_heads(path: Path) -> Iterator[TrajectoryHead]:
    """Yield the facts of each trajectory of one file in order, without reading the rest."""
    return (_head_of(frame) for frame in read_frames(path) if frame.kind is FrameKind.TRAJECTORY)


def read_prompts(path: Path) -> dict[str, Prompt]:
    """Return the prompts of one file, keyed by id.

    Raises:
        ValueError: a record is damaged or from another version of the format.
    """
    records = (_text_of(frame.parts()[1]) for frame in read_frames(path) if frame.kind is FrameKind.PROMPT)
    return {prompt.prompt_id: prompt for prompt in map(decode_prompt, records)}


def read_trajectory(path: Path, offset: int) -> Trajectory:
    """Return the trajectory at byte `offset` of a file.

    Raises:
        ValueError: no whole trajectory begins there.
    """
    for frame in read_frames(path, start=offset):
        if frame.kind is FrameKind.TRAJECTORY:
            return _trajectory_of(frame)
        break
    raise ValueError(f"{path}: no trajectory at byte {offset}")


def read_prompt(path: Path, offset: int) -> Prompt:
    """Return the prompt at byte `offset` of a file.

    Raises:
        ValueError: no whole prompt begins there.
    """
    for frame in read_frames(path, start=offset):
        if frame.kind is FrameKind.PROMPT:
            return decode_prompt(_text_of(frame.parts()[1]))
        break
    raise ValueError(f"{path}: no prompt at byte {offset}")


def write_saved_group(path: Path, trajectories: Iterable[Trajectory]) -> str:
    """Write trajectories into a new file of a checkpoint, and return its digest."""
    path.unlink(missing_ok=True)
    _append(path, (), trajectories)
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


def _append(path: Path, prompts: Iterable[Prompt], trajectories: Iterable[Trajectory]) -> None:
    encoder = FrameEncoder()
    prompt_frames = (_prompt_frame(encoder, prompt) for prompt in prompts)
    append_frames(path, chain(prompt_frames, (encode_frame(encoder, item) for item in trajectories)))


def _prompt_frame(encoder: FrameEncoder, prompt: Prompt) -> bytes:
    head = encode_line({"prompt_id": prompt.prompt_id, "data_set": prompt.data_set})
    return encoder.encode(FrameKind.PROMPT, head=head, tokens=b"", text=encode_line(encode_prompt(prompt)))


def encode_frame(encoder: FrameEncoder, trajectory: Trajectory) -> bytes:
    """Return the frame of a trajectory."""
    head = head_of(trajectory)
    return encoder.encode(
        FrameKind.TRAJECTORY,
        head=encode_line({name: getattr(head, name) for name in HEAD_FIELDS}),
        tokens=pack_tokens(trajectory),
        text=encode_line(encode_without_tokens(trajectory)),
    )


def _trajectory_of(frame: Frame) -> Trajectory:
    tokens, text = frame.parts()
    record = _text_of(text)
    return decode_trajectory(record | unpack_tokens(tokens, _head_of(frame).num_tokens))


def _text_of(text: bytes) -> dict[str, Any]:
    record = decode_line(text, where="trajectory record")
    record_kind(record)
    return record


def _head_of(frame: Frame) -> TrajectoryHead:
    return TrajectoryHead(**decode_line(frame.head, where="head of a trajectory record"))


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
