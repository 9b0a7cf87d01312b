"""What is asked of a simulated server, and what the real one has answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console.lab.sim import template
from tests.console.lab_sim.servers import Server

REAL = Path(__file__).parents[4] / "shared" / "fixtures" / "real-engines" / "sglang"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "w",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
OFF = {"enable_thinking": False}


def real(name: str) -> Any:
    """The body of a recorded answer of the real 0.5.12."""
    path = REAL / name
    if not path.exists():
        pytest.skip("no recorded answers of the real server here")
    lines = path.read_text().split("\n")
    first = next(
        n for n, line in enumerate(lines) if line and line[0] in "{[" and "Date" not in line
    )
    if lines[0].startswith(("GET", "POST")):  # request line, request, status, headers, body
        first = lines.index("", lines.index("HTTP 200")) + 1
    return json.loads("\n".join(lines[first:]))


def shape(value: Any, depth: int = 0) -> Any:
    """Keys and types of a JSON value."""
    if isinstance(value, dict):
        return {name: shape(part, depth + 1) for name, part in value.items()}
    if isinstance(value, list):
        return [shape(value[0], depth + 1)] if value else []
    if isinstance(value, bool) or value is None:
        return value
    return float if isinstance(value, int | float) else str


def rendered(text: str, tools: list[dict[str, Any]] | None = None, thinking: bool = True) -> str:
    return template.render([{"role": "user", "content": text}], tools, thinking=thinking)


def served(server: Server, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools as this release's template gets them."""
    if tools is None:
        return None
    functions = [tool["function"] for tool in tools]
    if server.client.get("/server_info").json()["version"] != "0.5.23":
        order = ("description", "name", "parameters")
        functions = [{**{key: one[key] for key in order}, "strict": False} for one in functions]
    return [{"type": "function", "function": one, "defer_loading": None} for one in functions]


def generate(server: Server, ids: list[int], **more: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": 4096, **more.pop("params", {})}
    answer = server.client.post(
        "/generate", json={"input_ids": ids, "sampling_params": params, **more}
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def tokenized(server: Server, text: str) -> list[int]:
    return list(server.client.post("/tokenize", json={"prompt": text}).json()["tokens"])
