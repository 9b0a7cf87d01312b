"""The report for a terminal: progress, tables, histogram, bars; plain text, no dependency."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, TextIO

_PART = " ▏▎▍▌▋▊▉"
WIDTH = 28


def bar(share: float, width: int = WIDTH) -> str:
    """A bar of eighths, ``share`` from 0 to 1 of the width."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    text = "█" * whole + (_PART[rest] if rest else "")
    return text or ("▏" if share > 0 else "")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns under a header; what looks like a number stands right."""
    widths = [max(len(row[n]) for row in [header, *rows]) for n in range(len(header))]
    right = [
        all(not row[n] or row[n].strip("-~")[:1].isdigit() or row[n] == "–" for row in rows)
        for n in range(len(header))
    ]

    def line(cells: list[str]) -> str:
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(parts).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(header), rule, *map(line, rows)])


def _number(value: int | float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def summary(manifest: dict[str, Any], *, full: bool = False) -> str:
    """The report of a manifest; ``full`` with causes, notes, lengths and languages."""
    unit = manifest["mix"]["unit"]
    planned = "planned" if unit == "prompts" else f"planned {unit.replace('_', ' ')}"
    total = manifest["mix"]["total"]
    blocks = []
    rows = []
    for source in manifest["sources"]:
        own = manifest["mix"]["sources"][source["name"]]
        rows.append(
            [
                source["name"],
                _number(source["rows"]),
                _number(source["candidates"]),
                _number(source["survivors"]),
                _number(source["quota"]),
                _number(source["kept"]),
                _number(source["shortfall"]) if source["shortfall"] else "",
                _number(own["prompt_tokens"]),
                _number(own["output_tokens"]),
            ]
        )
    header = ["source", "rows", "usable", "unique", planned, "kept", "short"]
    blocks.append(table([*header, "prompt tokens", "expected output"], rows))
    blocks.append(_mix("domain", manifest["mix"]["domains"], total))
    if len(manifest["sources"]) > 1:
        blocks.append(_mix("source", manifest["mix"]["sources"], total))
    blocks.append(_causes(manifest["sources"]))
    if full:
        blocks.append(_overlaps(manifest["sources"]))
        blocks.append(_histogram("prompt tokens", manifest["lengths"]["prompt_tokens"]))
        if manifest["lengths"]["clamped"]:
            blocks.append(_histogram("room for the answer", manifest["lengths"]["max_tokens"]))
        blocks.append(_languages(manifest["mix"]["languages"]))
        blocks.append(_noted(manifest["sources"]))
        blocks.append(_reasons(manifest["sources"]))
    blocks.append("\n".join(f"! {text}" for text in manifest["warnings"]))
    output = manifest["output"]
    blocks.append(
        f"{output['lines']:,} prompts, {output['bytes']:,} bytes, sha256 {output['sha256'][:16]}…"
        f" → {output['path']}   (tokens: {manifest['counted']['by']})"
    )
    return "\n\n".join(block for block in blocks if block)


def _mix(what: str, parts: dict[str, Any], total: dict[str, int]) -> str:
    rows = []
    for name, part in parts.items():
        share = part["output_tokens"] / total["output_tokens"] if total["output_tokens"] else 0.0
        wished = part.get("planned_share")
        rows.append(
            [
                name,
                _share(part["prompts"], total["prompts"]),
                _share(part["prompt_tokens"], total["prompt_tokens"]),
                _share(part["output_tokens"], total["output_tokens"]),
                "" if wished is None else f"{wished:.1%}",
                bar(share),
            ]
        )
    header = [what, "prompts", "prompt tokens", "expected output", "wished", ""]
    if all(not row[4] for row in rows):
        header.pop(4)
        for row in rows:
            row.pop(4)
    return table(header, rows)


def _causes(sources: list[dict[str, Any]]) -> str:
    rows = []
    for source in sources:
        for cause, amount in source["dropped"].items():
            examples = source["examples"].get(cause) or []
            first = examples[0] if examples else None
            where = f"{first['part']}:{first['row'] + 1} {first['detail']}" if first else ""
            rows.append([source["name"], cause, _number(amount), visible(where)[:60]])
    return table(["source", "dropped because", "rows", "for example"], rows) if rows else ""


def visible(text: str) -> str:
    """Control characters made visible: rows are data, and terminals obey them."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _overlaps(sources: list[dict[str, Any]]) -> str:
    rows = [
        [source["name"], winner, _number(amount)]
        for source in sources
        for winner, amount in source["duplicates_of"].items()
    ]
    return table(["duplicates in", "kept by", "rows"], rows) if rows else ""


def _histogram(what: str, lengths: dict[str, Any]) -> str:
    if not lengths["bins"]:
        return ""
    most = max(b["prompts"] for b in lengths["bins"])
    rows = [
        [
            f"≤ {b['up_to']:,}" if b["up_to"] else "more",
            _number(b["prompts"]),
            bar(b["prompts"] / most),
        ]
        for b in lengths["bins"]
    ]
    figures = (
        f"mean {lengths['mean']:,}, median {lengths['p50']:,}, 99% below {lengths['p99']:,},"
        f" longest {lengths['max']:,}"
    )
    return table([what, "prompts", ""], rows) + f"\n{figures}"


def _languages(languages: dict[str, int]) -> str:
    total = sum(languages.values())
    shown = list(languages.items())[:12]
    rows = [[name, _number(n), _share(n, total), bar(n / total)] for name, n in shown]
    rest = total - sum(n for _, n in shown)
    if rest:
        rows.append([f"{len(languages) - 12} more", _number(rest), _share(rest, total), ""])
    return table(["language", "prompts", "share", ""], rows) if rows else ""


def _noted(sources: list[dict[str, Any]]) -> str:
    rows = [
        [source["name"], visible(note), _number(amount)]
        for source in sources
        for note, amount in list(source["notes"].items())[:20]
    ]
    return table(["source", "changed on the way", "times"], rows) if rows else ""


def _reasons(sources: list[dict[str, Any]]) -> str:
    rows = [
        [source["name"], why, _number(amount)]
        for source in sources
        for why, amount in list(source["domain_reasons"].items())[:12]
    ]
    return table(["source", "domain and its reason", "usable rows"], rows) if rows else ""


class Progress:
    """Shows how far a build is: a bar that moves on a terminal, else a line now and then."""

    def __init__(self, out: TextIO | None = None, *, every: float = 5.0) -> None:
        self._out = out or sys.stderr
        self._moves = self._out.isatty()
        self._every = 0.1 if self._moves else every
        self._name = ""
        self._total = 0
        self._done = 0
        self._rows = 0
        self._began = 0.0
        self._shown = 0.0

    def say(self, text: str) -> None:
        """A line of its own."""
        self._clear()
        self._out.write(f"{visible(text)}\n")
        self._out.flush()

    def begin(self, name: str, total: int) -> None:
        """A step begins; ``total`` 0 where its size is unknown."""
        self._name, self._total, self._done, self._rows = name, total, 0, 0
        self._began = self._shown = time.monotonic()
        if self._moves:
            self._show()

    def advance(self, amount: int, rows: int = 0) -> None:
        """The step is further by ``amount``, and so many rows were read."""
        self._done += amount
        self._rows += rows
        now = time.monotonic()
        if now - self._shown >= self._every:
            self._shown = now
            self._show()

    def end(self) -> None:
        """The step is over."""
        if self._moves:
            self._clear()
        elapsed = time.monotonic() - self._began
        if self._rows:
            rate = self._rows / max(elapsed, 1e-9)
            self.say(f"{self._name}: {self._rows:,} rows in {elapsed:.1f} s ({rate:,.0f} a second)")

    def _line(self) -> str:
        elapsed = max(time.monotonic() - self._began, 1e-9)
        parts = [self._name]
        if self._total:
            share = min(1.0, self._done / self._total)
            left = elapsed / share * (1 - share) if share > 0.01 else None
            parts += [bar(share, 20).ljust(20), f"{share:4.0%}"]
            if left is not None:
                parts.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        if self._rows:
            parts.append(f"{self._rows:,} rows, {self._rows / elapsed:,.0f} a second")
        return "  ".join(parts)

    def _show(self) -> None:
        line = self._line()
        if self._moves:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\x1b[K{line[:width]}")
        else:
            self._out.write(f"{line}\n")
        self._out.flush()

    def _clear(self) -> None:
        if self._moves:
            self._out.write("\r\x1b[K")
