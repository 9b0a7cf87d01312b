"""SGLang's batch lines in a few words, for panes that are narrower than they are."""

from __future__ import annotations

import re

from console.text import percent, short

_BATCH = re.compile(r"(Decode|Prefill) batch(?: \[\d+\])?, ")


def compact(line: str) -> str | None:
    """``D 37 req · kv 20% · mamba 61% · 678 tok/s`` or ``P 1 new · 931 tok · 37 req · kv 20%`` of
    a line without its time; None where it is no batch line. What it does not tell is left out."""
    found = _BATCH.match(line)
    if found is None:
        return None
    values: dict[str, float] = {}
    for part in line[found.end() :].split(", "):
        key, _, value = part.rpartition(": ")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            continue
    if not values:
        return None

    def count(key: str, word: str, *, least: float = 0) -> None:
        if (value := values.get(key)) is not None and value >= least:
            told.append(f"{short(value)} {word}")

    def share(word: str, *keys: str) -> None:
        value = next((values[k] for k in keys if k in values), None)
        if value is not None:
            told.append(f"{word} {percent(value)}")

    told: list[str] = []
    decode = found[1] == "Decode"
    if not decode:
        count("#new-seq", "new")
        count("#new-token", "tok")
        count("#cached-token", "cached", least=1)
    count("#running-req", "req")
    share("kv", "full token usage", "token usage")
    share("mamba", "mamba usage")
    if decode:
        count("gen throughput (token/s)", "tok/s")
    count("#queue-req", "wait", least=1)
    return f"{found[1][0]} {' · '.join(told)}"
