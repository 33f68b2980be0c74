"""The page `/docs`: the OpenAPI description as plain HTML without scripts or external files."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI, Response

_BODY = {"application/json": {"schema": {"$ref": "#/components/schemas/Rejection"}}}


def add_docs_page(app: FastAPI) -> None:
    """Serve the page `/docs`."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(app.openapi()), media_type="text/html; charset=utf-8")


def document_refusals(app: FastAPI) -> None:
    """Describe every refusal of a POST as a `Rejection`; wrong fields are never FastAPI's 422."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        page = make()
        for operation in (operation for methods in page["paths"].values() for operation in methods.values()):
            operation["responses"].pop("422", None)
        for operation in (methods["post"] for methods in page["paths"].values() if "post" in methods):
            for status, response in operation["responses"].items():
                if status != "200":
                    response["content"] = _BODY
        for name in ("HTTPValidationError", "ValidationError"):
            page["components"]["schemas"].pop(name, None)
        return page

    app.openapi = openapi


_STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.2rem; border-top: 1px solid #ccc; padding-top: .8rem }
table { border-collapse: collapse; width: 100% }
td { border: 1px solid #ddd; padding: .3rem .5rem; vertical-align: top }
code { font-size: 14px; overflow-wrap: anywhere }
"""
_REFERENCE = "#/components/schemas/"


def docs_page(description: Mapping[str, Any]) -> str:
    """Return the page of `FastAPI.openapi()`: endpoints first, then every format with its fields."""
    title = escape(description["info"]["title"])
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
    ]
    parts += ["<p>For programs: <a href=openapi.json>openapi.json</a></p><h2>Endpoints</h2>"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h3><code>{method.upper()} {escape(path)}</code></h3>")
            parts.append(
                f"<p>{escape(operation.get('description', ''))}</p><table>{''.join(_answers(operation))}</table>"
            )
    parts.append("<h2>Formats</h2>")
    for name, schema in description["components"]["schemas"].items():
        parts.append(f"<h3 id={escape(name)}>{escape(name)}</h3><p>{escape(schema.get('description', ''))}</p>")
        parts.append(f"<table>{''.join(_fields(schema))}</table>")
    return "\n".join(parts)


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    if (body := operation.get("requestBody")) is not None:
        yield f"<tr><td>takes<td>{_content(body)}"
    for parameter in operation.get("parameters", []):
        name = f"{escape(parameter['in'])} <code>{escape(parameter['name'])}</code>"
        yield f"<tr><td>{name}<td>{escape(parameter.get('description', ''))}"
    for status, response in operation["responses"].items():
        yield f"<tr><td>{escape(status)}<td>{escape(response.get('description', ''))} {_content(response)}"


def _content(part: Mapping[str, Any]) -> str:
    kinds = part.get("content", {}).items()
    return ", ".join(f"<code>{escape(kind)}</code> {_type(content.get('schema', {}))}" for kind, content in kinds)


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        yield f"<tr><td>{_type(schema)}"
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else f"default <code>{escape(json.dumps(field.get('default')))}</code>"
        yield f"<tr><td><code>{escape(name)}</code><td>{_type(field)}, {default}<td>{escape(field.get('description', ''))}"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the name of a type, linked if it has an entry of its own."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REFERENCE))
        return f"<a href=#{name}>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        return f"object of {_type(values)}"
    return escape(str(schema.get("type", "anything")))
