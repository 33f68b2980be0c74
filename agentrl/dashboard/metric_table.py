"""The metrics of a run as columns, read from `metrics.jsonl` as it grows."""

from array import array
from collections.abc import Iterable
from math import isnan, nan
from pathlib import Path

from agentrl.observability.json_lines import decode_line


class MetricTable:
    """Columns of a run's metrics; for one thread at a time."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "metrics.jsonl"
        self._clear()

    def _clear(self) -> None:
        self._inode, self._read_bytes = 0, 0
        self.steps = array("q")
        self._columns: dict[str, array[float]] = {}

    @property
    def names(self) -> list[str]:
        """Names of all metrics, sorted."""
        return sorted(self._columns)

    def update(self) -> bool:
        """Read the lines that were appended since the last call; return whether there were any.

        Raises:
            ValueError: a line is damaged.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return False
        with file:
            now = self._path.stat()
            # A resume rewrites the file without the steps after its checkpoint.
            if now.st_ino != self._inode or now.st_size < self._read_bytes:
                self._clear()
                self._inode = now.st_ino
            if now.st_size == self._read_bytes:
                return False
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._add(line)
                self._read_bytes += len(line)
        return True

    def series(self, names: Iterable[str]) -> dict[str, list[float | None]]:
        """Return the values of each named metric, one for each of `steps`; None where there is no value."""
        return {
            name: [None if isnan(value) else value for value in self._columns[name]]
            for name in names
            if name in self._columns
        }

    def latest(self) -> dict[str, tuple[int, float]]:
        """Return step and value of each metric where it last had a value."""
        found: dict[str, tuple[int, float]] = {}
        for name, column in self._columns.items():
            for index in range(len(column) - 1, -1, -1):
                if not isnan(column[index]):
                    found[name] = (self.steps[index], column[index])
                    break
        return found

    def _add(self, line: bytes) -> None:
        row = decode_line(line, where=str(self._path))
        self.steps.append(int(row.pop("step")))
        for name, value in row.items():
            if name not in self._columns:
                self._columns[name] = array("d", [nan]) * (len(self.steps) - 1)
            self._columns[name].append(nan if value is None else float(value))
        for column in self._columns.values():
            if len(column) < len(self.steps):
                column.append(nan)
