"""The batch models of this server, with the maximum length of its settings."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, FailFast, Field, create_model

_Batch = TypeVar("_Batch", bound=BaseModel)


def bounded_batch(batch: type[_Batch], max_items: int) -> type[_Batch]:
    """Return the batch model of this server; it validates at most `max_items` items and stops at the first wrong one.

    Args:
        batch: A format whose field `submissions` is a list.
        max_items: Most submissions in one.
    """
    items = batch.model_fields["submissions"].annotation
    submissions: Any = Annotated[items, FailFast(), Field(min_length=1, max_length=max_items)]
    return create_model(batch.__name__, __base__=batch, submissions=(submissions, ...))
