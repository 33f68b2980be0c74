"""Rows of JSONL and Parquet files, each with the place that an error message can point to."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow
from pyarrow import parquet

from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a data file.

    Example: `Row(path=Path("data/train.jsonl"), number=17, values={"prompt": "Compute 2 + 3.", "answer": "5"})`.
    """

    path: Path
    number: int
    """Counts from 1: the line of a JSONL file (empty lines count), the row of a Parquet file."""
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """Where the row is, for error messages: `data/train.jsonl:17`, `data/train.parquet: row 17`."""
        return _where(self.path, self.number)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a `.jsonl` or `.parquet` file in order.

    Raises:
        ConfigError: the file is missing or damaged, or its format is not one of the two.
    """
    if not path.is_file():
        problem = "is a folder, name the files in it" if path.is_dir() else "no such file"
        raise ConfigError(f"{path}: {problem}")
    if path.suffix not in _READERS:
        raise ConfigError(f"{path}: cannot read `{path.suffix}` files; prompts come as {' or '.join(_READERS)}")
    yield from _READERS[path.suffix](path)


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                values = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ConfigError(f"{_where(path, number)}: not JSON: {error}") from error
            if not isinstance(values, dict):
                raise ConfigError(f"{_where(path, number)}: expected a JSON object, got {type(values).__name__}")
            yield Row(path=path, number=number, values=values)


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield Row(path=path, number=number, values=values)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as Parquet: {error}") from error


def _where(path: Path, number: int) -> str:
    return f"{path}: row {number}" if path.suffix == ".parquet" else f"{path}:{number}"


_READERS = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
