"""How many tokens a prompt has, and how many its answer may have.

With the model's own tokenizer and chat template the count is exact; without, it is a bound
that real tokenizers stay under. A prompt is never cut: what does not fit is dropped.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from remote.prepare.errors import RecipeError, need
from remote.prepare.rows import Drop, Request
from remote.prepare.text import Markers

PER_MESSAGE = 5
GENERATION_PROMPT = 7
TOOLS_FIXED = 220
"""What a Qwen-style template writes around a message, before the answer (thinking off is the
longer form), and around the tools."""


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """``[budget]``: all in tokens."""

    context: int = 8192
    """The servers' ``context-length``."""
    max_tokens: int = 4096
    """What an answer may have where there is room."""
    floor: int | None = None
    """A prompt that leaves less room for its answer is dropped; by default 1,024, and with
    thinking 4,096, or ``max_tokens`` where that is less."""
    margin: int = 8
    """Kept free, for a template that differs a little."""
    tokenizer: str = ""
    """Folder with the model's ``tokenizer.json`` and chat template; "" counts an upper bound."""

    def least(self, thinking: bool) -> int:
        """The floor in force."""
        return min(self.max_tokens, self.floor or (4096 if thinking else 1024))


class Counter(Protocol):
    """Counts the tokens of whole requests."""

    exact: bool
    markers: Markers
    """What must not stand in a text, since the tokenizer would make a control token of it."""

    def count(self, requests: list[Request], thinking: list[bool | None]) -> list[int]:
        """Prompt tokens of each request, as the server will see it."""


def answer_room(budget: Budget, prompt_tokens: int, *, thinking: bool, turns: int = 1) -> int:
    """``max_tokens`` for an answer; for each of ``turns`` where several are asked in a row.

    Raises:
        Drop: ``too_long``: less room than the floor.
    """
    # Several turns: each answer becomes part of the next prompt, so all of them must fit.
    room = (budget.context - budget.margin - prompt_tokens) // max(1, turns)
    out = min(budget.max_tokens, room)
    if out < budget.least(thinking):
        raise Drop("too_long", f"{prompt_tokens} prompt tokens")
    return out


# --- Without a tokenizer ---

# Pieces that byte-pair tokenizers split text into before anything else (after the patterns of
# GPT-4 and Qwen): letters with the blank before them, single digits, marks, runs of blanks.
_piece = re.compile(
    r" ?[A-Za-z]++(?!\d)|[A-Za-z]*\d[A-Za-z0-9]*|[!-/:-@\[-`{-~]|[^\x00-\x7f]+"
    r"|[\r\n]+|[^\S\r\n]+(?=\s|\Z)|[\x00-\x7f]"
)
_inner_capital = re.compile(r"[A-Za-z][A-Z]")
_vowel = re.compile(r"[aeiouyAEIOUY]")


class _Costs(dict[str, int]):
    """Piece → tokens, at most; remembered, since texts are made of few words."""

    def __missing__(self, piece: str) -> int:
        if len(self) > 200_000:
            self.clear()
        cost = self[piece] = _cost(piece)
        return cost


_costs = _Costs()


def bound(text: str) -> int:
    """Tokens a text has at most, for byte-pair vocabularies of 100,000 entries and more.

    Words cost two tokens for every five letters, and one; digits, marks, characters of CJK
    and the letters of strings that are no words (base64, hexadecimal) one each; other scripts
    by what their alphabets cost, up to the four bytes of an emoji. Against Qwen3.6's
    vocabulary that is about 1.7 times the count of English prose and 1.1 of hexadecimal.
    """
    return sum(map(_costs.__getitem__, _piece.findall(text)))


def _cost(piece: str) -> int:
    word = piece.lstrip(" ")
    if not piece.isascii():
        return _foreign(piece)
    if not word.isalnum():
        return 1
    size = len(word)
    if not word.isalpha() or size > 24 or _inner_capital.search(word):
        return size
    if size <= 3:
        return 1
    return size * 2 // 5 + 1 if _vowel.search(word) else size


# Upper end of a range of code points → tokens a character costs in it, at most.
_COSTS = (
    (0x24F, 1.0),  # Latin with marks
    (0x36F, 2.0),
    (0x52F, 0.7),  # Greek, Cyrillic
    (0x58F, 2.0),
    (0x6FF, 1.0),  # Hebrew, Arabic
    (0x8FF, 2.0),
    (0xDFF, 1.2),  # scripts of India
    (0xEFF, 1.0),  # Thai, Lao
    (0x10FF, 2.0),
    (0x1DFF, 3.0),  # Ethiopic, Runic, Khmer …
    (0x1FFF, 2.0),
    (0x2BFF, 2.0),  # punctuation, arrows, mathematics
    (0x2FFF, 3.0),
    (0x303F, 1.0),  # punctuation of CJK
    (0x9FFF, 1.0),  # kana, Han
    (0xABFF, 3.0),
    (0xD7AF, 1.0),  # Hangul
    (0xF8FF, 3.0),
    (0xFAFF, 1.0),
    (0xFEFF, 3.0),
    (0xFFEF, 1.0),  # full-width forms
    (0xFFFF, 3.0),
)


def _foreign(piece: str) -> int:
    total = 0.0
    for char in piece:
        point = ord(char)
        total += next((cost for end, cost in _COSTS if point <= end), 4.0)
    return math.ceil(total)


class Bound:
    """Counts upper bounds; needs nothing."""

    exact = False
    markers = Markers()

    def count(self, requests: list[Request], thinking: list[bool | None]) -> list[int]:
        """See :class:`Counter`."""
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> int:
        total = GENERATION_PROMPT
        for message in request.messages:
            total += PER_MESSAGE + bound(message["content"] or "")
            for call in message.get("tool_calls", ()):
                function = call["function"]
                # As <function=NAME><parameter=KEY>…: the keys get some markup each.
                total += 20 + bound(function["name"]) + bound(function["arguments"])
                total += 10 * function["arguments"].count('":')
            if message["role"] == "tool":
                total += 10
        if request.tools:
            total += TOOLS_FIXED
            total += sum(bound(_text(tool)) for tool in as_served(request.tools))
        return total


def _text(value: Any, indent: int | None = None, **_: Any) -> str:
    """``tojson`` as transformers has it in templates: Unicode as it is, nothing escaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


# --- With the model's own ---


class Exact:
    """Renders the model's chat template and counts with its tokenizer.

    As ``transformers`` does it (``utils/chat_template_utils.py``: a sandboxed Jinja with
    ``trim_blocks``, ``lstrip_blocks``, loop controls, ``tojson`` that keeps Unicode), without
    needing it.

    Args:
        folder: holds ``tokenizer.json`` and ``chat_template.jinja`` (or
            ``tokenizer_config.json`` with ``chat_template``).

    Raises:
        RecipeError: a file is missing or does not parse, or a library is missing.
    """

    exact = True

    def __init__(self, folder: Path) -> None:
        tokenizers = need("tokenizers")
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise RecipeError(
                f"{folder}: no tokenizer.json there; name the model's own folder, "
                "or leave budget.tokenizer out to count an upper bound"
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise RecipeError(f"{path}: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.markers = Markers(token.content for token in added)
        self._template, self._names = _load_template(folder)
        jinja2 = need("jinja2")
        self._refusals = (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError)

    def render(self, request: Request, thinking: bool | None = None) -> str:
        """The prompt as text.

        Raises:
            Drop: ``template_refuses``: the template raises on this conversation.
        """
        tools = as_served(request.tools)
        try:
            return self._rendered(request, tools, thinking)
        except self._refusals as first:
            if not tools:
                raise Drop("template_refuses", str(first)[:120]) from first
        try:
            # Some templates want tools without the wrapper; SGLang tries that second.
            return self._rendered(request, [tool["function"] for tool in tools], thinking)
        except self._refusals as error:
            raise Drop("template_refuses", str(error)[:120]) from error

    def _rendered(self, request: Request, tools: list[Any], thinking: bool | None) -> str:
        extra: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        text: str = self._template.render(
            messages=_for_template(request.messages),
            tools=tools or None,
            documents=None,
            add_generation_prompt=True,
            **self._names,
            **extra,
        )
        return text

    def count(self, requests: list[Request], thinking: list[bool | None]) -> list[int]:
        """See :class:`Counter`; -1 where the template refuses a conversation."""
        texts: list[str | None] = []
        for request, think in zip(requests, thinking, strict=True):
            try:
                texts.append(self.render(request, think))
            except Drop:
                texts.append(None)
        encoded = iter(
            self._tokenizer.encode_batch(
                [text for text in texts if text is not None], add_special_tokens=False
            )
        )
        return [-1 if text is None else len(next(encoded)) for text in texts]


def as_served(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools as SGLang hands them to the template.

    0.5.12 writes every field of its ``Function`` in its own order, so that each tool gets
    ``"strict": false`` and, without a description, a null (entrypoints/openai/protocol.py);
    0.5.23 keeps the order and the ``strict`` that were sent; both end each tool with
    ``"defer_loading": null``. The longer form is counted: exact for the one, a few tokens a tool
    above the other.
    """
    return [
        {
            "type": "function",
            "function": {
                "description": tool["function"].get("description"),
                "name": tool["function"]["name"],
                "parameters": tool["function"]["parameters"],
                "strict": tool["function"].get("strict", False),
            },
            "defer_loading": None,
        }
        for tool in tools
    ]


def _for_template(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments as objects, as SGLang hands them to the template (serving_chat.py)."""
    out = []
    for message in messages:
        if "tool_calls" in message:
            calls = [
                {
                    **call,
                    "function": {
                        **call["function"],
                        "arguments": msgspec.json.decode(call["function"]["arguments"]),
                    },
                }
                for call in message["tool_calls"]
            ]
            message = {**message, "content": message["content"] or "", "tool_calls": calls}
        out.append(message)
    return out


def _load_template(folder: Path) -> tuple[Any, dict[str, str]]:
    jinja2 = need("jinja2")
    sandbox = need("jinja2.sandbox")
    config: dict[str, Any] = {}
    source: str | None = None
    try:
        config = msgspec.json.decode((folder / "tokenizer_config.json").read_bytes())
    except FileNotFoundError:
        pass
    except msgspec.DecodeError as error:
        raise RecipeError(f"{folder / 'tokenizer_config.json'}: {error}") from error
    if (folder / "chat_template.jinja").is_file():
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    else:
        found = config.get("chat_template")
        if isinstance(found, list):  # several named ones
            by_name = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
            found = by_name.get("tool_use") or by_name.get("default")
        source = found if isinstance(found, str) else None
    if source is None:
        raise RecipeError(f"{folder}: no chat_template.jinja and none in tokenizer_config.json")

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _text
    environment.globals["raise_exception"] = refuse
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise RecipeError(f"{folder}: the chat template does not parse: {error}") from error
    names = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        names[name] = value if isinstance(value, str) else ""
    return template, names


def counter(budget: Budget, base: Path) -> Counter:
    """What counts for this budget; a relative tokenizer folder is relative to ``base``."""
    if not budget.tokenizer:
        return Bound()
    return Exact(base / Path(budget.tokenizer).expanduser())
