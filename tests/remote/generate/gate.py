"""Between a run and its S3: lets requests through, refuses them in S3's words, or tells of them."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

Step: TypeAlias = Literal["received", "stored", "answered"]
"""Of an upload: it has come in; S3 has the object; the client has been told."""

_WORDS = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"


class Gate:
    """A proxy on loopback. ``refuse`` is an HTTP status and S3's code, or "hang up"."""

    def __init__(self, behind: str) -> None:
        self.refuse: tuple[int, str] | Literal["hang up", ""] = ""
        self.methods: tuple[str, ...] = ("GET", "PUT", "HEAD")
        """What is refused."""
        self.on_put: Callable[[Step], None] = lambda step: None
        """May raise :class:`ConnectionError`: it goes no further."""
        self.key = ""
        """The one access key that has not expired; empty: any will do."""
        self.stored: list[str] = []
        """Paths of the objects that were put, in order."""
        self.heads: list[str] = []
        """Paths of the objects that were asked about."""
        gate, host = self, urlsplit(behind).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # its client was killed
                    super().handle()

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                put = self.command == "PUT"
                if self.command == "HEAD":
                    gate.heads.append(urlsplit(self.path).path)
                if put:
                    gate.on_put("received")
                if gate.key and f"Credential={gate.key}/" not in self.headers["authorization"]:
                    self.answer(400, [], _WORDS.format(code="ExpiredToken").encode())
                    return
                refuse = gate.refuse if self.command in gate.methods else ""
                if refuse == "hang up":
                    self.close_connection = True
                    return
                if refuse:
                    status, code = refuse
                    self.answer(status, [], _WORDS.format(code=code).encode())
                    return
                connection = http.client.HTTPConnection(host, timeout=30)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers))
                    answer = connection.getresponse()
                    data = answer.read()
                finally:
                    connection.close()
                if put and answer.status == 200:
                    gate.stored.append(urlsplit(self.path).path)
                    gate.on_put("stored")
                self.answer(answer.status, answer.getheaders(), data)
                if put:
                    self.wfile.flush()
                    gate.on_put("answered")

            do_GET = do_PUT = do_HEAD = pass_on  # noqa: N815

            def answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
                """Pass an answer back."""
                self.send_response_only(status)
                length = str(len(data))
                for name, value in headers:
                    if name.lower() == "content-length":
                        length = value  # a HEAD has one of something that is not here
                    elif name.lower() not in ("connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("content-length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
