"""What a prompt is about (domain, with the reason) and in which human language it is."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, get_args

from remote.prepare.errors import need
from remote.prepare.rows import Request

Domain = Literal["general", "code", "math", "tools", "agent"]
DOMAINS: tuple[Domain, ...] = get_args(Domain)

UNKNOWN = "und"
"""Language of a text too short to tell (ISO 639-2's code for undetermined)."""

_WINDOW = 4000
"""Characters of a text that its rules look at."""

# Plain searches decide first, so that most texts never meet a regular expression.
_SYNTAX_HINTS = (
    "def ", "class ", "import ", "#include", "public ", "function ", "fn ", "package ", "const ",
    "let ", "var ", "using namespace",
)  # fmt: skip
_syntax = re.compile(
    r"^[ \t]*(?:def \w+\s*\(|class \w+[:(]|from [\w.]+ import |import [\w.]+;?$"
    r"|#include\s*[<\"]|public (?:static |final )?(?:class|void)|function \w*\s*\(|fn \w+\s*\("
    r"|package \w+;?$|(?:const|let|var) \w+ ?=|using namespace )",
    re.M,
)
_sql = re.compile(r"\bSELECT\b[^;]{1,200}?\bFROM\b|\bCREATE TABLE\b|\bINSERT INTO\b")
_file = re.compile(r"\.(?:py|js|tsx?|java|cpp|hpp|rs|rb|php|sql|ipynb|sh|css)\b")
_LANGUAGES = frozenset(
    "python java javascript typescript c++ c# golang kotlin swift php ruby perl matlab haskell"
    " scala bash html css sql react django flask pandas numpy pytorch node.js nodejs assembly"
    " verilog solidity".split()
)
# Words that are something else most of the time count only right behind "in".
_SHORT_LANGUAGES = re.compile(r"\bin (?:rust|go|c|r|julia|lua|dart)\b")
_VERBS = frozenset(
    "write implement create develop build code debug fix refactor convert translate design"
    " generate optimize optimise program explain script function".split()
)
_PROGRAMMING = (
    "algorithm", "source code", "code snippet", "regular expression", "linked list",
    "binary tree", "binary search", "unit test", "stack trace", "api endpoint",
    "recursive function", "time complexity", "leetcode",
)  # fmt: skip
_CHINESE_CODE = ("代码", "编程", "函数", "算法")
_token = re.compile(r"[a-z][a-z.]*[a-z]|c\+\+|c#")
_REACH = 12
"""Words between a verb of making and the language it makes something in."""

_latex = re.compile(r"\\(?:frac|sqrt|sum|int|begin\{|cdot|times|le|ge|pi|theta|binom)")
_formula = re.compile(r"\$[^$\n]{0,200}?[=^\\_][^$\n]{0,200}?\$|\b[a-z]\^\d")
_MATHEMATICAL = (
    "solve for", "prove that", "equation", "derivative", "integral of", "polynomial",
    "probability that", "triangle", "perimeter", "hypotenuse", "remainder when", "prime number",
    "matrix", "eigenvalue", "least common multiple", "greatest common divisor",
    "unknown variable",
)  # fmt: skip
_ASKED = (
    "how many", "how much", "how long", "how far", "how old", "how fast", "what is the total",
    "what is the sum", "what is the average", "what is the difference", "what is the product",
    "what is the probability", "what is the value", "what is the area", "what is the volume",
    "calculate", "percent", "in how many ways",
)  # fmt: skip
_CHINESE_MATH = ("方程", "求解", "证明", "三角形", "概率", "多少")
_digits = re.compile(r"\d+")

_LABEL_CODE = ("programming", "software", "coding", "code")
_LABEL_MATH = ("math",)


def code_why(text: str) -> str:
    """The rule by which a text is about code, "" if none."""
    text = text[:_WINDOW]
    if "```" in text:
        return "fenced block"
    if any(hint in text for hint in _SYNTAX_HINTS) and _syntax.search(text):
        return "code syntax"
    if ("SELECT" in text or "TABLE" in text or "INTO" in text) and _sql.search(text):
        return "SQL"
    if _file.search(text):
        return "file name"
    low = text.lower()
    if _makes_program(low):
        return "programming language"
    if any(word in low for word in _PROGRAMMING):
        return "programming words"
    if not text.isascii() and any(word in text for word in _CHINESE_CODE):
        return "编程"
    return ""


def _makes_program(low: str) -> bool:
    """Whether a verb of making stands near the name of a programming language."""
    tokens = _token.findall(low)
    known = set(tokens)
    if known.isdisjoint(_VERBS):
        return False
    if not known.isdisjoint(_LANGUAGES):
        verbs = [n for n, token in enumerate(tokens) if token in _VERBS]
        names = [n for n, token in enumerate(tokens) if token in _LANGUAGES]
        return any(abs(verb - name) <= _REACH for verb in verbs for name in names[:20])
    return bool(_SHORT_LANGUAGES.search(low))


def math_why(text: str) -> str:
    """The rule by which a text is about mathematics, "" if none."""
    text = text[:_WINDOW]
    if "\\" in text and _latex.search(text):
        return "LaTeX"
    if ("$" in text or "^" in text) and _formula.search(text):
        return "formula"
    low = text.lower()
    if any(word in low for word in _MATHEMATICAL):
        return "mathematical words"
    if any(word in low for word in _ASKED) and len(_digits.findall(text)) >= 2:
        return "numbers and a question for one"
    if not text.isascii() and any(word in text for word in _CHINESE_MATH):
        return "数学"
    return ""


def domain(
    request: Request, *, given: str, by_mapping: str, labels: list[str], code: str, math: str
) -> tuple[Domain, str]:
    """The domain and why: tools, the recipe, the dataset, its labels with the text, the text.

    A label alone does not make code (labels are several a row and generous): it takes the text
    as well, and the reason says which of the two spoke. ``code`` and ``math`` are the reasons
    of the text itself (:func:`code_why`, :func:`math_why`).
    """
    if given:
        return given, "recipe"  # type: ignore[return-value]
    if request.tools:
        return "tools", "has tools"
    if by_mapping:
        return by_mapping, "dataset"  # type: ignore[return-value]
    low = [label.lower() for label in labels]
    says_code = any(word in label for label in low for word in _LABEL_CODE)
    says_math = any(word in label for label in low for word in _LABEL_MATH)
    if request.has_tool_turns():
        return "agent", "has tool turns"
    if says_code and code:
        return "code", f"label and text: {code}"
    if says_math and not code:
        return "math", "label and text: " + math if math else "label alone"
    if code:
        return "code", f"text alone: {code}" if labels else f"text: {code}"
    if math:
        return "math", f"text alone: {math}" if labels else f"text: {math}"
    if says_code:
        return "general", "label says code, text does not"
    return "general", "nothing else fits"


# --- Human language ---

_not_prose = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$|\\[A-Za-z]+(?:\{[^{}]*\})*"
    r"|https?://\S+|<[^<>\n]{1,60}>|[\d_{}\[\]()=+*/\\|<>^~#@$%&]+",
    re.DOTALL,
)
_code_line = re.compile(
    r"^[ \t]*(?:def |class |import |from \w+ import|return|for .*:|if .*:|while .*:|else:|print"
    r"|#include|>>> |const |let |var |[\w.]+ = ).*$",
    re.M,
)
_SHORTEST = 20
_LONGEST = 400
_HAN = re.compile("[\u4e00-\u9fff]")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")


def prose(text: str) -> str:
    """The text without code, formulas and links, at most some hundred characters of it."""
    text = _not_prose.sub(" ", text[: 4 * _LONGEST])
    return " ".join(_code_line.sub(" ", text).split())[:_LONGEST]


@lru_cache(maxsize=1)
def _identifier() -> Any:
    return need("py3langid").classify


def language(texts: list[str]) -> str:
    """ISO 639-1 code of the language of the user's texts, ``und`` where there is too little.

    Scripts of one language are read off; the rest is py3langid's (a naive Bayes model in the
    wheel, no download; ten times as fast as lingua at a fifteenth of its memory).
    """
    text = prose("\n".join(texts))
    if not text.isascii():
        letters = sum(map(str.isalpha, text)) or 1
        if len(_KANA.findall(text)) > 0.1 * letters:
            return "ja"
        if len(_HANGUL.findall(text)) > 0.3 * letters:
            return "ko"
        if len(_HAN.findall(text)) > 0.3 * letters:
            return "zh"
    if len(text) < _SHORTEST:
        return UNKNOWN
    found: str = _identifier()(text)[0]
    return found
