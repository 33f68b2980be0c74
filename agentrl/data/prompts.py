"""The prompts of a run, in an order that depends on the seed only; one integer is the position.

A row's own `id` is its prompt's id. Without one it is `<file>-<extra_info.index>`, or `<file>-<row number>` if a file lacks
indices or repeats them. `<file>` is the file's name (`name_files`). From the second pass on `@epoch1`, `@epoch2`, ... is
appended, so that a prompt drawn twice, even within one step, makes two groups.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from agentrl.data.columns import PromptColumns, own_id, own_index
from agentrl.data.rows import BadRows, Row, read_rows
from agentrl.errors import ConfigError, DataError, DataLayoutError, RowError
from agentrl.types import Prompt

_EPOCH_MARK = "@epoch"
_SOURCE_KEY = "data_source"
"""Column of verl's data sets that names the source of a row."""


class PromptDataset:
    """An endless sequence of prompts, each once per epoch.

    Example: with three prompts, `take(2)` returns two, the next `take(2)` the third and the first of the second epoch, and
    `position` is 4. After `seek(2)`, `take(2)` returns the same again.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        *,
        prompt_key: str,
        answer_key: str,
        system_prompt: str | None,
        shuffle: bool,
        seed: int,
        file_names: Mapping[Path, str] | None = None,
        check_prompt: Callable[[Prompt], None] | None = None,
        skip_bad_rows: bool = False,
    ) -> None:
        """Read and check every row of `files`; the other arguments are those of the `data` section and `run.seed`.

        `file_names` comes from `name_files` for all stages of the run; absent: `files` are all. `check_prompt` raises
        `DataError` for a prompt that the reward could never score.

        Raises ConfigError if a file is missing or damaged, there is no prompt, or a row is invalid without `skip_bad_rows`.
        """
        columns = PromptColumns(prompt_key=prompt_key, answer_key=answer_key, system_prompt=system_prompt)
        paths = [Path(file) for file in files]
        self._files = ", ".join(map(str, files))
        bad_rows = BadRows(skip=skip_bad_rows)
        reader = _Reader(columns, check_prompt, bad_rows)
        names = name_files(paths) if file_names is None else file_names
        prompts = [prompt for path in paths for prompt in reader.read(path, names[path])]
        reasons = bad_rows.reasons
        if not prompts and reasons:
            raise ConfigError(f"{self._files}: none of {len(reasons)} rows can be used; the first: {reasons[0]}")
        if not prompts:
            raise ConfigError(f"no prompts in {self._files or 'an empty list of data files'}")
        self.warnings = reader.warnings
        """Warnings about skipped rows and ambiguous indices."""
        if reasons:
            self.warnings.append(f"{self._files}: {bad_rows.warning(len(prompts) + len(reasons))}")
        self._prompts = prompts
        self.num_left_out = 0
        """Number of prompts left out by `without`."""
        self._shuffle = shuffle
        self._seed = seed
        self._position = 0
        self._order_epoch = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        """Return the number of prompts in one epoch."""
        return len(self._prompts)

    def without(self, prompt_ids: Collection[str]) -> "PromptDataset":
        """Return the data set without the prompts of these first-epoch ids, at its position; ConfigError if none is left."""
        left = copy(self)
        left._prompts = [prompt for prompt in self._prompts if prompt.prompt_id not in prompt_ids]
        left.num_left_out += len(self) - len(left)
        left._order_epoch = -1
        if not left._prompts:
            raise ConfigError(
                f"none of the {len(self)} prompts of {self._files} is left: too long, or solved too often. Raise "
                "`data.max_prompt_tokens`, or `max_pass_rate` of the stage, or remove the stage from `stages`: the run goes on"
            )
        return left

    def all(self) -> list[Prompt]:
        """Return every prompt of the first epoch, in file order; the position does not move."""
        return list(self._prompts)

    @property
    def position(self) -> int:
        """Number of prompts taken so far, over all epochs."""
        return self._position

    def seek(self, position: int) -> None:
        """Continue as if `position` prompts had been taken."""
        self._position = position

    def take(self, count: int) -> list[Prompt]:
        """Return the next `count` prompts and move on."""
        taken = [self.at(position) for position in range(self._position, self._position + count)]
        self._position += count
        return taken

    def at(self, position: int) -> Prompt:
        """Return the prompt at `position`; the data set's own position does not move."""
        epoch, offset = divmod(position, len(self._prompts))
        if epoch != self._order_epoch:
            self._order, self._order_epoch = self._order_of(epoch), epoch
        prompt = self._prompts[self._order[offset]]
        return prompt if epoch == 0 else replace(prompt, prompt_id=f"{prompt.prompt_id}{_EPOCH_MARK}{epoch}")

    def _order_of(self, epoch: int) -> list[int]:
        """Return the permutation of one epoch.

        Sorting by a hash, unlike a library's shuffle, gives the same order in every release, so a resumed run can trust its
        position.
        """

        def digest(row: int) -> bytes:
            return blake2b(f"{self._seed}:{epoch}:{self._prompts[row].prompt_id}".encode(), digest_size=16).digest()

        rows = range(len(self._prompts))
        return sorted(rows, key=digest) if self._shuffle else list(rows)


def name_files(files: Iterable[Path]) -> dict[Path, str]:
    """Return the name of each file in prompt ids, given the files of all stages of a run in order.

    A name depends on earlier files only: later stages may change when a run is resumed.

    Example: `train` for `a/train.jsonl`, then `b-train` for `b/train.jsonl`.
    """
    names: dict[Path, str] = {}
    for file in dict.fromkeys(files):
        candidates = (file.stem, f"{file.parent.name}-{file.stem}", str(file))
        names[file] = next(name for name in candidates if name not in names.values())
    return names


def id_without_epoch(prompt_id: str) -> str:
    """Return the id that a prompt has in every epoch: `sums-17` for `sums-17@epoch2`."""
    before, mark, epoch = prompt_id.rpartition(_EPOCH_MARK)
    return before if mark and epoch.isdecimal() else prompt_id


class _Reader:
    """Reader of the prompts of several files, which collects warnings."""

    def __init__(
        self, columns: PromptColumns, check_prompt: Callable[[Prompt], None] | None, bad_rows: BadRows
    ) -> None:
        self._columns = columns
        self._check_prompt = check_prompt
        self._bad_rows = bad_rows
        self._places: dict[str, str] = {}
        """Place of each prompt, keyed by its id."""
        self.warnings: list[str] = []

    def read(self, file: Path, name: str) -> Iterator[Prompt]:
        rows = list(read_rows(file, self._bad_rows))
        for row, number in zip(rows, self._numbers(file, rows), strict=True):
            try:
                prompt = self._read_row(row, own_id(row) or f"{name}-{number}")
            except RowError as error:
                self._bad_rows.add(error)
                continue
            source = prompt.extra.get(_SOURCE_KEY)
            yield replace(prompt, data_set=source if isinstance(source, str) and source else name)

    def _read_row(self, row: Row, prompt_id: str) -> Prompt:
        if prompt_id in self._places:
            raise DataLayoutError(
                f"{row.where}: prompt id `{prompt_id}` is also that of {self._places[prompt_id]}. Make the `id` column unique "
                "over all files, leave it out, or name each file once"
            )
        prompt = self._columns.parse(row, prompt_id)
        try:
            if self._check_prompt is not None:
                self._check_prompt(prompt)
        except DataError as error:
            raise RowError(f"{row.where}: {error}") from error
        self._places[prompt_id] = row.where
        return prompt

    def _numbers(self, file: Path, rows: Sequence[Row]) -> Sequence[str]:
        """Return unique labels for the rows of a file: their own indices if unique, else the row numbers."""
        indices = [index for row in rows if (index := own_index(row)) is not None]
        if len(set(indices)) == len(rows):
            return indices
        if indices:
            self.warnings.append(f"{file}: `extra_info.index` is not unique; prompts are named by row number")
        return [str(row.number) for row in rows]
