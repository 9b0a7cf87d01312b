"""What an answer is worth, decided from the answer alone.

The checks are few and cheap; each outcome is one that trainers must be able to tell apart:
cut at ``max_tokens`` (``length``), one phrase over and over (``looped``), nothing that answers
(``empty``), a call that no tool of the prompt could take (``bad_tool_call``).
"""

from __future__ import annotations

from msgspec import Raw, Struct

from remote.generate.records import Outcome, Usage
from remote.generate.toolcalls import good_calls

KEPT: frozenset[str] = frozenset({"ok", "length"})
"""Outcomes that go into a batch by default."""

THINK, THOUGHT = "<think>", "</think>"
"""Around the thoughts of most models; a server with a reasoning parser takes them out."""

_CALL_MARKS = ("<tool_call>", "<function=", "[TOOL_CALLS]")
_TAIL = 8192
_NEEDLE = 24
_REPEATS = 8
_REPEATED = 400


class Answer(Struct):
    """A model's answer, whatever the engine's dialect was."""

    content: str | None
    reasoning: str | None
    tool_calls: Raw | None
    finish_reason: str | None
    usage: Usage
    model: str


def judge(answer: Answer, tools: Raw | None) -> Outcome:
    """The outcome of one answer; ``tools`` are those that the prompt offered."""
    content = answer.content or ""
    if loops(content or (answer.reasoning or "")):
        return "looped"
    cut = answer.finish_reason == "length"
    if answer.tool_calls is not None:
        if not good_calls(answer.tool_calls, tools):
            return "bad_tool_call"
        return "length" if cut else "ok"
    if answer.finish_reason == "tool_calls":
        return "bad_tool_call"  # the engine saw one and has lost it
    if tools is not None and any(mark in content for mark in _CALL_MARKS):
        return "bad_tool_call"  # the engine's parser did not recognise the call
    if cut and (content.strip() or answer.reasoning):
        return "length"
    return "ok" if _spoken(answer).strip() else "empty"


def thinks_aloud(answer: Answer) -> bool:
    """Whether the server left thoughts in the answer's text, marks and all."""
    content = answer.content or ""
    if content.lstrip().startswith((THINK, THOUGHT)):
        return True
    return not answer.reasoning and THOUGHT in content


def thoughts(answer: Answer) -> str:
    """What it thought, wherever the server put it."""
    if not thinks_aloud(answer):
        return (answer.reasoning or "").strip()
    before, mark, after = (answer.content or "").rpartition(THOUGHT)
    left = before if mark else after
    return f"{answer.reasoning or ''}{left}".replace(THINK, "").replace(THOUGHT, "").strip()


def _spoken(answer: Answer) -> str:
    """What is said besides the thoughts that the server may have left in the text."""
    content = answer.content or ""
    if not thinks_aloud(answer):
        return content
    _, mark, after = content.rpartition(THOUGHT)
    return after if mark else ""


def loops(text: str) -> bool:
    """Whether the text ends in one phrase over and over.

    The last few characters are looked up in what stands before them; at the distance of the
    latest match the text must repeat itself at least eight times, over 400 characters or more
    (a rule of dashes or a table's border is shorter).
    """
    tail = text[-_TAIL:].rstrip()
    size = len(tail)
    if size < _REPEATED:
        return False
    at = tail.rfind(tail[-_NEEDLE:], 0, size - 1)
    if at < 0:
        return False
    period = size - _NEEDLE - at
    need = max(_REPEATED, _REPEATS * period)
    return need <= size and tail[size - need : size - period] == tail[size - need + period :]
