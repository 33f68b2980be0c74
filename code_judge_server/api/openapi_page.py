"""The page of the API at `/docs` and `/openapi.json`, where it differs from what FastAPI writes by itself."""

from typing import Any

from fastapi import FastAPI

_REFUSALS = {
    "400": "Wrong fields, by name",
    "401": "The bearer token is missing or wrong",
    "408": "The body did not arrive in time",
    "413": "Too many submissions, or too large a body",
    "500": "A bug of the judge",
    "503": "The server is stopping; the header `Retry-After` says when to ask again",
}
_BODY = {"application/json": {"schema": {"$ref": "#/components/schemas/Rejection"}}}


def document_refusals(app: FastAPI) -> None:
    """Have the page name what every endpoint that takes a body may refuse; wrong fields are never FastAPI's 422."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        page = make()
        operations = [methods["post"] for methods in page["paths"].values() if "post" in methods]
        for operation in operations:
            operation["responses"].pop("422", None)
            for status, meaning in _REFUSALS.items():
                operation["responses"].setdefault(status, {"description": meaning})
            for status, response in operation["responses"].items():
                if status != "200":
                    response["content"] = _BODY
        for name in ("HTTPValidationError", "ValidationError"):
            page["components"]["schemas"].pop(name, None)
        return page

    app.openapi = openapi
