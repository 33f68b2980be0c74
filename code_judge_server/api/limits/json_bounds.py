"""A bound on how many values a JSON body holds, before it is parsed, and the validation of a large one in pieces.

A parser needs up to fifty times the bytes of `[{},{},...]`: 60 MiB of tiny submissions made pydantic hold 2.7 GB for 13 s.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ValidationError, create_model

from code_judge_server.api.http_errors import RejectedError, wrong_fields_error

_PIECE_BYTES = 256 * 1024
"""Bytes scanned at once: a thread keeps others waiting for no longer than that takes."""
_ITEMS = "submissions"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBounds:
    """Bounds on the contents of a body; the insides of strings do not count."""

    containers: int
    """Objects and arrays."""
    values: int
    """Members and items, estimated by commas."""
    other_bytes: int
    """Bytes outside strings: numbers of thousands of digits, or white space."""


ONE_SUBMISSION = JsonBounds(containers=2**12, values=2**13, other_bytes=2**20)
"""The formats allow 1,024 test cases and 1,024 files."""
MANY_SUBMISSIONS = JsonBounds(containers=2**17, values=2**18, other_bytes=2**24)
"""A batch in which every submission has that many test cases must be split into several requests."""


def refuse_costly_json(body: bytes, bounds: JsonBounds = MANY_SUBMISSIONS) -> int:
    """Return the number of containers and values in a body that is cheap to parse.

    Raises:
        RejectedError: it exceeds a bound (413).
    """
    num_values = num_values_within(body, bounds)
    if num_values is None:
        raise RejectedError(
            f"body: more than {bounds.containers} objects and arrays, {bounds.values} values, or {bounds.other_bytes} bytes "
            "outside of strings. Send fewer of them in one request",
            status_code=413,
        )
    return num_values


def num_values_within(body: bytes, bounds: JsonBounds) -> int | None:
    """Return the number of containers and values, or None if a bound is exceeded; takes time proportional to the length."""
    num_containers = num_values = num_quotes = num_other_bytes = 0
    for outside, quotes in _outside_strings(body):
        num_containers += outside.count(b"{") + outside.count(b"[")
        num_values += outside.count(b",")
        num_quotes += quotes
        num_other_bytes += len(outside)
        if num_containers > bounds.containers or num_values > bounds.values or num_other_bytes > bounds.other_bytes:
            return None
        # In JSON a comma or a colon stands between two strings: at most four quotes per value.
        if num_quotes > 4 * (bounds.values + 1):
            return None
    return num_containers + num_values


def has_more_than(body: bytes, *, containers: int, values: int) -> bool:
    """Return whether JSON holds more than this; the insides of strings do not count."""
    return num_values_within(body, JsonBounds(containers=containers, values=values, other_bytes=len(body))) is None


def _outside_strings(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield, piece by piece, the text outside strings and the number of quotes; an unclosed string counts as a string."""
    in_string = False
    held_back = b""
    for start in range(0, len(body), _PIECE_BYTES):
        piece = held_back + body[start : start + _PIECE_BYTES]
        is_cut = (len(piece) - len(piece.rstrip(b"\\"))) % 2  # between a backslash and the escaped character
        held_back = b"\\" if is_cut else b""
        parts = piece[: len(piece) - is_cut].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[in_string::2]), len(parts) - 1
        in_string ^= len(parts) % 2 == 0


async def validated_by_items(model: type[BaseModel], content: bytes) -> BaseModel:
    """Return a body as the endpoint's batch: validate the fields around the submissions first, then each submission.

    Raises:
        ValidationError: the body is not a batch.
        RejectedError: a submission is not valid; later ones are not validated.
    """
    around, item = _parts_of(model)
    batch = around.model_validate_json(content)
    items: list[Any] = getattr(batch, _ITEMS)
    for index, raw in enumerate(items):
        try:
            items[index] = item.model_validate(raw)
        except ValidationError as error:
            raise wrong_fields_error(error, inside=(_ITEMS, index)) from error
        await asyncio.sleep(0)  # lets other requests run
    return model.model_construct(batch.model_fields_set, **vars(batch))


@lru_cache(maxsize=16)
def _parts_of(model: type[BaseModel]) -> tuple[type[BaseModel], type[BaseModel]]:
    """Return a batch model that does not validate its submissions, and the model of one submission."""
    field = model.model_fields[_ITEMS]
    (item,) = get_args(field.annotation)
    unseen: Any = Annotated[list[Any], *field.metadata]
    return create_model(model.__name__, __base__=model, submissions=(unseen, ...)), item
