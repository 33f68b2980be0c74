"""Checks of a tool's schema, and of a call's arguments against it."""

import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentrl.errors import ToolError
from agentrl.tools.base import ToolSchema

_NAME = re.compile(r"[\w.-]{1,64}")
"""Names that every chat template and parser of calls carries unchanged: no blanks, quotes or brackets."""


def validator_of(schema: ToolSchema) -> Draft202012Validator:
    """Return what checks the arguments of a tool.

    Raises:
        ToolError: its name or its parameters are not what a chat template can show, or what a call can have.
    """
    where, parameters = f"tool `{schema.name}`", schema.parameters
    if not isinstance(schema.name, str) or not _NAME.fullmatch(schema.name):
        raise ToolError(
            f"tool {schema.name!r:.100}: its name must be 1 to 64 letters, digits, `_`, `-` or `.`, as templates write it "
            "between quotes and tags; rename it"
        )
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ToolError(f"{where}: its parameters are no JSON schema: {error.message}") from error
    return Draft202012Validator(parameters, registry=Registry())  # without one, it would ask the network


def argument_problem(validator: Draft202012Validator, arguments: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the arguments of a call, with the place; None if nothing is.

    Raises:
        ToolError: a `$ref` of the schema leads nowhere.
    """
    try:
        error = best_match(validator.iter_errors(arguments))
    except Unresolvable as error:
        raise ToolError(f"tool schema: {error}; put what a `$ref` names into the `$defs` of the parameters") from error
    except (OverflowError, ValueError, RecursionError) as error:  # a number or a nesting that the checks cannot hold
        return str(error)
    if error is None:
        return None
    where = f"`{'.'.join(map(str, error.absolute_path))}`: " if error.absolute_path else ""
    return f"{where}{error.message}"
