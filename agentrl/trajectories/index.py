"""Index of a run's trajectories: a SQLite file with a row for each, derived from the heads of their frames.

It can be deleted at any time; `update` reads what is new in the files. Several processes may update and read it.

    trajectories   one row per trajectory: its file, offset and step, and the fields of `TrajectoryHead`
    prompts        one row per prompt of a file, with its offset and its data set
    fates          use of each trajectory in its update
    files          bytes of each file that are indexed, and the last frame among them
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from agentrl.observability.json_lines import decode_line, encode_line, read_json_lines
from agentrl.trajectories.frames import Frame, FrameKind, read_frames
from agentrl.trajectories.heads import HEAD_FIELDS
from agentrl.trajectories.store import TrajectoryStore

_FILE_NAME = "index_2.db"
"""Index of this release; the number rises with every change of its tables."""
_BUSY_TIMEOUT_S = 30.0
_COLUMNS = ("file_id", "offset", "step", "is_validation", *HEAD_FIELDS)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (file_id INTEGER PRIMARY KEY, name TEXT UNIQUE, changed_ns INTEGER, indexed_bytes INTEGER,
    last_offset INTEGER, last_checksum INTEGER);
CREATE TABLE IF NOT EXISTS trajectories ({", ".join(_COLUMNS)});
CREATE TABLE IF NOT EXISTS prompts (file_id INTEGER, offset INTEGER, prompt_id TEXT, data_set TEXT);
CREATE TABLE IF NOT EXISTS fates (file_id INTEGER, step INTEGER, trajectory_id TEXT, fate TEXT);
CREATE INDEX IF NOT EXISTS by_step ON trajectories (is_validation, step, prompt_id);
CREATE INDEX IF NOT EXISTS by_id ON trajectories (trajectory_id);
CREATE INDEX IF NOT EXISTS by_prompt ON trajectories (prompt_id);
CREATE INDEX IF NOT EXISTS by_file ON trajectories (file_id, offset);
CREATE INDEX IF NOT EXISTS by_reward ON trajectories (coalesce(reward, -1e308));
CREATE INDEX IF NOT EXISTS by_failure ON trajectories (failure_class, failure_cause, is_validation, step)
WHERE failure_class != '';
CREATE INDEX IF NOT EXISTS prompts_by_file ON prompts (file_id, prompt_id);
CREATE INDEX IF NOT EXISTS fates_by_step ON fates (step, trajectory_id);
CREATE INDEX IF NOT EXISTS fates_by_file ON fates (file_id);
"""
_INSERT = f"INSERT INTO trajectories VALUES ({', '.join('?' * len(_COLUMNS))})"


class RunIndex:
    """The index of one run; for one thread."""

    def __init__(self, run_dir: Path) -> None:
        """Open or create it in the run's folder, or in the user's cache if that cannot be written."""
        self._store = TrajectoryStore(run_dir)
        try:
            self.path = run_dir / _FILE_NAME
            if self.path.exists() and not os.access(self.path, os.W_OK):
                raise PermissionError(self.path)
            self.connection = _opened(self.path)
        except (sqlite3.OperationalError, OSError):
            self.path = _in_cache(run_dir)
            self.connection = _opened(self.path)

    def update(self) -> int:
        """Index what was recorded since the last call, and forget files that were removed; return the number of new rows.

        Raises:
            ValueError: a file is damaged or from another release.
        """
        with self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            known = {row["name"]: row for row in self.connection.execute("SELECT * FROM files")}
            recorded = (*self._store.files(), *self._store.fate_files())
            files = {path.name: path for path in recorded}
            for name in known.keys() - files.keys():
                self._forget(known[name]["file_id"])
            return sum(self._index(path, known.get(name)) for name, path in files.items())

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _index(self, path: Path, file: sqlite3.Row | None) -> int:
        now = path.stat()
        if file is not None and now.st_mtime_ns == file["changed_ns"] and now.st_size == file["indexed_bytes"]:
            return 0
        # After a resume a step is rolled out once more, into a new file, which may have the size and the inode of the old one.
        if file is not None and not _still_holds(path, file):
            self._forget(file["file_id"])
            file = None
        indexed_bytes = file["indexed_bytes"] if file else 0
        new = "INSERT INTO files VALUES (NULL, ?, 0, 0, 0, 0)"
        file_id = file["file_id"] if file else self.connection.execute(new, (path.name,)).lastrowid
        kind, _, number = path.stem.partition("_")
        if kind == "fates":
            return self._index_fates(path, file_id, int(number))
        rows = _Rows(read_frames(path, start=indexed_bytes), (file_id, int(number), int(kind == "validation")))
        self.connection.executemany(_INSERT, rows)
        self.connection.executemany("INSERT INTO prompts VALUES (?, ?, ?, ?)", rows.prompts)
        if rows.last is not None:
            self._note(file_id, now.st_mtime_ns, rows.last.end, rows.last.offset, rows.last.checksum)
        return rows.num_trajectories

    def _index_fates(self, path: Path, file_id: int | None, step: int) -> int:
        self.connection.execute("DELETE FROM fates WHERE file_id = ?", (file_id,))
        batches = (batch.items() for batch in read_json_lines(path))
        rows = ((file_id, step, name, fate) for batch in batches for fate, names in batch for name in names)
        self.connection.executemany("INSERT INTO fates VALUES (?, ?, ?, ?)", rows)
        self._note(file_id, path.stat().st_mtime_ns, path.stat().st_size, 0, 0)
        return 0

    def _note(self, file_id: int | None, *values: int) -> None:
        columns = "changed_ns = ?, indexed_bytes = ?, last_offset = ?, last_checksum = ?"
        self.connection.execute(f"UPDATE files SET {columns} WHERE file_id = ?", (*values, file_id))

    def _forget(self, file_id: int) -> None:
        for table in ("trajectories", "prompts", "fates", "files"):
            self.connection.execute(f"DELETE FROM {table} WHERE file_id = ?", (file_id,))


class _Rows:
    """Rows of the trajectories among some frames; iterating collects the prompts, too."""

    def __init__(self, frames: Iterator[Frame], place: tuple[int | None, int, int]) -> None:
        self._frames = frames
        self._file_id, self._step, self._is_validation = place
        self.prompts: list[tuple[object, ...]] = []
        self.num_trajectories = 0
        self.last: Frame | None = None

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        for frame in self._frames:
            head = decode_line(frame.head, where=f"frame at byte {frame.offset}")
            self.last = frame
            if frame.kind is FrameKind.PROMPT:
                self.prompts.append((self._file_id, frame.offset, head["prompt_id"], head["data_set"]))
                continue
            self.num_trajectories += 1
            head["reward_metrics"] = encode_line(head["reward_metrics"]).decode().strip()
            values = (head[name] for name in HEAD_FIELDS)
            yield (self._file_id, frame.offset, self._step, self._is_validation, *values)


def _still_holds(path: Path, file: sqlite3.Row) -> bool:
    """Return whether a file has the last frame that was indexed where it was; files of fates are read whole."""
    if path.suffix != ".atr":
        return True
    frame = next(read_frames(path, start=file["last_offset"]), None)
    return frame is not None and (frame.end, frame.checksum) == (file["indexed_bytes"], file["last_checksum"])


def _opened(path: Path) -> sqlite3.Connection:
    try:
        return _connected(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:  # damaged, as by a power loss: without `synchronous` that may happen
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; {_SCHEMA}")
    return connection


def _in_cache(run_dir: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "index"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / f"{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]}.db"
