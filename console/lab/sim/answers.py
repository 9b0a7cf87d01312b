"""What the simulated model says: a plan of the whole answer, made when the request comes.

The plan is a function of the prompt's tokens and of which of its answers is wanted; greedy
decoding always takes answer 0. A prompt that already holds part of an answer gets the rest of
that very answer, token by token, whatever server is asked.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from math import exp, log
from typing import Any

import msgspec
from msgspec import Struct

from console.lab.sim.prose import OPENINGS, PARAGRAPH, Piece, bank
from console.lab.sim.tokens import tokenizer

VARIANTS = len(OPENINGS)
"""How many different answers there are to one prompt."""

THINK_END = "\n</think>\n\n"
_WORD = re.compile(r"[A-Za-z]{4,16}")
_SHORTEST = 8


class Style(Struct, frozen=True):
    """What of a request shapes its answer, beside the prompt's tokens."""

    thinking: bool = True
    tools: list[dict[str, Any]] = []
    """The ``function`` members of the tools sent."""
    must_call: bool = False
    after_tool: bool = False
    """The last message is a tool's result: an answer is due, rarely another call."""
    schema: dict[str, Any] | None = None
    """JSON schema that the content must satisfy."""
    words: str = ""
    """Text of the last user message, for words of its own to take up."""
    length_mean: float = 2711.0
    length_sigma: float = 0.33
    endless: bool = False
    """``ignore_eos``: it goes on as long as it may."""


class Plan:
    """An answer, piece by piece; positions are counted in tokens."""

    def __init__(self, pieces: list[Piece], *, ends: bool = True) -> None:
        self.pieces = pieces
        self.ends = ends
        """Whether its last token is the end mark."""
        self._sums = list(accumulate(len(piece.ids) for piece in pieces))

    @property
    def total(self) -> int:
        """Tokens of the whole answer, the end mark included."""
        return self._sums[-1] if self._sums else 0

    def ids(self, count: int) -> list[int]:
        """The first ``count`` tokens."""
        whole = bisect_right(self._sums, count)
        ids = list(chain.from_iterable(piece.ids for piece in self.pieces[:whole]))
        if whole < len(self.pieces):
            ids += self.pieces[whole].ids[: count - len(ids)]
        return ids

    def text(self, count: int) -> str:
        """The text of the first ``count`` tokens."""
        whole = bisect_right(self._sums, count)
        text = "".join([piece.text for piece in self.pieces[:whole]])
        rest = count - (self._sums[whole - 1] if whole else 0)
        if whole < len(self.pieces) and rest:
            text += tokenizer().decode(self.pieces[whole].ids[:rest])
        return text

    def thinking_tokens(self, count: int) -> int:
        """How many of the first ``count`` tokens are thinking, its end mark included."""
        at = 0
        for piece in self.pieces:
            if tokenizer().end_think in piece.ids:
                return min(count, at + piece.ids.index(tokenizer().end_think) + 1)
            at += len(piece.ids)
            if at >= count:
                break
        return count

    def after_ids(self, partial: Sequence[int]) -> Plan | None:
        """What follows these tokens; None where the answer does not begin with them."""
        left = len(partial)
        if left > self.total or self.ids(left) != list(partial):
            return None
        rest: list[Piece] = []
        decode = tokenizer().decode
        for piece in self.pieces:
            size = len(piece.ids)
            if left >= size:
                left -= size
            elif left:
                rest.append(Piece(decode(piece.ids[left:]), piece.ids[left:]))
                left = 0
            else:
                rest.append(piece)
        return Plan(rest, ends=self.ends)

    def after_text(self, partial: str) -> Plan | None:
        """What follows this text; None where the answer does not begin with it."""
        left = len(partial)
        rest: list[Piece] = []
        for piece in self.pieces:
            size = len(piece.text)
            if left >= size and size:
                if not partial.startswith(piece.text, len(partial) - left):
                    return None
                left -= size
            elif left and size:
                if not piece.text.startswith(partial[len(partial) - left :]):
                    return None
                rest.append(_piece(piece.text[left:]))
                left = 0
            else:
                rest.append(piece)
        return None if left else Plan(rest, ends=self.ends)


def _piece(text: str) -> Piece:
    return Piece(text, tuple(tokenizer().encode(text)))


@lru_cache(maxsize=4)
def _end() -> Piece:
    return Piece("", (tokenizer().eos,))


@lru_cache(maxsize=1)
def _think_end() -> Piece:
    return _piece(THINK_END)


def fingerprint(ids: Sequence[int]) -> int:
    """A number that stands for these tokens, the same on every machine."""
    data = array("i", ids).tobytes()
    return zlib.crc32(data) << 32 | zlib.crc32(data, 0x5EED)


def length(seed: int, style: Style) -> int:
    """Tokens of the whole answer: log-normal around the mean that was asked for."""
    rng = random.Random(seed ^ 0x1E46)
    middle = log(style.length_mean) - style.length_sigma**2 / 2
    return max(_SHORTEST, round(exp(rng.gauss(middle, style.length_sigma))))


def compose(prompt: Sequence[int], variant: int, style: Style) -> Plan:
    """Answer number ``variant`` to these prompt tokens."""
    seed = fingerprint(prompt) * VARIANTS + variant
    rng = random.Random(seed)
    total = length(seed, style)
    if style.endless:
        total = 1 << 17
    opening = _piece(f"{OPENINGS[variant]} {_topic(style.words, rng)}.")
    pieces: list[Piece] = []
    calls = bool(style.tools) and (
        style.must_call or rng.random() < (0.25 if style.after_tool else 0.88)
    )
    share = rng.uniform(0.45, 0.8)
    if calls or style.schema is not None:
        share = 0.97  # the answer itself is short, so it was thought over at length
    sentences = bank()
    if style.thinking:
        pieces.append(opening)
        used = len(opening.ids) + len(_think_end().ids)
        pieces += _fill(sentences.thoughts, sentences.thought_heads, total * share - used, rng)
        pieces.append(_think_end())
    if calls:
        if not style.thinking:
            pieces += [opening, _piece("\n\n")]
        for n in range(1 + (rng.random() < 0.12)):
            tool = rng.choice(style.tools)
            pieces.append(_piece(("\n" if n else "") + call_text(tool, rng, style.words)))
    elif style.schema is not None:
        pieces.append(_piece(json.dumps(example(style.schema, rng, style.words))))
    else:
        if style.thinking:
            head = sentences.statements[rng.randrange(len(sentences.statements))]
            lead = _piece(head.text[1:])
        else:
            lead = opening
        pieces.append(lead)
        used = sum(len(piece.ids) for piece in pieces)
        pieces += _fill(sentences.statements, sentences.statement_heads, total - used - 15, rng)
        pieces.append(_piece(f" So the answer is {rng.randint(2, 9999)}."))
    pieces.append(_end())
    return Plan(pieces)


def _fill(inner: list[Piece], heads: list[Piece], tokens: float, rng: random.Random) -> list[Piece]:
    """Sentences of about so many tokens, none twice within the length of the bank."""
    made: list[Piece] = []
    left = tokens
    while left > 0:
        order = rng.sample(range(len(inner)), min(len(inner), int(left // 14) + 2))
        for n in order:
            piece = heads[n] if len(made) % PARAGRAPH == PARAGRAPH - 1 else inner[n]
            made.append(piece)
            left -= len(piece.ids)
            if left <= 0:
                return made
    return made


def _topic(text: str, rng: random.Random) -> str:
    found: list[str] = _WORD.findall(text[-4000:])
    words = list(dict.fromkeys(word.lower() for word in found))
    if not words:
        return "what was given"
    chosen = rng.sample(words, min(3, len(words)))
    return ", ".join(chosen[:-1]) + (" and " if len(chosen) > 1 else "") + chosen[-1]


def style_of(prompt: str, *, thinking: bool) -> Style:
    """What a rendered prompt itself says of the answer: tools, last question, tool results."""
    tail = prompt.rpartition("<|im_start|>assistant\n")[0]
    last = tail.rpartition("<|im_start|>user\n")[2].removesuffix("<|im_end|>\n")
    tools: list[dict[str, Any]] = []
    if "<tools>\n" in prompt:
        section = prompt.split("<tools>\n", 1)[1].split("\n</tools>", 1)[0]
        tools = _tools(section)
    return Style(
        thinking=thinking,
        tools=tools,
        after_tool=last.startswith("<tool_response>"),
        words=last,
    )


@lru_cache(maxsize=256)
def _tools(section: str) -> list[dict[str, Any]]:
    tools = []
    for line in section.split("\n"):
        try:
            tool = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        tool = tool.get("function", tool) if isinstance(tool, dict) else {}
        if isinstance(tool, dict) and isinstance(tool.get("name"), str):
            tools.append(tool)
    return tools


# --- Continuing ---


def answer(
    prompt: Sequence[int], partial: Sequence[int], variant: int | None, style: Style
) -> Plan:
    """The answer, or what is left of it after ``partial``.

    ``variant`` is the answer wanted; None takes whichever the partial answer belongs to.
    """
    if not partial:
        return compose(prompt, variant or 0, style)
    text = tokenizer().decode(partial, skip_special=False)
    opened = style.thinking or style.schema is None
    for candidate in range(VARIANTS):
        if opened and not _begins(candidate, text):
            continue
        plan = compose(prompt, candidate, style)
        rest = plan.after_ids(partial) or plan.after_text(text)
        if rest is not None:
            return rest
    # Somebody else's words: go on with sentences of our own.
    thinking = style.thinking and THINK_END.strip() not in text
    style = msgspec.structs.replace(style, thinking=thinking)
    plan = compose([*prompt, *partial], 0, style)
    return Plan([_piece(" " + plan.pieces[0].text), *plan.pieces[1:]], ends=plan.ends)


def _begins(variant: int, text: str) -> bool:
    opening = OPENINGS[variant]
    return text.startswith(opening) or opening.startswith(text)


def split(ids: Sequence[int]) -> tuple[int, bool] | None:
    """Where the prompt ends inside tokens that end with (part of) an assistant's turn.

    Returns its length and whether thinking is on; None for tokens without such a turn.
    """
    heads = _turn_heads()
    start = tokenizer().start
    for at in range(len(ids) - 1, -1, -1):
        if ids[at] == start:
            for head, thinking in heads:
                if tuple(ids[at : at + len(head)]) == head:
                    return at + len(head), thinking
            return None
    return None


@lru_cache(maxsize=1)
def _turn_heads() -> tuple[tuple[tuple[int, ...], bool], ...]:
    encode = tokenizer().encode
    return (
        (tuple(encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")), False),
        (tuple(encode("<|im_start|>assistant\n<think>\n")), True),
    )


# --- Values and calls that satisfy a schema ---

_KINDS = {
    "dict": "object",
    "object": "object",
    "array": "array",
    "list": "array",
    "tuple": "array",
    "integer": "integer",
    "int": "integer",
    "number": "number",
    "float": "number",
    "double": "number",
    "boolean": "boolean",
    "bool": "boolean",
    "null": "null",
}


def example(schema: Any, rng: random.Random, words: str = "", depth: int = 0) -> Any:
    """A value that satisfies the common part of a JSON schema: types, enum, required, bounds."""
    if not isinstance(schema, dict) or depth > 8:
        return "value"
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return rng.choice(schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return example(schema[key][0], rng, words, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    kind = _KINDS.get(str(kind).lower(), "string")
    if kind == "object":
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required") or []
        return {
            name: example(properties.get(name, {}), rng, words, depth + 1)
            for name in [*properties, *(name for name in required if name not in properties)]
            if name in required or rng.random() < 0.3
        }
    if kind == "array":
        low = schema.get("minItems", 1)
        count = max(low if isinstance(low, int) else 1, 1)
        return [example(schema.get("items", {}), rng, words, depth + 1) for _ in range(count)]
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind in ("integer", "number"):
        low, high = schema.get("minimum"), schema.get("maximum")
        low = low if isinstance(low, int | float) else (0 if high is None else high - 10)
        high = high if isinstance(high, int | float) else low + 100
        value = rng.uniform(low, high)
        return round(value) if kind == "integer" else round(value, 2)
    return _text(schema, rng, words)


def _text(schema: dict[str, Any], rng: random.Random, words: str) -> str:
    chosen = _WORD.findall(words[-4000:])
    text = rng.choice(chosen) if chosen else "example"
    low, high = schema.get("minLength"), schema.get("maxLength")
    if isinstance(low, int) and len(text) < low:
        text = (text * low)[:low]
    return text[:high] if isinstance(high, int) else text


def call_text(tool: dict[str, Any], rng: random.Random, words: str = "") -> str:
    """A tool call as Qwen3-Coder models write it."""
    parameters = tool.get("parameters")
    values = example(parameters, rng, words) if isinstance(parameters, dict) else {}
    if not isinstance(values, dict):
        values = {}
    lines = [f"<tool_call>\n<function={tool['name']}>\n"]
    for name, value in values.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"<parameter={name}>\n{shown}\n</parameter>\n")
    return "".join(lines) + "</function>\n</tool_call>"
