"""What looks like a secret, taken out of text, command lines, environments and plain data.

The one place that decides it: for what is shown of a server's command line, for what is told of
an environment, for a report's every file. Pure. What was removed leaves :data:`GONE`; doing it
twice changes nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

GONE: Final = "‹removed›"

_WORD: Final = (
    r"api[_-]?key|access[_-]?key|secret|passw(?:or)?d|passphrase|private[_-]?key|credentials?"
    r"|webhook"
)
_TOKEN: Final = r"(?<!tik)token(?!s|iz|_)"  # counts of tokens, tokenizers, kinds of token: none
_NAME: Final = re.compile(
    rf"(?i)(?:{_WORD}|token|auth|cookie|(?<![a-z])pat|(?<![a-z])pwd|(?<![a-z])key)(?:_id)?\Z"
    rf"|(?:api[_-]?key|secret|passw(?:or)?d|passphrase|webhook|(?<![a-z])token(?!s|iz))"
)
_PLACE: Final = re.compile(r"(?i)(?:file|path|dir|folder|map|endpoint_url)\Z")
"""Names of where something lies, which is no secret."""

_VALUE: Final = (
    r"""(?:\\?"(?:[^"\\\n]|\\[^"\n])*\\?"|\\?'(?:[^'\\\n]|\\[^'\n])*\\?'|[^\s"',;)}\]]+)"""
)
_QUOTE: Final = r"""(?:\\{0,3}["'])?"""
_NOTHING: Final = r"(?!\s*(?:[\[{<]|(?:None|null|true|false|NoneType|True|False)\b))"
_NO_NUMBER: Final = r"""(?!["']?-?\d+(?:\.\d+)*%?(?:["',;)}\]\s]|\Z))"""
_TAG: Final = r"""(?!["'][\[<])"""  # eos_token='<|im_end|>'
_LONG: Final = r"""(?=\\?["']?[^\s"',;)}\]]{6})"""  # {"token": "wor"}, as log probabilities have it

_Instead: TypeAlias = str | Callable[[re.Match[str]], str]


def _named(found: re.Match[str]) -> str:
    """``name = value`` without its value, in its own quotes."""
    name, value = found[1], found[2]
    start = found.start()
    before = found.string[max(0, start - 100) : start]
    whole = re.search(r"[\w./\\-]*\Z", before)
    if whole and "/" in whole[0] and name.rstrip().endswith(":") and '"' not in name:
        return found[0]  # a file of that name, and what is the matter with it
    if _PLACE.search(re.split(r"[\s\"'=:\\]", name, maxsplit=1)[0]):
        return found[0]
    quote = re.match(r"\\?[\"']", value)
    return f"{name}{quote[0]}{GONE}{quote[0]}" if quote else f"{name}{GONE}"


_RULES: Final[tuple[tuple[re.Pattern[str], _Instead], ...]] = (
    # A header with its scheme; of those with many parts, all of the line.
    (
        re.compile(
            r"""(?i)(authorization\\?["']?\s*[=:]\s*\\?["']?)"""
            r"""(?:(?:Digest|AWS4-HMAC-SHA256|OAuth|Hawk)\s[^\n]+"""
            rf"""|(?!{GONE})(?:(?:[A-Za-z][\w-]{{1,20}})[ \t]+)?[^\s"',;)}}\]\\]+)"""
        ),
        rf"\1{GONE}",
    ),
    (
        re.compile(r"""(?i)((?:set-)?cookie\\?["']?:\s*\\?["']?)(?=[^\s=;]+=)[^\n"'\\]+"""),
        rf"\1{GONE}",
    ),
    # A line of an environment: all behind the sign.
    (
        re.compile(
            r"(?im)^([^\S\n]*(?:export\s+|set\s+|declare -x\s+)?\w{0,60}"
            r"(?:_KEY|API_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|_PWD|_PAT|CREDENTIALS?"
            r"|WEBHOOK)(?:_URL|_ID)?=)"
            rf"{_NOTHING}{_NO_NUMBER}(?=\S)(?![\"'][<\[])[^\n]+$"
        ),
        rf"\1{GONE}",
    ),
    # name=value, name: value, 'name': 'value'. No name is longer, and a word of a megabyte must
    # not be tried to its end from each of its letters.
    (
        re.compile(
            rf"""(?i)((?:{_WORD})[\w.\-]{{0,100}}+{_QUOTE}\s*(?:=>|[=:])\s*){_NOTHING}({_VALUE})"""
        ),
        _named,
    ),
    (
        re.compile(
            rf"""(?i)({_TOKEN}[\w.\-]{{0,100}}+{_QUOTE}\s*(?:=>|[=:])\s*)"""
            rf"""{_NOTHING}{_NO_NUMBER}{_TAG}{_LONG}({_VALUE})"""
        ),
        _named,
    ),
    # --name value, also as two strings of a list.
    (
        re.compile(
            r"""(?i)(--(?:\w{1,40}[-_]){0,6}?(?:api[-_]?key|token|secret|passw(?:or)?d|passphrase"""
            r"""|access[-_]key|private[-_]key|webhook)(?:\\?["'],?\s*,\s*|\s+|=))"""
            rf"""(?!--|{GONE}|["']--)({_VALUE})"""
        ),
        _named,
    ),
    (re.compile(r"(?i)\b(Bearer\s+)(?=\S*\d|\S{20})[A-Za-z0-9._~+/\-]{8,}+=*"), rf"\1{GONE}"),
    (re.compile(r"\b(Basic\s+)(?=[\w+/]*[a-z0-9][A-Z])[A-Za-z0-9+/]{8,}+=*"), rf"\1{GONE}"),
    # Keys and tokens that are known by their looks.
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b"), GONE),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}+"), GONE),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}+"), GONE),
    (re.compile(r"\bgithub_pat_\w{20,}+"), GONE),
    (re.compile(r"(?<![\w-])glpat-[\w\-]{16,}+"), GONE),
    (re.compile(r"(?<![\w-])sk-(?=[\w\-]{0,60}\d)[\w\-]{16,}+"), GONE),
    (re.compile(r"(?<![\w-])xox[a-z]-[\w\-]{10,}+"), GONE),
    (re.compile(r"(?<![\w-])AIza[\w\-]{35}"), GONE),
    (re.compile(r"(?<![\w-])eyJ[\w\-]{8,}+\.[\w\-]{4,}+(?:\.[\w\-]*+){0,3}"), GONE),
    # Addresses that are secrets, and secrets in addresses.
    (re.compile(r"""(https?://hooks\.[^/\s"']+/)[^\s"'<>)\\]+"""), rf"\1{GONE}"),
    (
        re.compile(
            r"""(https?://[^/\s"']+/(?:[\w.-]+/){0,4}(?:web)?hooks?(?:b2)?/)[^\s"'<>)\\]+"""
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"(api\.telegram\.org/bot)[\w:\-]+"), rf"\1{GONE}"),
    (re.compile(r"""(://)[^/\s:@"',<>]*:[^/\s"',<>]+@"""), rf"\1{GONE}@"),
    # A slash in a password, not of a path behind a port.
    (re.compile(r"""(://)[^/\s:@"',<>]*:(?!\d{1,5}/)[^\s:@"',<>]{1,200}@"""), rf"\1{GONE}@"),
    (re.compile(r"""(https?://)[^/\s:@"',<>]+@"""), rf"\1{GONE}@"),
    (
        re.compile(
            r"(?i)((?:[?&]|&amp;|\\u0026)(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)"
            r"|AWSAccessKeyId|GoogleAccessId|Signature|sig|access_token|token|api_?key|key)=)"
            r"""[^&\s"'<>\\]+"""
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"(?i)\b(Signature=)[0-9a-f]{32,}+"), rf"\1{GONE}"),
)

_EDGE: Final = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BODY: Final = re.compile(r"(?:(?:\s|\\[nr])*[A-Za-z0-9+/=]{16,}+)*")
_TAIL: Final = re.compile(r"(?:[A-Za-z0-9+/=]{16,}+(?:\s|\\[nr])+)+[A-Za-z0-9+/=]*(?:\s|\\[nr])*\Z")
_PEM_MOST: Final = 20_000
"""Characters of a key in PEM; RSA of 16,384 bits takes 12,700."""


def text(words: str) -> str:
    """A text without what looks like a secret: keys, tokens, passwords, signed addresses."""
    words = _without_pem(words)
    for pattern, instead in _RULES:
        words = pattern.sub(instead, words)
    return words


def _without_pem(words: str) -> str:
    """Without private keys, also those of which the begin or the end was cut off."""
    if "PRIVATE KEY" not in words:
        return words
    kept: list[str] = []
    at = 0
    edges = list(_EDGE.finditer(words))
    for n, edge in enumerate(edges):
        if edge.start() < at:
            continue  # the end of one that is gone already
        if edge[1] == "END":
            above = words[max(at, edge.start() - _PEM_MOST) : edge.start()]
            tail = _TAIL.search(above)
            kept.append(words[at : edge.start() - len(tail[0] if tail else "")])
            at = edge.end()
        else:
            kept.append(words[at : edge.start()])
            close = edges[n + 1] if n + 1 < len(edges) else None
            if close and close[1] == "END" and close.start() - edge.end() <= _PEM_MOST:
                at = close.end()
            else:
                body = _BODY.match(words, edge.end(), edge.end() + _PEM_MOST)
                at = body.end() if body else edge.end()
        kept.append(GONE)
    kept.append(words[at:])
    return "".join(kept)


def is_secret(name: str) -> bool:
    """Whether what is called so (a flag, a variable, a key of a mapping) holds a secret."""
    plain = name.lstrip("-").replace("-", "_")
    return _NAME.search(plain) is not None and not _PLACE.search(plain)


def argv(words: Sequence[str]) -> list[str]:
    """A command line with the secrets on it taken out."""
    shown: list[str] = []
    hide = False
    for word in words:
        name, equals, _ = word.partition("=")
        flag = word.startswith("--")
        if hide and not flag:
            shown.append(GONE)
            hide = False
            continue
        secret = flag and is_secret(name)
        shown.append(f"{name}={GONE}" if secret and equals else text(word))
        hide = secret and not equals
    return shown


def environ(names: Mapping[str, str]) -> dict[str, str]:
    """Variables with the secrets among their values taken out."""
    return {n: GONE if is_secret(n) and v else text(v) for n, v in names.items()}


def plain(value: Any) -> Any:
    """Data as JSON has it, with the secrets in it taken out: by name, and in every string."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list | tuple):
        words = list(value)
        if words and all(isinstance(one, str) for one in words):
            return argv(words)
        return [plain(one) for one in words]
    if isinstance(value, dict):
        return {
            key: GONE if isinstance(one, str) and one and is_secret(str(key)) else plain(one)
            for key, one in value.items()
        }
    return value
