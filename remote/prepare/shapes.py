"""Rows that are more than columns: captured request bodies and agent trajectories."""

from __future__ import annotations

from typing import Any

import msgspec

from remote.prepare.rows import Draft, Drop, Notes

SAMPLING = ("temperature", "top_p")
"""Kept of a captured body only where the recipe says so. What is kept always is what says what
is asked: messages, tools, tool_choice, response_format. All else (stream, n, store, metadata,
user, seed, token limits …) belongs to the run, or to whoever was recorded."""


def _decoded(value: Any, cause: str) -> Any:
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise Drop(cause, value[:80]) from None
    return value


def _is_anthropic(body: dict[str, Any]) -> bool:
    if "anthropic_version" in body or isinstance(body.get("system"), (str, list)):
        return True
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(t, dict) and "input_schema" in t for t in tools):
        return True
    for message in body.get("messages") or []:
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, list) and any(
            isinstance(p, dict) and p.get("type") in ("tool_use", "tool_result", "thinking")
            for p in parts
        ):
            return True
    return False


def body(row: dict[str, Any], notes: Notes, *, sampling: bool = False) -> Draft:
    """A captured chat request, bare or in an envelope (method, path, headers, body).

    Only an allow-list of keys is kept; headers never are.

    Raises:
        Drop: it is no chat-completions body: browser traffic, the Responses API, Anthropic's
            Messages API, or nothing that parses.
    """
    if "messages" not in row and "input" not in row:
        inner = row.get("body", row.get("request_body", row.get("post_data")))
        if inner is None or inner == "":
            raise Drop("not_a_chat_body", str(row.get("path") or row.get("url") or "")[:80])
        row = _decoded(inner, "not_a_chat_body")
        if not isinstance(row, dict):
            raise Drop("not_a_chat_body")
    if "input" in row and "messages" not in row:
        raise Drop("responses_api_body")
    if not isinstance(row.get("messages"), list):
        raise Drop("not_a_chat_body", ", ".join(sorted(row))[:80])
    if _is_anthropic(row):
        raise Drop("anthropic_body")
    wanted = ("response_format", *(SAMPLING if sampling else ()))
    params = {key: row[key] for key in wanted if row.get(key) is not None}
    tools = row.get("tools")
    if not tools and row.get("functions"):
        tools = row["functions"]
        notes.add("functions_to_tools")
    choice = row.get("tool_choice")
    if isinstance(choice, dict):
        # A named function would force that call whatever the prompt says.
        notes.add("reset_tool_choice")
    elif choice in ("required", "none") and tools:
        params["tool_choice"] = choice
    own = row.get("id")
    return Draft(
        turns=row["messages"],
        tools=tools,
        params=params,
        captured=True,
        id=own if isinstance(own, str) else "",
    )


def _trajectory_turn(message: dict[str, Any]) -> dict[str, Any] | None:
    role = message.get("role")
    parts = message.get("content")
    if isinstance(parts, str):
        parts = [{"type": "text", "text": parts}]
    if not isinstance(parts, list):
        return None
    texts = [p for p in parts if isinstance(p, dict) and p.get("type") != "toolCall"]
    texts = [p for p in texts if p.get("type") != "thinking"]
    turn: dict[str, Any] = {"role": role, "content": texts}
    if role == "toolResult":
        turn = {"role": "tool", "tool_call_id": message.get("toolCallId"), "content": texts}
    calls = [p for p in parts if isinstance(p, dict) and p.get("type") == "toolCall"]
    if calls:
        turn["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call.get("name"), "arguments": call.get("arguments")},
            }
            for call in calls
        ]
    return turn


def trajectory(row: dict[str, Any]) -> Draft:
    """An agent's session as a list of events, each with one message (WildClawBench).

    Raises:
        Drop: the session is empty or not a list of events.
    """
    events = _decoded(row.get("trajectory"), "bad_trajectory")
    if not isinstance(events, list):
        raise Drop("bad_trajectory")
    turns: list[Any] = []
    for event in events:
        message = event.get("message", event) if isinstance(event, dict) else None
        if not isinstance(message, dict) or "role" not in message:
            continue  # events that are no message: model changes, compaction marks …
        turn = _trajectory_turn(message)
        if turn is None:
            raise Drop("bad_trajectory")
        turns.append(turn)
    if not turns:
        raise Drop("empty_trajectory")
    return Draft(turns=turns)
