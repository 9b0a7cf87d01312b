"""A stand-in for the hub's endpoint on loopback: datasets, gates, revisions, files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Repo:
    """One dataset."""

    files: dict[str, bytes]
    gated: bool = False
    """Whether its files are refused (its page is shown to everybody, as on the hub)."""
    sha: str = ""
    refs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(json.dumps(sorted(self.files)).encode())
        for data in self.files.values():
            digest.update(data)
        self.sha = self.sha or digest.hexdigest()


@dataclass
class Hub:
    """The server's state; tests change it while it runs."""

    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    busy: int = 0
    """So many next requests are answered with 429."""
    garble: int = 0
    """So many next reads of data files are answered with zeros."""
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    """Tokens that are granted every gated dataset."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        data = json.dumps(value).encode()
        self._bytes(data, status, **{"content-type": "application/json", **headers})

    def _bytes(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _error(self, status: int, code: str, text: str) -> None:
        self._json({"error": text}, status, **{"x-error-code": code, "x-error-message": text})

    def _serve(self) -> None:
        split = urlsplit(self.path)
        path = unquote(split.path)
        self.hub.asked.append(f"{self.command} {path}")
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else b""
        if self.hub.busy > 0:
            self.hub.busy -= 1
            return self._json({"error": "too many requests"}, 429)
        parts = path.strip("/").split("/")
        api = parts[0] == "api"
        parts = parts[1:] if api else parts
        if parts[0] != "datasets" or len(parts) < 3:
            return self._error(404, "", "not found")
        name, rest = "/".join(parts[1:3]), parts[3:]
        repo = self.hub.repos.get(name)
        if repo is None:
            return self._error(401, "RepoNotFound", "Repository not found")
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        granted = not repo.gated or token in self.hub.tokens
        if rest == ["auth-check"]:
            if not granted:
                return self._error(403, "GatedRepo", f"Access to dataset {name} is restricted")
            return self._json({})
        if api and (not rest or rest[0] == "revision"):
            if rest and not self._known(repo, rest[1]):
                return self._error(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
            return self._json(self._info(name, repo))
        if api and rest[0] == "tree":
            under = "/".join(rest[2:])
            recursive = parse_qs(split.query).get("recursive", ["false"])[0].lower() == "true"
            return self._json(self._tree(repo, under, recursive=recursive))
        if api and rest[0] == "paths-info":
            kind = self.headers.get("content-type") or ""
            asked = json.loads(body) if "json" in kind else parse_qs(body.decode())
            entries = {entry["path"]: entry for entry in self._tree(repo, "", recursive=True)}
            return self._json([entries[p] for p in asked.get("paths", []) if p in entries])
        if rest and rest[0] == "resolve":
            return self._file(repo, rest[1], "/".join(rest[2:]), granted=granted)
        return self._error(404, "", "not found")

    @staticmethod
    def _known(repo: Repo, revision: str) -> bool:
        return revision in ("main", repo.sha) or revision in repo.refs

    @staticmethod
    def _info(name: str, repo: Repo) -> dict[str, Any]:
        return {
            "_id": "0", "id": name, "author": name.split("/")[0], "sha": repo.sha,
            "private": False, "gated": "auto" if repo.gated else False, "disabled": False,
            "tags": [], "downloads": 0, "likes": 0,
            "lastModified": "2025-06-25T00:00:00.000Z", "createdAt": "2025-06-25T00:00:00.000Z",
            "siblings": [
                {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
                for path, data in repo.files.items()
            ],
        }  # fmt: skip

    @staticmethod
    def _tree(repo: Repo, under: str, *, recursive: bool) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        prefix = f"{under}/" if under else ""
        for path, data in repo.files.items():
            if not path.startswith(prefix):
                continue
            rest = path[len(prefix) :].split("/")
            for depth in range(1, len(rest)):
                folder = prefix + "/".join(rest[:depth])
                if recursive or depth == 1:
                    found[folder] = {"type": "directory", "path": folder, "oid": "0", "size": 0}
            if recursive or len(rest) == 1:
                oid = hashlib.sha1(data).hexdigest()
                found[path] = {"type": "file", "path": path, "oid": oid, "size": len(data)}
        return list(found.values())

    def _file(self, repo: Repo, revision: str, path: str, *, granted: bool) -> None:
        if not granted:
            return self._error(403, "GatedRepo", "Access to this dataset is restricted")
        if not self._known(repo, revision):
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        data = repo.files.get(path)
        if data is None:
            return self._error(404, "EntryNotFound", "Entry not found")
        headers = {
            "etag": f'"{hashlib.sha1(data).hexdigest()}"',
            "x-repo-commit": repo.sha,
            "accept-ranges": "bytes",
        }
        asked = self.headers.get("range")
        if asked and asked.startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else len(data) - int(last)
            end = min(int(last) if first and last else len(data) - 1, len(data) - 1)
            part = data[start : end + 1]
            if self.command == "GET" and self.hub.garble > 0 and path.endswith("1.parquet"):
                self.hub.garble -= 1
                part = bytes(len(part))
            headers["content-range"] = f"bytes {start}-{end}/{len(data)}"
            return self._bytes(part, 206, **headers)
        return self._bytes(data, 200, **headers)

    do_GET = do_HEAD = do_POST = _serve  # noqa: N815


@contextmanager
def serve(repos: dict[str, Repo]) -> Iterator[Hub]:
    """The stand-in, listening on a free port of loopback."""
    hub = Hub(repos)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
