"""Base of the sections of a config, and the types of their values.

A key is added in one place, the field of its section: type with bounds, default, documentation below it, and `resumable(...)`
around the default if the key may change when a run resumes. The check of its range, the page of keys and the rules of
resuming follow from that.
"""

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError


class Section(BaseModel):
    """A part of a config: immutable, with no unknown keys, NaN or infinity; `model_copy(update=...)` replaces values."""

    # Deferred, so that an import builds no validators.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, defer_build=True
    )


def resumable(default: Any) -> Any:
    """Return a field for a key that may change when a run resumes: it does not change what the run learns."""
    return Field(default, json_schema_extra={"resumable": True})


def is_resumable(field: FieldInfo) -> bool:
    """Return whether a key may change when a run resumes."""
    return isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("resumable") is True


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):  # YAML's `on` and `yes` too
        raise PydanticKnownError("float_type")
    return value


_IsNumber = BeforeValidator(_no_truth_value)
Number = Annotated[float, _IsNumber]
Count = Annotated[int, _IsNumber, Field(ge=1)]
CountOrZero = Annotated[int, _IsNumber, Field(ge=0)]
Seed = Annotated[int, _IsNumber, Field(ge=0, le=2**63 - 1)]  # torch and NumPy accept a signed 64-bit number
Amount = Annotated[Number, Field(gt=0)]
AmountOrZero = Annotated[Number, Field(ge=0)]
Seconds = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
BelowOne = Annotated[Number, Field(ge=0, lt=1)]
Probability = Annotated[Number, Field(gt=0, le=1)]


def known_or_path(names: tuple[str, ...]) -> AfterValidator:
    """Return a check of a name: one of ours, or the import path of the user's own function."""

    def check(name: str) -> str:
        if name in names or "." in name:
            return name
        raise ValueError(
            f"is `{name}`, and must be one of {', '.join(names)}, or an import path such as `my_module.my_function`"
        )

    return AfterValidator(check)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section in the type of a field: `X`, `X | None`, `list[X]` or `dict[str, X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((section for part in get_args(annotation) if (section := section_of(part))), None)


def leaves(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all keys below a section, such as `run.seed`, `stages[].num_steps` and `cluster.pools.NAME.num_gpus`."""
    for name, field in schema.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            yield f"{prefix}{name}", field
        else:
            many = {list: "[]", dict: ".NAME"}.get(get_origin(field.annotation) or object, "")
            yield from leaves(section, f"{prefix}{name}{many}.")
