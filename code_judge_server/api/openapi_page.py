"""The page of the API at `/docs` and `/openapi.json`, where it differs from what FastAPI writes by itself."""

from typing import Any

from fastapi import FastAPI

_BODY = {"application/json": {"schema": {"$ref": "#/components/schemas/Rejection"}}}


def document_refusals(app: FastAPI) -> None:
    """Have the page show every refusal of a POST as a `Rejection`; wrong fields are never FastAPI's 422."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        page = make()
        operations = [methods["post"] for methods in page["paths"].values() if "post" in methods]
        for operation in operations:
            operation["responses"].pop("422", None)
            for status, response in operation["responses"].items():
                if status != "200":
                    response["content"] = _BODY
        for name in ("HTTPValidationError", "ValidationError"):
            page["components"]["schemas"].pop(name, None)
        return page

    app.openapi = openapi
