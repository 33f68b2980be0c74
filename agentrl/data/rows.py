"""Rows of JSONL and Parquet files, with their place for error messages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pyarrow
from pyarrow import parquet

from agentrl.errors import ConfigError, DataLayoutError, RowError

_NUM_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a data file."""

    path: Path
    number: int
    """Line of a JSONL file (empty lines count) or row of a Parquet file, from 1."""
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """Place of the row for error messages: `data/train.jsonl:17`, `data/train.parquet: row 17`."""
        return _where(self.path, self.number)


class BadRows:
    """Invalid rows: the first raises, or all are skipped and counted."""

    def __init__(self, *, skip: bool) -> None:
        """Skip rows if `skip` (`data.on_bad_row: skip`)."""
        self._skip = skip
        self.reasons: list[str] = []

    def add(self, error: RowError) -> None:
        """Add a row; raises RowError if rows are not skipped."""
        if not self._skip and isinstance(error, DataLayoutError):
            raise error  # no hint at `skip`: it would probably skip all rows
        if not self._skip:
            raise RowError(f"{error}; `data.on_bad_row: skip` leaves such rows out") from error
        self.reasons.append(str(error))

    def warning(self, num_rows: int) -> str:
        """Return a warning with the number of skipped rows and the first reasons."""
        more = "; ..." if len(self.reasons) > _NUM_REASONS else ""
        first = "; ".join(self.reasons[:_NUM_REASONS])
        return f"{len(self.reasons)} of {num_rows} rows are left out (`data.on_bad_row` is `skip`): {first}{more}"


def read_rows(path: Path, bad_rows: BadRows | None = None) -> Iterator[Row]:
    """Yield the rows of a `.jsonl` or `.parquet` file in order; invalid ones go to `bad_rows`, or raise RowError without it.

    Raises:
        ConfigError: the file is missing or damaged, or has another format.
    """
    try:
        if not path.is_file():
            looked_in = "" if path.is_absolute() else f", neither next to the config nor in {Path.cwd()}"
            problem = "is a folder, name the files in it" if path.is_dir() else f"no such file{looked_in}"
            raise ConfigError(f"data file {path}: {problem}")
        if path.suffix not in _READERS:
            raise ConfigError(f"{path}: cannot read `{path.suffix}` files; prompts come as {' or '.join(_READERS)}")
        yield from _READERS[path.suffix](path, bad_rows)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def plain(value: Any) -> Any:
    """Return `value` as plain data: decimals as numbers, dates and times as text; bytes stay."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, date | time):  # a `datetime` is a date
        return value.isoformat()
    if isinstance(value, timedelta | UUID):
        return str(value)
    return value


def _read_jsonl(path: Path, bad_rows: BadRows | None) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                values = orjson.loads(line)
                problem = "" if isinstance(values, dict) else f"expected a JSON object, got {type(values).__name__}"
            except orjson.JSONDecodeError as error:
                values, problem = {}, f"not JSON: {error}"
            if not problem:
                yield Row(path=path, number=number, values=values)
                continue
            error = RowError(f"{_where(path, number)}: {problem}")
            if bad_rows is None:
                raise error
            bad_rows.add(error)


def _read_parquet(path: Path, _: BadRows | None) -> Iterator[Row]:
    try:
        with parquet.ParquetFile(path) as file:
            batches = (batch.to_pylist(maps_as_pydicts="lossy") for batch in file.iter_batches())
            for number, values in enumerate(chain.from_iterable(batches), start=1):
                yield Row(path=path, number=number, values=plain(values))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as Parquet: {error}") from error


def _where(path: Path, number: int) -> str:
    return f"{path}: row {number}" if path.suffix == ".parquet" else f"{path}:{number}"


_READERS = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
