"""Why prompts were given up, told once a reason and summed up at the end."""

from __future__ import annotations

import re
from collections import Counter

MOST = 20
"""Different reasons that are told apart; texts of servers may all be different."""
TOLD = 3
"""Reasons that the summary names, the most frequent first."""
_VARIES = re.compile(r"\d+")


class Reasons:
    """Of this process; two are one where only numbers differ."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def note(self, index: int, outcome: str, reason: str) -> str:
        """Count a prompt that is given up; what to say where it is the first one of its reason."""
        kind = _VARIES.sub("#", f"{outcome}: {reason}")
        if kind not in self._counts and len(self._counts) >= MOST:
            kind = ""
        self._counts[kind] += 1
        if not kind or kind in self._first:
            return ""
        self._first[kind] = f"{outcome}: {reason} (prompt {index:,}, line {index + 1:,})"
        return f"given up, {self._first[kind]}"

    def summary(self, failed: int) -> list[str]:
        """Some lines; ``failed``: prompts that were given up in all processes of the run."""
        told = [kind for kind, _ in self._counts.most_common() if kind][:TOLD]
        lines = [f"{self._counts[kind]:,} {self._first[kind]}" for kind in told]
        if rest := failed - sum(self._counts[kind] for kind in told):
            lines.append(f"{rest:,} for other reasons, or given up before: see failed.jsonl")
        if failed:
            lines.append("to try them again: stoker run retry-failed, or move failed.jsonl away")
        return lines
