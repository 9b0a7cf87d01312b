"""From the turns of a row to messages that a chat template accepts and the run can answer."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from msgspec import Struct

from remote.prepare import calls as pasting
from remote.prepare import text as texts
from remote.prepare import tools as tooling
from remote.prepare.cleaner import Cleaner
from remote.prepare.rows import Draft, Drop, Message, Notes, Request
from remote.prepare.schema import fix_schema

Tail = Literal["last", "each", "as_is"]

PLAIN_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
"""ShareGPT's and OpenAI's own names; others below are noted as mapped."""

ROLE_ALIASES = {
    "prompter": "user",
    "question": "user",
    "model": "assistant",
    "chatgpt": "assistant",
    "chatbot": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "claude": "assistant",
    "developer": "system",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "function-response": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "toolresult": "tool",
    "ipython": "tool",
    "function_call": "call",
    "function-call": "call",
    "tool_call": "call",
    "toolcall": "call",
}

_think = re.compile(r"<think>.*?(?:</think>|\Z)\s*", re.DOTALL)
_orphan_think = re.compile(r"\A.*?</think>\s*", re.DOTALL)
_scratch = re.compile(r"<scratch_pad>.*?</scratch_pad>\s*", re.DOTALL)
_IMAGE_PARTS = ("image_url", "image", "input_image")


class Rules(Struct, frozen=True):
    """What is done with turns where there is a choice."""

    tail: Tail = "last"
    fan_out: bool = False
    """A row with tools gives one prompt for each of its assistant turns."""
    late_system: Literal["hoist", "drop"] = "hoist"
    consecutive_user: Literal["merge", "drop"] = "merge"
    markers: Literal["escape", "drop"] = "escape"
    redact: bool = False
    json_schema: Literal["prompt", "response_format"] = "prompt"
    strip_system: tuple[str, ...] = ()
    roles: dict[str, str] = {}


_ANY_MODEL = texts.Markers()


def requests(
    draft: Draft, rules: Rules, notes: Notes, markers: texts.Markers = _ANY_MODEL
) -> list[Request]:
    """The requests of a row: one, or with ``fan_out`` one for each assistant turn.

    Raises:
        Drop: the row becomes none; the cause says why.
    """
    turns = _turns(draft, rules, notes)
    turns, system = _systems(turns, draft.system, rules, notes)
    tools, renamed, system = _tools(draft.tools, system, rules, notes)
    drop = rules.markers == "drop"
    clean = Cleaner(markers, notes, drop=drop, redact=rules.redact or draft.captured)
    tools = clean.tree(tools)
    turns = _alternate(turns, rules, notes)
    names = {own: sent for sent, own in renamed.items()}
    params = dict(draft.params)
    _schema(draft, rules, params, notes)
    if tools:
        params = {"tool_choice": "auto", **params}
    tooled = bool(tools) or any(t["role"] in ("tool", "call") or t["calls"] for t in turns)
    tail = rules.tail
    if tail == "each" and tooled:
        notes.add("each_as_last:tools")
        tail = "last"
    made: list[Request] = []
    for turn, kept in _cuts(turns, tail, fan_out=rules.fan_out and tooled):
        messages = _messages(kept, names, notes)
        if system:
            messages.insert(0, {"role": "system", "content": system})
        clean.messages(messages)
        if tools and pasting.pasted(messages):
            raise Drop("pasted_tools_left")
        made.append(
            Request(
                messages=messages,
                tools=tools,
                params=params,
                mode="each" if tail == "each" and _count_users(messages) > 1 else "last",
                turn=turn,
                renamed=renamed,
            )
        )
    return made


def _count_users(messages: list[Message]) -> int:
    return sum(m["role"] == "user" for m in messages)


# --- Turns: one role, one text ---


def _turns(draft: Draft, rules: Rules, notes: Notes) -> list[Message]:
    """Turns with known roles and plain texts (``role``, ``content``, ``calls``, ``call_id``)."""
    turns: list[Message] = []
    for raw in draft.turns:
        if not isinstance(raw, dict):
            raise Drop("bad_turn", str(raw)[:80])
        own = raw.get(draft.role_key) if draft.role_key else raw.get("role", raw.get("from"))
        if not isinstance(own, str):
            raise Drop("bad_turn", "a turn without a role")
        role = rules.roles.get(own) or PLAIN_ROLES.get(own)
        if role is None:
            role = PLAIN_ROLES.get(own.strip().lower()) or ROLE_ALIASES.get(own.strip().lower())
            if role is None:
                raise Drop("unknown_role", own[:80])
            notes.add("map_roles")
        value = raw.get(draft.content_key) if draft.content_key else None
        if not draft.content_key:
            value = raw["content"] if "content" in raw else raw.get("value", raw.get("text"))
        content = _content(value, role, notes)
        if "\0" in content:
            content = content.replace("\0", "")
            notes.add("repair:strip_nul")
        calls = raw.get("tool_calls") or []
        legacy = raw.get("function_call")
        if role == "assistant" and isinstance(legacy, dict):
            calls = [legacy]
        if not isinstance(calls, list):
            raise Drop("bad_history_call", str(calls)[:80])
        call_id = raw.get("tool_call_id")
        turns.append(
            {
                "role": role,
                "content": content,
                "calls": calls if role == "assistant" else [],
                "call_id": call_id if isinstance(call_id, str) else None,
            }
        )
    return turns


def _content(value: Any, role: str, notes: Notes) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list):
        pieces: list[str] = []
        for part in value:
            if isinstance(part, str):
                pieces.append(part)
                continue
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in _IMAGE_PARTS:
                raise Drop("image")
            body = part.get("text") if isinstance(part, dict) else None
            if not isinstance(body, str) or kind not in (None, "text", "input_text", "output_text"):
                raise Drop("unsupported_part", str(kind)[:40])
            pieces.append(body)
        if len(pieces) > 1:
            notes.add("join_parts")
        return "\n".join(pieces)
    if role in ("tool", "call"):
        return json.dumps(value, ensure_ascii=False)
    raise Drop("bad_turn", f"content is {type(value).__name__}")


def _systems(
    turns: list[Message], column: str, rules: Rules, notes: Notes
) -> tuple[list[Message], str]:
    """The turns without systems, and all system text as one."""
    found: list[str] = []
    rest: list[Message] = []
    late = False
    for turn in turns:
        if turn["role"] == "system":
            if turn["content"].strip():
                found.append(turn["content"].strip())
                late = late or bool(rest)
        else:
            rest.append(turn)
    if late:
        if rules.late_system == "drop":
            raise Drop("late_system")
        notes.add("hoist:late_system")
    if len(found) > 1:
        notes.add("join_systems")
    if column.strip():
        if not found:
            found = [column.strip()]
        elif column.strip() not in found:
            notes.add("system_column_ignored")
    return rest, "\n\n".join(found)


def _tools(
    raw: Any, system: str, rules: Rules, notes: Notes
) -> tuple[list[dict[str, Any]], dict[str, str], str]:
    """Tools, renamed names, and the system text without what was pasted for them."""
    tools, renamed = tooling.parse(raw, notes)
    block, rest = pasting.lift_block(system)
    if block is not None and not tools:
        tools, renamed = tooling.parse(block, notes)
        if tools:
            notes.add("tools_from_system")
    if tools and (block is not None or rules.strip_system):
        notes.add("strip_pasted_tools")
        system = pasting.strip_wrapper(rest, list(rules.strip_system))
    return tools, renamed, system


def _schema(draft: Draft, rules: Rules, params: dict[str, Any], notes: Notes) -> None:
    """The answer's JSON schema as ``response_format``, where that is wanted."""
    if draft.schema is None or rules.json_schema == "prompt":
        return
    schema = draft.schema
    try:
        value = texts.literal(schema) if isinstance(schema, str) else schema
    except ValueError:
        raise Drop("bad_schema", str(schema)[:80]) from None
    if not isinstance(value, dict) or not value:
        raise Drop("bad_schema", str(schema)[:80])
    name = tooling.safe_name(str(value.get("title") or "answer"))
    params["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": name, "schema": fix_schema(value, notes)},
    }


# --- Order: users and assistants in turn, ending where an answer is due ---


def _alternate(turns: list[Message], rules: Rules, notes: Notes) -> list[Message]:
    turns = list(turns)
    had_user = any(t["role"] == "user" for t in turns)
    first = next((n for n, t in enumerate(turns) if t["role"] == "user"), len(turns))
    head = turns[:first]
    if had_user and any(t["role"] in ("assistant", "call") for t in head):
        notes.add("trim_leading_assistant")
        # What an assistant called before anybody asked goes with its results.
        turns = turns[first:]
    elif any(t["role"] == "tool" for t in head):
        raise Drop("orphan_tool_result")
    merged: list[Message] = []
    dropped_empty = False
    for turn in turns:
        turn = dict(turn)
        if turn["role"] == "user" and not turn["content"].strip():
            dropped_empty = True
            continue
        if turn["role"] == "assistant" and not turn["calls"]:
            kept = _without_thinking(turn["content"])
            if not kept.strip():
                if turn["content"].strip():
                    turn["content"] = kept
                    notes.add("strip_history_think")
                continue
        last = merged[-1] if merged else None
        if last is not None and turn["role"] == last["role"] == "user":
            if rules.consecutive_user == "drop":
                raise Drop("consecutive_user")
            notes.add("merge:consecutive_user")
            last["content"] += "\n\n" + turn["content"]
            continue
        merged.append(turn)
    if not any(t["role"] == "user" for t in merged):
        raise Drop("empty_user" if dropped_empty else "no_user")
    if dropped_empty:
        notes.add("drop_empty_turn")
    return merged


def _cuts(
    turns: list[Message], tail: Tail, *, fan_out: bool
) -> list[tuple[int | None, list[Message]]]:
    """The prefixes to be answered, each ending on a user or tool turn."""
    speaks = ("assistant", "call")
    if tail == "each":
        return [(None, [t for t in turns if t["role"] == "user"])]
    if fan_out:
        ends = [
            n for n, t in enumerate(turns) if n and t["role"] in speaks
            and turns[n - 1]["role"] not in speaks
        ]  # fmt: skip
        if turns[-1]["role"] not in speaks:
            ends.append(len(turns))
        return [(k, turns[:end]) for k, end in enumerate(ends)]
    end = len(turns)
    while end and turns[end - 1]["role"] in speaks:
        end -= 1
    if end < len(turns) and tail == "as_is":
        raise Drop("ends_with_assistant")
    return [(None, turns[:end])]


# --- Messages: calls and their results linked ---


def _without_thinking(content: str) -> str:
    if "</think>" in content and "<think>" not in content:
        return _orphan_think.sub("", content)
    if "<think>" in content:
        content = _think.sub("", content)
    if "<scratch_pad>" in content:
        content = _scratch.sub("", content)
    return content


def _messages(turns: list[Message], names: dict[str, str], notes: Notes) -> list[Message]:
    messages: list[Message] = []
    waiting: list[str] = []  # calls without a result yet
    known: set[str] = set()
    counter = 0
    for n, turn in enumerate(turns):
        role, content = turn["role"], turn["content"]
        if role == "user":
            if waiting:
                notes.add("unanswered_call")
            waiting = []
            messages.append({"role": "user", "content": content})
        elif role == "tool":
            results = pasting.results_in_text(content)
            if turn["call_id"] is not None and len(results) == 1:
                call_id = turn["call_id"]
                if call_id not in known:
                    raise Drop("orphan_tool_result", call_id[:40])
                if call_id in waiting:
                    waiting.remove(call_id)
                messages.append(_result(call_id, results[0]))
                continue
            for result in results:
                if not waiting:
                    raise Drop("orphan_tool_result")
                messages.append(_result(waiting.pop(0), result))
        else:
            before_tool = n + 1 < len(turns) and turns[n + 1]["role"] == "tool"
            raw, spoken = _spoken(turn, before_tool=before_tool, notes=notes)
            calls: list[dict[str, Any]] = []
            for item in raw:
                own = item.get("id") if isinstance(item, dict) else None
                call_id = own if isinstance(own, str) and own else f"call_{counter}"
                counter += 1
                calls.append(pasting.call(item, call_id, names))
            ids = [c["id"] for c in calls]
            last = messages[-1] if messages else None
            if last is not None and last["role"] == "assistant":
                # Two in a row: one turn, as the template would write it.
                if spoken:
                    last["content"] = "\n\n".join(p for p in (last["content"], spoken) if p)
                if calls:
                    last["tool_calls"] = [*last.get("tool_calls", []), *calls]
                waiting += ids
                notes.add("merge:consecutive_assistant")
            else:
                message: Message = {"role": "assistant", "content": spoken or None}
                if calls:
                    message["tool_calls"] = calls
                    waiting = ids
                elif not spoken:
                    continue
                messages.append(message)
            known.update(ids)
    return messages


def _result(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _spoken(turn: Message, *, before_tool: bool, notes: Notes) -> tuple[list[Any], str]:
    """The raw calls of an assistant's turn and what it said besides."""
    content: str = turn["content"]
    if turn["role"] == "call":
        return pasting.calls_in_role(content), ""
    kept = _without_thinking(content)
    if kept != content:
        notes.add("strip_history_think")
    calls = list(turn["calls"])
    if "<tool_call>" in kept or (before_tool and "<function=" in kept):
        found, kept = pasting.calls_in_text(kept)
        calls += found
    return calls, kept.strip() if calls else kept
