"""Lets in only who asks for this machine, and of browsers only our own page.

Another site can point its name at this machine (DNS rebinding) or post a form to it: the first
shows in the Host header, the second in Origin.
"""

import re
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regraft.apps.serve.limits import RefusedError

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """ASGI middleware around all routes; sets `headers` that a response does not have."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], headers: Mapping[str, str]) -> None:
        self._app = app
        self._hosts = hosts
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            check_caller(
                Headers(scope=scope), method=scope["method"], port=_port(scope), hosts=self._hosts
            )
        except RefusedError as refusal:
            answer = JSONResponse(refusal.to_dict(), status_code=refusal.status)
            await answer(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def check_caller(
    headers: Mapping[str, str],
    *,
    method: str,
    port: int | None,
    hosts: Collection[str] = LOCAL_NAMES,
) -> None:
    """Refuse a Host that is not ours, and a write that did not come from our own page.

    This machine's own names are right with the port of this server only; others, which are those of
    a proxy, with any.
    """
    host = headers.get("host", "").lower()
    name, _, host_port = host.rpartition(":") if re.search(r":\d*$", host) else (host, "", "")
    is_our_port = name not in LOCAL_NAMES or port is None or host_port in ("", str(port))
    if name not in hosts or not is_our_port:
        raise RefusedError(
            421,
            f"The request is for {host[:80]!r}, which is not this machine.",
            f"This server answers to {', '.join(hosts)} only.",
            remedy="Use the address that it printed; `regraft serve --allowed-hosts` adds names.",
        )
    if method in ("GET", "HEAD"):
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    # A program that is not a browser sends neither, and cannot be tricked by a page.
    is_our_page = origin is None or origin.lower() in (f"http://{host}", f"https://{host}")
    if not is_our_page or site not in (None, "same-origin"):
        raise RefusedError(
            403,
            f"The request came from {(origin or site or '')[:80]!r}, not from our own page.",
            remedy="Use the page of this server, or a program that is not a browser.",
        )


def _port(scope: Scope) -> int | None:
    server = scope.get("server")
    return server[1] if server else None
