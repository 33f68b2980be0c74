"""Refuses a tool schema by which no policy could call the tool."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentrl.errors import ToolError
from agentrl.tools.base import ToolSchema

_NAME = re.compile(r"[\w.-]{1,64}")
"""Names that every chat template and parser of calls carries unchanged: no blanks, quotes or brackets."""


def validator_of(schema: ToolSchema) -> Draft202012Validator:
    """Return what checks the arguments of a tool.

    Raises:
        ToolError: its name, its description or its parameters are not what a chat template can show, or what a call can have.
    """
    where, parameters = f"tool `{schema.name}`", schema.parameters
    if not isinstance(schema.name, str) or not _NAME.fullmatch(schema.name):
        raise ToolError(
            f"tool {schema.name!r:.100}: its name must be 1 to 64 letters, digits, `_`, `-` or `.`, as templates write it "
            "between quotes and tags; rename it"
        )
    if not isinstance(schema.description, str):
        raise ToolError(f"{where}: its description is a `{type(schema.description).__name__}`, and must be text")
    if not isinstance(parameters, Mapping):
        raise ToolError(
            f"{where}: its parameters are a `{type(parameters).__name__}`, and must be a JSON schema (a mapping)"
        )
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ToolError(f"{where}: its parameters are no JSON schema: {error.message}") from error
    except RecursionError as error:
        raise ToolError(f"{where}: its parameters are nested too deeply; make them flatter") from error
    kind = parameters.get("type", "object")
    if "object" not in ([kind] if isinstance(kind, str) else kind):
        raise ToolError(
            f"{where}: its parameters are of the type `{kind}`, and arguments come by name; make it `object`, with `properties`"
        )
    validator = Draft202012Validator(parameters, registry=Registry())  # without one, it would ask the network
    for ref in _references(parameters):
        try:
            list(validator.evolve(schema={"$ref": ref}).iter_errors(None))
        except (Unresolvable, RecursionError) as error:
            raise ToolError(
                f"{where}: `$ref` {ref!r:.100} of its parameters leads nowhere; put what it names into their `$defs`"
            ) from error
    return validator


def _references(schema: Any) -> Iterator[str]:
    """Yield every `$ref` of a schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, Mapping):
        for key, part in schema.items():
            if key == "$ref" and isinstance(part, str):
                yield part
            elif key not in ("const", "default", "enum", "examples"):
                yield from _references(part)
