"""Access to the dashboard: the host that a request names, the token, and the headers of every reply.

On a loopback address no token is asked for, and a request must name such an address, since a page elsewhere could point its own
name at this machine. On any other address every request needs the token: once as `?token=`, then as a cookie, or as a header.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.config.schema.addresses import is_loopback

_COOKIE = "agentrl_dashboard_{port}"
"""Cookies of a host are shared by its ports, and each dashboard has its own token."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Guard:
    """Refuses requests that may not see the run, and sets the headers of replies."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refusal(scope) if self._token is None else self._answer_without_token(scope, self._token)
        await (answer or self._app)(scope, receive, send_with_headers)

    @staticmethod
    def _refusal(scope: Scope) -> Response | None:
        try:
            host = urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
        except ValueError:
            host = ""
        if is_loopback(host):
            return None
        return PlainTextResponse("host: this name is not this machine; open the printed address", status_code=403)

    @staticmethod
    def _answer_without_token(scope: Scope, token: str) -> Response | None:
        headers, name = Headers(scope=scope), _COOKIE.format(port=scope["server"][1])
        if _equal(_cookie(headers, name), token) or _equal(
            headers.get("authorization", "").removeprefix("Bearer "), token
        ):
            return None
        given = parse_qs(scope["query_string"].decode(errors="replace")).get("token", [""])[0]
        if not _equal(given, token):
            return PlainTextResponse("token: missing or wrong; open the printed address", status_code=401)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(name, token, httponly=True, samesite="lax")
        return answer


def _cookie(headers: Headers, name: str) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())
