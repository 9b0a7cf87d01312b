"""Who may open the console in a browser: pages that this very server gave, and nothing else.

textual-serve 1.1 has no authentication. It listens on loopback, which keeps other machines out but
not the web pages that a browser on this machine shows: one of those may open a WebSocket to any
address, and may let its own name resolve to 127.0.0.1 (DNS rebinding). The Host header gives the
second away, the Origin header the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

NAMES: Final = ("127.0.0.1", "localhost")
"""What this server may be called."""

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


def middleware(port: int, live_path: str) -> Callable[[web.Request, Handler], Awaitable[object]]:
    """Refuses before anything else looks at a request."""
    answers = policy(port)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        live = request.path == live_path or "upgrade" in request.headers
        if why := refusal(request.headers, port, live=live):
            return web.Response(status=403, text=f"stoker: {why}\n", headers=answers)
        response = await handler(request)
        if not response.prepared:
            response.headers.update(answers)
        return response

    return guard
