"""Who sends a request, as far as fair shares and ids are concerned."""

from starlette.types import Scope

_MAX_CHARS = 256


def client_of(scope: Scope) -> str:
    """Return the header `Judge-Client`, or else the address that a request comes from."""
    for name, value in scope["headers"]:
        if name == b"judge-client" and value:
            return value.decode("latin-1")[:_MAX_CHARS]
    peer = scope.get("client")
    return peer[0] if peer else ""
