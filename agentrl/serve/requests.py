"""Bodies of requests: what they may hold, and the prompts that they become."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import Field, ValidationError

from agentrl.config.problems import problems_of
from agentrl.config.schema.fields import AmountOrZero, Count, CountOrZero, Probability, Section, Seed
from agentrl.config.schema.run import DataSection, ValidationSection
from agentrl.data.columns import PromptColumns, own_id
from agentrl.data.rows import Row
from agentrl.errors import AgentRLError, ConfigError, RowError
from agentrl.types import Prompt

BodyT = TypeVar("BodyT", bound=Section)


class BadRequestError(ConfigError):
    """A request cannot be used; `rows` has a message for each bad prompt, keyed by its index."""

    def __init__(self, message: str, *, rows: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.rows = dict(rows or {})

    @classmethod
    def of_rows(cls, rows: Mapping[int, str]) -> "BadRequestError":
        """Return the error for bad prompts; the message shows the first."""
        first = next(iter(rows.values()))
        more = f"; {len(rows) - 1} more of the prompts cannot be used either" if len(rows) > 1 else ""
        return cls(f"{first}{more}", rows=rows)


class SamplingBody(Section):
    """Sampling of the trajectories of one request."""

    temperature: AmountOrZero | None = None
    """0: greedy; absent: `rollout.temperature`."""
    top_p: Probability = 1.0
    top_k: CountOrZero = 0


class RolloutBody(Section):
    """Body of `POST /v1/rollouts`."""

    prompts: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """Rows as in a data file: chat messages, reference answer, further columns."""
    samples_per_prompt: Count = 1
    seed: Seed | None = None
    """Equal seeds, prompts and weights give equal trajectories."""
    sampling: SamplingBody | None = None


class WeightsBody(Section):
    """Body of `POST /v1/weights`."""

    path: str
    """Hugging Face folder that the engines can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """A request whose prompts can be used."""

    prompts: Sequence[Prompt]
    samples_per_prompt: int
    seed: int | None
    sampling: ValidationSection | None

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories that it asks for."""
        return len(self.prompts) * self.samples_per_prompt


class _RequestRow(Row):
    """A row of a request; its place in messages is `prompts[2]`."""

    @property
    def where(self) -> str:
        return f"prompts[{self.number}]"


def read_body(content: bytes, schema: type[BodyT]) -> BodyT:
    """Return a body as `schema` describes it.

    Raises:
        BadRequestError: it is not JSON, or a field is missing, unknown or wrong.
    """
    try:
        values = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"body: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadRequestError(f"body: must be a JSON object, got {type(values).__name__}")
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        problems = [f"body: {problem}" for _, problem in problems_of(error, schema)]
        raise BadRequestError("; ".join(problems)) from error


class PromptReader:
    """Reader of the prompts of requests, by the columns that the config names."""

    def __init__(self, data: DataSection, check_prompt: Callable[[Prompt], None] | None) -> None:
        """Take the section `data`, and the reward's check of a prompt."""
        self._columns = PromptColumns(
            prompt_key=data.prompt_key, answer_key=data.answer_key, system_prompt=data.system_prompt
        )
        self._check_prompt = check_prompt

    def read(self, body: RolloutBody) -> RolloutRequest:
        """Return the request; a prompt's id is that of its row, else its index.

        Raises:
            BadRequestError: a prompt cannot be used; all such are named.
        """
        prompts: dict[str, Prompt] = {}
        bad_rows: dict[int, str] = {}
        for index, values in enumerate(body.prompts):
            row = _RequestRow(path=Path(), number=index, values=values)
            try:
                prompt = self._read_row(row)
                if prompt.prompt_id in prompts:
                    raise RowError(f"{row.where}: another prompt has the id `{prompt.prompt_id}` too")
                prompts[prompt.prompt_id] = prompt
            except AgentRLError as error:
                bad_rows[index] = str(error)
        if bad_rows:
            raise BadRequestError.of_rows(bad_rows)
        sampling = None if body.sampling is None else ValidationSection(**body.sampling.model_dump())
        return RolloutRequest(
            prompts=list(prompts.values()),
            samples_per_prompt=body.samples_per_prompt,
            seed=body.seed,
            sampling=sampling,
        )

    def _read_row(self, row: Row) -> Prompt:
        prompt = self._columns.parse(row, own_id(row) or str(row.number))
        try:
            if self._check_prompt is not None:
                self._check_prompt(prompt)
        except AgentRLError as error:
            raise RowError(f"{row.where}: {error}") from error
        return prompt
