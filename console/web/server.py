"""The server behind ``stoker serve``: textual-serve's pages, each with a console of its own.

Every tab that opens the page gets one process of the console, which ends with the tab or with the
server, whatever happens: asked first, then by signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp_jinja2
from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server

import console
from console.config import ConfigError
from console.web import guard

MOST: Final = 8
"""Tabs at a time: each is a process with connections of its own."""

QUIT_S: Final = 4.0
"""For so long a console may take to leave when asked; then it is ended."""

TEMPLATES: Final = Path(__file__).parent / "templates"
OWN: Final = Path(__file__).parent / "static"


PACKAGES: Final = str(Path(console.__file__).resolve().parents[1])
"""Where this very package lies: another `console` in the folder is not ours."""


class Session(AppService):
    """One tab's console: textual-serve's, but started without a shell and ended for certain."""

    argv: list[str]

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        environment = self._build_environment(width=width, height=height)
        environment["TEXTUAL_FPS"] = "30"
        environment["PYTHONPATH"] = PACKAGES
        self._process = process = await asyncio.create_subprocess_exec(
            *self.argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
        )
        self._stdin = process.stdin
        return process

    async def run(self) -> None:
        """See :class:`AppService`; a console that ended by itself closes its tab's socket."""
        await super().run()
        with contextlib.suppress(Exception):
            await self.remote_close()

    async def stop(self) -> None:
        """End the process: asked, then told, then killed; returns when it is gone."""
        task, self._task = self._task, None
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(OSError, RuntimeError):
                await self.send_meta({"type": "quit"})
        for way in (None, process.terminate, process.kill):
            if process.returncode is None and way is not None:
                with contextlib.suppress(ProcessLookupError):
                    way()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), QUIT_S)
                break
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class ConsoleServer(Server):
    """textual-serve's server, guarded, on a port that is already bound."""

    def __init__(self, argv: list[str], port: int, title: str, token: str) -> None:
        super().__init__(
            "", host="127.0.0.1", port=port, title=title, templates_path=str(TEMPLATES)
        )
        self.argv = argv
        self.token = token
        self.sessions: set[Session] = set()

    async def _make_app(self) -> web.Application:
        only = guard.middleware(self.port, "/ws", self.token)
        app = web.Application(middlewares=[only])  # type: ignore[list-item]
        import jinja2

        loader = jinja2.FileSystemLoader(self.templates_path)
        aiohttp_jinja2.setup(app, loader=loader, autoescape=True)
        app.add_routes(
            [
                web.get("/", self.handle_index, name="index"),
                web.get("/ws", self.handle_websocket, name="websocket"),
                web.static("/static", self.statics_path, name="static"),
                web.static("/own", OWN),
            ]
        )
        app.on_shutdown.append(self.on_shutdown)
        return app

    async def on_shutdown(self, app: web.Application) -> None:
        """End every console."""
        del app
        await asyncio.gather(*(session.stop() for session in list(self.sessions)))

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """One tab, from its opening to its end."""
        if len(self.sessions) >= MOST:
            text = f"stoker: {MOST} tabs are open already; close one\n"
            raise web.HTTPServiceUnavailable(text=text)
        socket = web.WebSocketResponse(heartbeat=15, max_msg_size=1 << 20)
        await socket.prepare(request)
        session = Session(
            "",
            write_bytes=socket.send_bytes,
            write_str=socket.send_str,
            close=_closer(socket),
            download_manager=self.download_manager,
        )
        session.argv = self.argv
        self.sessions.add(session)
        try:
            await session.start(_cells(request, "width", 80), _cells(request, "height", 24))
            with contextlib.suppress(ValueError, LookupError, TypeError, AssertionError):
                await self._process_messages(socket, session)  # a page of ours sends no other
        finally:
            # The request is cancelled where the tab is gone: the process ends all the same.
            await asyncio.shield(self._end(session))
            with contextlib.suppress(Exception):
                await socket.close()
        return socket

    async def _end(self, session: Session) -> None:
        try:
            await session.stop()
        finally:
            self.sessions.discard(session)


def _closer(socket: web.WebSocketResponse) -> Callable[[], Any]:
    async def close() -> None:
        await socket.close()

    return close


def _cells(request: web.Request, name: str, usual: int) -> int:
    text = request.query.get(name, "")
    return min(1000, max(1, int(text))) if text.isdecimal() and len(text) < 6 else usual


def command(config: Path, target: str | None, *, read_only: bool, debug: bool) -> list[str]:
    """The console that each tab gets."""
    words = [sys.executable, "-P", "-m", "console.cli"]
    words += [target] if target is not None else []
    words += ["--config", str(config.resolve())]
    words += ["--read-only"] if read_only else []
    return [*words, "--debug"] if debug else words


def bind(port: int) -> socket.socket:
    """A listening socket on loopback; port 0 takes any free one. Raises ConfigError."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen(16)
    except (OSError, OverflowError) as error:
        found.close()
        why = getattr(error, "strerror", None) or "0 to 65535 are possible"
        raise ConfigError(f"--port {port}: {why}: name another one") from None
    return found


async def serve(argv: list[str], listening: socket.socket, title: str, said: str) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; then every console has ended."""
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    server = ConsoleServer(argv, port, title, token)
    # No access log: the token stands in the first line of it.
    runner = web.AppRunner(
        await server._make_app(), handle_signals=False, shutdown_timeout=2, access_log=None
    )
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(sign, leave.set)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        url = f"http://127.0.0.1:{port}/?{guard.TOKEN}={token}"
        print(said.format(url=url), flush=True)
        await leave.wait()
    finally:
        await runner.cleanup()
        await server.on_shutdown(runner.app)  # whoever came in between


def run(config: Path, target: str | None, *, port: int, allow: bool, debug: bool) -> int:
    """``stoker serve``; the exit status. Raises ConfigError."""
    argv = command(config, target, read_only=not allow, debug=debug)
    may = (
        "It may change things: whoever has this address can."
        if allow
        else "It only looks; --allow-actions lets it change things, too."
    )
    said = (
        f"The console is at {{url}} on this machine, for who has the token. {may} Ctrl-C ends it."
    )
    os.environ.pop("TEXTUAL_DRIVER", None)
    asyncio.run(serve(argv, bind(port), f"stoker {target or ''}".strip(), said))
    return 0
