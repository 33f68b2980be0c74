"""The batches of this server: those of a format, and no longer than its settings allow."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, FailFast, Field, create_model

_Batch = TypeVar("_Batch", bound=BaseModel)


def bounded_batch(batch: type[_Batch], max_items: int) -> type[_Batch]:
    """Return the batch of this server, of which no more is validated than it takes, nor anything after a wrong item.

    Args:
        batch: A format whose field `submissions` is a list.
        max_items: Most submissions in one.
    """
    items = batch.model_fields["submissions"].annotation
    submissions: Any = Annotated[items, FailFast(), Field(min_length=1, max_length=max_items)]
    return create_model(batch.__name__, __base__=batch, submissions=(submissions, ...))
