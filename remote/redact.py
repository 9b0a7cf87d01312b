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
    r"|webhook|account[_-]?key|auth[_-]?key|ntfy[_-]?topic"
)
_TOKEN: Final = r"(?<!tik)token(?!s|iz|_)"  # counts of tokens, tokenizers, kinds of token: none
_NAME: Final = re.compile(
    rf"(?i)(?:{_WORD}|token|auth|cookie|(?<![a-z])pat|(?<![a-z])pwd|(?<![a-z])key)(?:_id)?\Z"
    r"|(?:api[_-]?key|secret|passw(?:or)?d|passphrase|webhook|ntfy[_-]?topic"
    r"|(?<![a-z])token(?!s|iz))"
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
_NO_PIECE: Final = r"""(?!\s*,\s*\\?["'](?:logprob|bytes)\b)"""  # nor the longer ones
_LONG: Final = r"""(?=\\?["']?[^\s"',;)}\]]{6})"""  # {"token": "wor"}, as log probabilities have it

_WORDS: Final = r"""[^\s"',;)}\]]+(?:[ \t]+(?!-|[\w.\-]{1,40}[=:])[^\s"',;)}\]]+){0,11}"""
"""A phrase without quotes, up to what comes next on the line."""
_IN_PATH: Final = r"""[^\s"'<>)\\]+"""

_KNOWN: Final = (
    # clouds and machines to rent
    r"A(?:BIA|CCA|GPA|IDA|IPA|KIA|NPA|NVA|ROA|SIA)[A-Z0-9]{16}\b",
    r"ABSK[A-Za-z0-9+/]{60,}+=*",
    r"bedrock-api-key-[\w+/=\-]{20,}+",
    r"AIza[\w\-]{35}",
    r"GOCSPX-[\w\-]{20,}+",
    r"ya29\.[\w\-]{20,}+",
    r"LTAI[A-Za-z0-9]{16,}+",
    r"do[opr]_v1_[a-f0-9]{32,}+",
    r"dapi[a-f0-9]{32}(?:-\d)?\b",
    r"rpa_[A-Z0-9]{30,}+",
    r"tskey-[a-z]{2,20}-[\w\-]{8,}+",
    r"fo1_[\w\-]{40,}+",
    r"fm[12][ar]?_[\w+/]{80,}+=*",
    r"HRKU-[\w\-]{30,}+",
    r"hv[bs]\.[\w\-]{20,}+",
    r"[A-Za-z0-9]{14}\.atlasv1\.[\w\-=]{40,}+",
    r"pul-[a-f0-9]{40}\b",
    r"sbp_[a-f0-9]{40}\b",
    r"pscale_[a-z]{2,5}_[\w=.\-]{24,}+",
    r"[\w.]{3}\dQ~[\w~.\-]{30,}+",
    r"AGE-SECRET-KEY-1[A-Z0-9]{40,}+",
    r"ops_eyJ[\w+/=\-]{20,}+",
    # models and data
    r"hf_[A-Za-z0-9]{20,}+",
    r"api_org_[A-Za-z]{20,}+",
    r"nvapi-[\w\-]{20,}+",
    r"sk-(?=[\w\-]{0,60}\d)[\w\-]{16,}+",
    r"gsk_[A-Za-z0-9]{20,}+",
    r"xai-[A-Za-z0-9]{40,}+",
    r"pplx-[A-Za-z0-9]{30,}+",
    r"tvly-[\w\-]{20,}+",
    r"r8_[A-Za-z0-9]{30,}+",
    r"fw_(?=[A-Za-z]{0,30}\d)[A-Za-z0-9]{20,}+",
    r"tgp_v1_[\w\-]{20,}+",
    r"wandb_v1_[\w\-]{20,}+",
    r"lsv2_[a-z]{2}_[A-Za-z0-9_]{20,}+",
    r"pnu_[A-Za-z0-9]{30,}+",
    # code and packages
    r"gh[oprsu]_[A-Za-z0-9]{20,}+",
    r"github_pat_\w{20,}+",
    r"gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)-[\w\-.]{16,}+",
    r"GR1348941[\w\-]{16,}+",
    r"ATATT3[\w\-=]{40,}+",
    r"npm_[A-Za-z0-9]{30,}+",
    r"pypi-[\w\-]{40,}+",
    r"rubygems_[a-f0-9]{40,}+",
    r"CLOJARS_[A-Za-z0-9]{40,}+",
    r"dckr_[op]at_[\w\-]{20,}+",
    r"AKCp[A-Za-z0-9]{50,}+",
    r"sgp_[A-Za-z0-9_]{40,}+",
    # people, money, measurements
    r"xox[a-z](?:\.xox[a-z])?-[\w\-]{10,}+",
    r"xapp-\d-[\w\-]{10,}+",
    r"[MNO][A-Za-z0-9]{23,27}\.[\w\-]{6}\.[\w\-]{27,}+",
    r"\d{6,12}:AA[\w\-]{30,}+",
    r"tk_[a-z0-9]{29}\b",
    r"SG\.[\w\-]{16,32}\.[\w\-]{30,}+",
    r"SK[0-9a-f]{32}\b",
    r"key-[0-9a-f]{32}\b",
    r"xkeysib-[\w\-]{40,}+",
    r"[rs]k_(?:live|prod|test)_[A-Za-z0-9]{10,}+",
    r"whsec_[A-Za-z0-9+/]{20,}+=*",
    r"sq0(?:atp|csp)-[\w\-]{20,}+",
    r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}\b",
    r"lin_(?:api|oauth)_[A-Za-z0-9]{30,}+",
    r"ntn_[A-Za-z0-9]{40,}+",
    r"fig[du]_[\w\-]{30,}+",
    r"PMAK-[a-f0-9]{24}-[a-f0-9]{30,}+",
    r"gl(?:c|sa)_[\w+/]{30,}+=*",
    r"sntry[su]_[\w+/=]{40,}+",
    r"NR(?:AK|II|JS)-[A-Za-z0-9\-]{19,}+",
)
"""Keys and tokens that are known by their looks; none goes on from a word before it."""

_CALLS: Final = (
    r"hooks\.slack(?:-gov)?\.com/",
    r"discord(?:app)?\.com/api/(?:v\d{1,3}/)?webhooks/",
    r"api\.telegram\.org/(?:file/)?bot",
    r"ntfy\.sh/(?!docs(?:/|\b)|v1/|\s)",
    r"maker\.ifttt\.com/(?:trigger|use)/",
    r"api\.day\.app/",
    r"sctapi\.ftqq\.com/",
    r"hc-ping\.com/",
    r"webhook\.site/",
    r"events\.pagerduty\.com/integration/",
    r"uptime\.betterstack\.com/api/v1/heartbeat/",
)
"""Where whoever knows the path may post, also without a scheme before it."""

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


_GIVEN: Final = r"""(?:\\?["'],?\s*,\s*|\s+|=)"""
"""Between a flag and its value, also as two strings of a list."""
_LOGINS: Final = ("-u", "-U", "--user", "--proxy-user")
_LOGIN: Final = r"""(?!\d{1,7}:\d{1,7}\b)[^\s:"']{0,200}:(?!//)"""
"""A user and what is behind the colon: no address, and not the numbers of a user and a group."""

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
        re.compile(r"""(?i)((?:set-)?cookie\\?["']?:\s*\\?["']?)(?=[^\s=;]{1,100}=)[^\n"'\\]+"""),
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
    # A phrase after its name, with blanks in it and no quotes; as .netrc and openssl have it.
    (
        re.compile(
            rf"""(?i)((?:passw(?:or)?d|passphrase)[ \t]{{0,8}}[=:][ \t]{{1,8}})"""
            rf"""(?!["'\\]|{GONE}){_NOTHING}(?=\S){_WORDS}"""
        ),
        rf"\1{GONE}",
    ),
    (
        re.compile(
            r"""(?i)\b((?:passw(?:or)?d|passphrase)[ \t]{1,8}(?:(?:is|was)[ \t]{1,8})?)"""
            r"""(?=[^\s"',;]{6})(?=[^\s"',;\d]{0,100}\d)(?=[^\s"',;a-z]{0,100}[a-z])[^\s"',;)}\]]+"""
        ),
        rf"\1{GONE}",
    ),
    (
        re.compile(
            rf"""(?i)(\blogin[ \t]+\S{{1,100}}\s+password[ \t]+)(?!{GONE})[^\s"',;)}}\]]+"""
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"""(-pass(?:in|out)?\s+pass:)[^\s"',;)}\]]+"""), rf"\1{GONE}"),
    (re.compile(rf"""(\bsshpass\s+-p\s*)(?!{GONE})({_VALUE})"""), _named),
    # curl -u user:password
    (
        re.compile(
            rf"""((?<![\w\-])(?:{"|".join(_LOGINS)}){_GIVEN})((?=["']?{_LOGIN})"""
            r"""(?:"[^"\n]{1,300}"|'[^'\n]{1,300}'|[^\s"',;)}\]]{1,300}))"""
        ),
        _named,
    ),
    (
        re.compile(r"""((?<![\w\-])-u)(?=[^\s:"'=/\-][^\s:"'=/]{0,100}:[^\s/:])[^\s"',;)}\]]+"""),
        rf"\1{GONE}",
    ),
    # name=value, name: value, 'name': 'value'. No name is longer, and a word of a megabyte must
    # not be tried to its end from each of its letters.
    (
        re.compile(
            rf"""(?i)((?:{_WORD})[\w.\-]{{0,100}}+{_QUOTE}\s*+(?:=>|[=:])\s*+){_NOTHING}({_VALUE})"""
        ),
        _named,
    ),
    (
        re.compile(
            rf"""(?i)({_TOKEN}[\w.\-]{{0,100}}+{_QUOTE}\s*+(?:=>|[=:])\s*+)"""
            rf"""{_NOTHING}{_NO_NUMBER}{_TAG}{_LONG}({_VALUE}){_NO_PIECE}"""
        ),
        _named,
    ),
    # --name value, also as two strings of a list.
    (
        re.compile(
            r"""(?i)(--(?:[^\W_]{1,40}[-_]){0,6}?(?:api[-_]?key|token|secret|passw(?:or)?d|passphrase"""
            rf"""|access[-_]key|private[-_]key|webhook|ntfy[-_]topic){_GIVEN})"""
            rf"""(?!--|{GONE}|["']--)({_VALUE})"""
        ),
        _named,
    ),
    (re.compile(r"(?i)\b(Bearer\s+)(?=\S*\d|\S{20})[A-Za-z0-9._~+/\-]{8,}+=*"), rf"\1{GONE}"),
    (re.compile(r"\b(Basic\s+)(?=[\w+/]*[a-z0-9][A-Z])[A-Za-z0-9+/]{8,}+=*"), rf"\1{GONE}"),
    (re.compile(rf"(?<![\w-])(?:{'|'.join(_KNOWN)})"), GONE),
    (re.compile(r"(?<![\w-])eyJ[\w\-]{8,}+\.[\w\-]{4,}+(?:\.[\w\-]*+){0,3}"), GONE),
    # Addresses that are secrets, and secrets in addresses.
    (re.compile(rf"""(?i)((?<![\w.-])(?:{"|".join(_CALLS)})){_IN_PATH}"""), rf"\1{GONE}"),
    (
        re.compile(rf"""(https?://(?:hooks|ntfy)\.[^/\s"']{{1,253}}/)(?!docs/){_IN_PATH}"""),
        rf"\1{GONE}",
    ),
    (
        re.compile(
            r"""(https?://[^/\s"']+/(?:[\w.-]+/){0,4}(?:(?:web)?hooks?(?:b2)?|api/push)/)"""
            rf"{_IN_PATH}"
        ),
        rf"\1{GONE}",
    ),
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
    hide, before = False, ""
    for word in words:
        login = before in _LOGINS and re.match(_LOGIN, word)
        before = word
        name, equals, _ = word.partition("=")
        flag = word.startswith("--")
        if login or (hide and not flag):
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
