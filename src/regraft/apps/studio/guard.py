"""Lets in only a browser on this machine, from our own page.

Another site can point its name at this machine (DNS rebinding) or post a form to it: the first
shows in the Host header, the second in Origin.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regraft.apps.serve.limits import RefusedError

_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
# The page runs our own scripts and styles only, and connects to nothing else. data: and blob: are
# for the heat maps of plotly.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# A report has inline styles, runs no script and has no origin.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            check_caller(Headers(scope=scope), method=scope["method"], port=_port(scope))
        except RefusedError as refusal:
            answer = JSONResponse(refusal.to_dict(), status_code=refusal.status)
            await answer(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def check_caller(headers: Mapping[str, str], *, method: str, port: int | None) -> None:
    """Refuse a Host that is not this machine, and a write that did not come from our page."""
    host = headers.get("host", "").lower()
    name, _, host_port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    name = name or host
    is_ours = name in _LOCAL_NAMES and (port is None or host_port in ("", str(port)))
    if not is_ours:
        raise RefusedError(
            421,
            f"The request is for {host[:80]!r}, which is not this machine.",
            "The studio answers to 127.0.0.1 and localhost only.",
            remedy="Open the address that `regraft studio` printed.",
        )
    if method in ("GET", "HEAD"):
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    # A program that is not a browser sends neither, and cannot be tricked by a page.
    if (origin is not None and origin.lower() != f"http://{host}") or site not in (
        None,
        "same-origin",
    ):
        raise RefusedError(
            403,
            f"The request came from {(origin or site or '')[:80]!r}, not from the studio's page.",
            remedy="Use the page itself.",
        )


def _port(scope: Scope) -> int | None:
    server = scope.get("server")
    return server[1] if server else None
