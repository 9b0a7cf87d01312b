"""What one release of SGLang calls differently from another, or means differently by one name.

The releases known here are 0.5.12 and 0.5.23. Releases between them mix old and new names, so a
name is translated only when the installed parser lacks it and has the other one.
"""

from __future__ import annotations

from remote.protocol import Flags
from remote.sglang.catalogue import Catalogue

RENAMED = {
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-decode-backend": "dsa-decode-backend",
}
"""Name in 0.5.12 → name in 0.5.23 (``server_args.py`` of both)."""

STRATEGY = ("mamba-scheduler-strategy", "mamba-radix-cache-strategy")
"""The flag of the linear-attention state strategy, old name and new."""

_OTHER = RENAMED | {new: old for old, new in RENAMED.items()}


def is_new(version: str | None, catalogue: Catalogue | None) -> bool:
    """Whether this SGLang speaks the newer dialect.

    The parser decides where it is known; else the version does; else the older one is assumed.
    """
    if catalogue is not None:
        if catalogue.get(STRATEGY[1]) is not None:
            return True
        if catalogue.get(STRATEGY[0]) is not None:
            return False
    return version is not None and _numbers(version) > (0, 5, 12)


def _numbers(version: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in version.split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits or not part[0].isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def translate(flags: Flags, catalogue: Catalogue) -> tuple[Flags, list[str]]:
    """The flags under the names that this SGLang knows, and a line for each one renamed."""
    translated: Flags = {}
    said: list[str] = []
    for name, value in flags.items():
        plain = name.replace("_", "-")
        other = _OTHER.get(plain, "")
        if catalogue.get(plain) is None and catalogue.get(other) is not None and other not in flags:
            translated[other] = value
            version = f" {catalogue.version}" if catalogue.version else ""
            said.append(f"{plain} is called {other} in SGLang{version}")
        else:
            translated[name] = value
    return translated, said


def strategy(flags: Flags) -> str:
    """The state strategy as the flags say it, ``auto`` where they do not."""
    return str(next((flags[name] for name in STRATEGY if flags.get(name)), "auto"))


def resolved_strategy(flags: Flags, new: bool) -> str:
    """What ``auto`` comes to: in 0.5.12 always no_buffer; in 0.5.23 extra_buffer while the
    overlap scheduler is on and the linear-attention backend is triton.

    Source: ``server_args.py`` of 0.5.12, ``arg_groups/overrides.py`` of 0.5.23.
    """
    wanted = strategy(flags)
    if wanted != "auto":
        return wanted
    if not new or flags.get("disable-overlap-schedule"):
        return "no_buffer"
    backends = (
        "linear-attn-backend",
        "linear-attn-decode-backend",
        "linear-attn-prefill-backend",
    )
    triton = all(flags.get(name, "triton") in (False, "triton") for name in backends)
    return "extra_buffer" if triton else "no_buffer"


def changed_meanings(flags: Flags, new: bool) -> list[str]:
    """Warnings where these flags mean another thing in the other dialect."""
    said: list[str] = []
    if strategy(flags) == "auto":
        name = STRATEGY[1] if new else STRATEGY[0]
        took = resolved_strategy(flags, new)
        other = resolved_strategy(flags, not new)
        if took != other:
            said.append(
                f"{name} auto is {took} in this SGLang and {other} in "
                f"{'0.5.12' if new else '0.5.23'}: about "
                f"{'40% fewer' if took == 'extra_buffer' else 'two thirds more'} slots here; "
                "set it to be sure"
            )
    if not new and strategy(flags) == "no_buffer" and not flags.get("disable-overlap-schedule"):
        said.append("no_buffer turns the overlap scheduler off in this SGLang")
    return said
