"""Who is let in: pages of this server's own, whatever else a browser on this machine shows."""

from __future__ import annotations

import pytest

from console.web import guard

OWN = "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("headers", "live", "says"),
    [
        ({"Host": OWN}, False, ""),
        ({"Host": "localhost:8000"}, False, ""),
        ({"Host": "LOCALHOST:8000", "Origin": "http://LocalHost:8000"}, True, ""),
        ({"Host": OWN, "Origin": f"http://{OWN}"}, True, ""),
        ({"Host": OWN, "Origin": "http://localhost:8000"}, True, ""),
        ({}, False, "Host"),
        ({"Host": ""}, False, "Host"),
        ({"Host": "evil.example:8000"}, False, "Host"),
        ({"Host": "127.0.0.1.evil.example:8000", "Origin": f"http://{OWN}"}, True, "Host"),
        ({"Host": "127.0.0.1"}, False, "Host"),
        ({"Host": "127.0.0.1:8001"}, False, "Host"),
        ({"Host": "0.0.0.0:8000"}, False, "Host"),
        ({"Host": OWN}, True, "no Origin"),
        ({"Host": OWN, "Origin": "null"}, True, "another site"),
        ({"Host": OWN, "Origin": "http://evil.example"}, True, "another site"),
        ({"Host": OWN, "Origin": "http://evil.example"}, False, "another site"),
        ({"Host": OWN, "Origin": f"https://{OWN}"}, True, "another site"),
        ({"Host": OWN, "Origin": f"http://{OWN}.evil.example"}, True, "another site"),
        ({"Host": OWN, "Origin": "http://127.0.0.1:9999"}, True, "another site"),
    ],
)
def test_host_and_origin(headers: dict[str, str], live: bool, says: str) -> None:
    """One line says why."""
    why = guard.refusal(headers, 8000, live=live)
    assert bool(why) == bool(says)
    assert says in why
    assert "\n" not in why


def test_port_80_may_be_left_out() -> None:
    """As browsers do."""
    assert guard.refusal({"Host": "localhost"}, 80, live=False) == ""
    assert guard.refusal({"Host": "localhost"}, 8080, live=False)
