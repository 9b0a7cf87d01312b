"""Who may open the console in a browser: who has the address with its token, on pages that this
very server gave.

textual-serve 1.1 has no authentication. It listens on loopback, which keeps other machines out but
not other accounts of this one, nor the web pages that a browser on it shows. For the accounts
there is a token, as Jupyter has: it stands in the address that is printed and becomes a cookie
when that address is opened; without it nothing is given. A web page may open a WebSocket to any
address, and may let its own name resolve to 127.0.0.1 (DNS rebinding): the Host header gives the
second away, the Origin header the first.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

NAMES: Final = ("127.0.0.1", "localhost")
"""What this server may be called."""

TOKEN: Final = "token"
"""What the printed address calls it."""

ASK: Final = "open the whole address that `stoker serve` has printed, with its token"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def hosts(port: int) -> frozenset[str]:
    """The Host headers of those who mean this server."""
    with_port = {f"{name}:{port}" for name in NAMES}
    return frozenset(with_port | set(NAMES) if port == 80 else with_port)


def refusal(headers: Mapping[str, str], port: int, *, live: bool) -> str:
    """Why a request is refused, or nothing. ``live``: it opens the WebSocket, for which every
    browser says where its page is from."""
    own = hosts(port)
    host = headers.get("Host", "").lower()
    if host not in own:
        return f"Host {host[:100]!r} is not this server: open http://127.0.0.1:{port}/"
    origin = headers.get("Origin")
    if origin is None:
        return "no Origin: only a browser's own page may connect" if live else ""
    if origin.lower() not in {f"http://{name}" for name in own}:
        return f"Origin {origin[:100]!r} is another site's"
    return ""


def policy(port: int) -> dict[str, str]:
    """Headers of every answer: nothing from elsewhere is loaded, no other site frames the page."""
    sockets = " ".join(f"ws://{host}" for host in sorted(hosts(port)))
    pages = " ".join(f"http://{host}" for host in sorted(hosts(port)))
    return {
        "Content-Security-Policy": (
            f"default-src 'self' {pages}; style-src 'self' {pages} 'unsafe-inline'; "
            f"img-src 'self' data:; connect-src 'self' {sockets}; frame-ancestors 'none'; "
            "base-uri 'none'; form-action 'none'"
        ),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def cookie(port: int) -> str:
    """The cookie's name: a browser sends those of a host to each of its ports."""
    return f"stoker-{port}"


def same(given: str | None, token: str) -> bool:
    """Whether it is the token, in a time that does not tell how much of it is right."""
    there = (given or "").encode("utf-8", "replace")
    return secrets.compare_digest(there, token.encode())


def middleware(
    port: int, live_path: str, token: str
) -> Callable[[web.Request, Handler], Awaitable[object]]:
    """Refuses before anything else looks at a request."""
    answers = policy(port)
    name = cookie(port)

    def enter() -> web.Response:
        """The cookie, and on to the address without the token: no history keeps that."""
        response = web.Response(status=303, headers={**answers, "Location": "/"})
        response.set_cookie(name, token, path="/", httponly=True, samesite="Lax")
        return response

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        live = request.path == live_path or "upgrade" in request.headers
        if why := refusal(request.headers, port, live=live):
            return web.Response(status=403, text=f"stoker: {why}\n", headers=answers)
        if request.path == "/" and same(request.query.get(TOKEN), token):
            return enter()
        if not same(request.cookies.get(name), token):
            return web.Response(status=403, text=f"stoker: {ASK}\n", headers=answers)
        response = await handler(request)
        if not response.prepared:
            response.headers.update(answers)
        return response

    return guard
