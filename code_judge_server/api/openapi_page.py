"""The API description at `/openapi.json` and `/docs`, where it differs from FastAPI's."""

from typing import Any

from fastapi import FastAPI, Response

from code_judge_server.api.docs_page import docs_page

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
