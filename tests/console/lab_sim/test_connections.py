"""Connections that idle or break, and the lines they leave."""

from __future__ import annotations

import json
import re
import socket
import time

import pytest

from tests.console.lab_sim.servers import Lab, Server, is_new, wait_for


def test_an_idle_connection_is_closed_after_five_seconds(both: Lab, server: Server) -> None:
    if is_new(both):
        pytest.skip("the same in both releases")
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        link.settimeout(20)
        while link.recv(65536):
            pass
        assert 4 <= time.monotonic() - began <= 9


def test_a_client_that_leaves_is_noticed(both: Lab, server: Server) -> None:
    if is_new(both):
        pytest.skip("the same in both releases")
    body = json.dumps(
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60_000, "ignore_eos": True}
    ).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(head + body)
        wait_for(lambda: server.load()["num_running_reqs"] == 1, why="running")
    wait_for(lambda: server.load()["num_running_reqs"] == 0, 6, "aborted within four seconds")


def test_access_lines_are_on_standard_output(server: Server) -> None:
    server.client.get("/v1/models")
    wait_for(lambda: '"GET /v1/models HTTP/1.1" 200 OK' in server.access)
    assert re.search(
        r'^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] INFO:     127\.0\.0\.1:\d+ - "GET /v1/models',
        server.access,
        re.MULTILINE,
    )
    assert "HTTP/1.1" not in server.log
