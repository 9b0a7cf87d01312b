"""Pure functions on text: forms that are compared, markers, credentials, numbers, scripts."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Character class of scripts written without spaces (kana, Han, Hangul)."""

_word = re.compile(rf"[{CJK}]|[^\W_]+")
_cjk = re.compile(f"[{CJK}]")
_number = re.compile(r"\d+(?:[.,]\d+)*")
_marker = re.compile(
    r"<\|[A-Za-z0-9_/ .:-]{1,40}\|>|<\uff5c[^<>\n]{1,40}\uff5c>"
    r"|</?(?:think|tool_call|tool_response)>"
)
_bracketed = re.compile(r"[<\[{(][^\s<>\[\]{}()]*[A-Za-z][^\s<>\[\]{}()]*[>\]})]")

# Shapes of secrets, each long enough that prose does not match: OpenAI and Anthropic (sk-),
# Hugging Face (hf_), GitHub (gh?_, github_pat_), Slack (xox?-), AWS (AKIA/ASIA), Google (AIza),
# JSON web tokens, PEM private keys, and whatever follows "Bearer".
_secret = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})"
    r"|(?<=\bBearer )[A-Za-z0-9._~+/-]{16,}=*",
    re.DOTALL,
)
REDACTED = "[redacted]"


def normalised(text: str, *, fold: bool = True) -> str:
    """The form in which two texts count as the same: NFKC, blanks squeezed, ends stripped.

    Case goes too unless ``fold`` is false (code, where case carries meaning). Digits and
    operators stay.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    if fold:
        text = text.casefold()
    return " ".join(text.split())


def words(text: str) -> list[str]:
    """Words in order; in scripts without spaces every character is one."""
    return _word.findall(text)


def numbers(text: str) -> list[str]:
    """The numbers in order, as written."""
    return _number.findall(text)


def cjk_share(text: str) -> float:
    """Share of the characters that belong to scripts without spaces."""
    return 0.0 if not text or text.isascii() else len(_cjk.findall(text)) / len(text)


def shingles(text: str, size: int = 5) -> list[str]:
    """Overlapping pieces of an already normalised text: ``size`` words, or characters in CJK.

    Empty where the text is too short (under 8 words, or 20 characters of CJK) for its
    signature to say anything.
    """
    if cjk_share(text) > 0.3:
        squeezed = text.replace(" ", "")
        if len(squeezed) < 20:
            return []
        return [squeezed[i : i + size] for i in range(len(squeezed) - size + 1)]
    parts = text.split(" ")
    if len(parts) < 8:
        return []
    return [" ".join(parts[i : i + size]) for i in range(len(parts) - size + 1)]


class Markers:
    """What a tokenizer would take for a control token, found in texts and made harmless.

    Args:
        tokens: added tokens of the model's own tokenizer, beyond the shapes known to most
            (``<|im_end|>``, ``<think>`` …); those that are no marks in brackets (runs of
            blanks, say) are text like any other.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        own = {t for t in tokens if _bracketed.fullmatch(t)}
        own = {t for t in own if not _marker.fullmatch(t)}
        self._pattern = _marker
        self._first = "<"
        if own:
            listed = "|".join(map(re.escape, sorted(own, key=lambda t: (-len(t), t))))
            self._pattern = re.compile(f"{_marker.pattern}|{listed}")
            self._first = "".join({"<", *(t[0] for t in own)})

    def found(self, text: str) -> bool:
        """Whether the text holds one."""
        return any(c in text for c in self._first) and bool(self._pattern.search(text))

    def escape(self, text: str) -> str:
        """The text with a blank behind the first character of each: legible, and no token."""
        return self._pattern.sub(lambda m: f"{m.group()[0]} {m.group()[1:]}", text)


def redact(text: str) -> tuple[str, int]:
    """The text without strings of the shape of a credential, and how many there were."""
    return _secret.subn(REDACTED, text)


def ngrams(parts: list[str], size: int) -> Iterable[str]:
    """Overlapping runs of ``size`` words."""
    return (" ".join(parts[i : i + size]) for i in range(len(parts) - size + 1))


def literal(text: str) -> Any:
    """JSON, else a Python literal (datasets hold both).

    Raises:
        ValueError: neither.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ValueError("neither JSON nor a Python literal") from None
