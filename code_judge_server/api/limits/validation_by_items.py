"""Validation of a large batch in pieces; pydantic's validation in one piece would block the event loop."""

import asyncio
from functools import lru_cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ValidationError, create_model

from code_judge_server.api.http_errors import wrong_fields_error

_ITEMS = "submissions"


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
