"""The report as one HTML page with charts; nothing is fetched from anywhere."""

from __future__ import annotations

from html import escape
from typing import Any

_COLOURS = ("#3b6ea5", "#c8553d", "#588b8b", "#d0a03c", "#7b5e9e", "#6b8e3d", "#8c6d5a", "#5b7083")

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#657083;--line:#d9dee6;--paper:#fff;--bar:#3b6ea5}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--line:#343b48;--paper:#171b22}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
p.note{color:var(--dim);margin:.3rem 0}ul.warn{border-left:4px solid #c8553d;padding:.4rem 1.6rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{font-weight:600}td.n,th.n{text-align:right}td.d{color:var(--dim);overflow-wrap:anywhere}
.scroll{overflow-x:auto}svg{width:100%;height:auto}svg text{fill:var(--ink);font-size:12px}
code{font-size:.9em;overflow-wrap:anywhere}
"""


def page(manifest: dict[str, Any]) -> str:
    """The whole document."""
    name = manifest["recipe"]["name"] or "prompts"
    total = manifest["mix"]["total"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>{escape(name)}</title><style>{_STYLE}</style><h1>{escape(name)}</h1>",
        _head(manifest),
    ]
    if manifest["warnings"]:
        items = "".join(f"<li>{escape(text)}" for text in manifest["warnings"])
        parts.append(f"<ul class=warn>{items}</ul>")
    parts += [
        "<h2>Mix by domain</h2>",
        _stack(manifest["mix"]["domains"], total),
        "<h2>Mix by source</h2>",
        _stack(manifest["mix"]["sources"], total),
        _sources(manifest),
        "<h2>Prompt lengths</h2>",
        _histogram(manifest["lengths"]["prompt_tokens"], "prompt tokens"),
        "<h2>Room for the answer</h2>",
        _histogram(manifest["lengths"]["max_tokens"], "max_tokens"),
        "<h2>Languages</h2>",
        _bars(list(manifest["mix"]["languages"].items())[:16]),
        "<h2>What was dropped, and why</h2>",
        _causes(manifest["sources"]),
        "<h2>Duplicates across sources</h2>",
        _overlaps(manifest["sources"]),
        "<h2>What was changed on the way</h2>",
        _counts(manifest["sources"], "notes", "change"),
        "<h2>Domains and their reasons</h2>",
        _counts(manifest["sources"], "domain_reasons", "reason"),
        _renamed(manifest["tools"]),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _head(manifest: dict[str, Any]) -> str:
    output, total = manifest["output"], manifest["mix"]["total"]
    return (
        f"<p>{output['lines']:,} prompts, {total['prompt_tokens']:,} prompt tokens,"
        f" about {total['output_tokens']:,} output tokens expected.</p>"
        f"<p class=note>{escape(output['path'])}, {output['bytes']:,} bytes, sha256"
        f" <code>{output['sha256']}</code>; seed {manifest['seed']}; tokens counted by"
        f" {escape(manifest['counted']['by'])}.</p>"
    )


def _table(header: list[str], rows: list[list[Any]], dim: frozenset[int] = frozenset()) -> str:
    if not rows:
        return "<p class=note>none</p>"

    def cell(value: Any, n: int, tag: str) -> str:
        number = isinstance(value, (int, float))
        text = f"{value:,}" if number else escape(str("–" if value is None else value))
        css = " class=n" if number else (" class=d" if n in dim and tag == "td" else "")
        return f"<{tag}{css}>{text}"

    right = [isinstance(rows[0][n], (int, float)) for n in range(len(header))]
    head = "".join(
        f"<th class=n>{escape(text)}" if to_right else f"<th>{escape(text)}"
        for text, to_right in zip(header, right, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(cell(value, n, "td") for n, value in enumerate(row)) for row in rows
    )
    return f"<div class=scroll><table><tr>{head}{body}</table></div>"


def _stack(parts: dict[str, Any], total: dict[str, int]) -> str:
    """One stacked bar for each of the three units, with a legend."""
    units = (
        ("prompts", "prompts"),
        ("prompt_tokens", "prompt tokens"),
        ("output_tokens", "output"),
    )
    out = []
    for row, (key, text) in enumerate(units):
        y, x = row * 34, 110.0
        out.append(f'<text x="0" y="{y + 18}">{text}</text>')
        for n, (name, part) in enumerate(parts.items()):
            share = part[key] / total[key] if total[key] else 0.0
            width = share * 830
            label = f"{name}: {part[key]:,} ({share:.1%})"
            out.append(
                f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="22"'
                f' fill="{_COLOURS[n % len(_COLOURS)]}"><title>{escape(label)}</title></rect>'
            )
            if width > 44:
                out.append(
                    f'<text x="{x + width / 2:.1f}" y="{y + 18}" text-anchor="middle"'
                    f' style="fill:#fff">{share:.0%}</text>'
                )
            x += width
    x = 110.0
    y = 122
    for n, name in enumerate(parts):
        width = 36 + 6.4 * len(name)
        if x + width > 940:
            x, y = 110.0, y + 20
        out.append(
            f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="12"'
            f' fill="{_COLOURS[n % len(_COLOURS)]}"/>'
            f'<text x="{x + 17:.0f}" y="{y}">{escape(name)}</text>'
        )
        x += width
    return f'<svg viewBox="0 0 940 {y + 10}" role="img">{"".join(out)}</svg>'


def _histogram(lengths: dict[str, Any], what: str) -> str:
    bins = lengths["bins"]
    if not bins:
        return "<p class=note>none</p>"
    most = max(b["prompts"] for b in bins)
    step = 900 / max(len(bins), 6)
    out = []
    for n, b in enumerate(bins):
        height = 150 * b["prompts"] / most
        x = 20 + n * step
        name = f"≤ {b['up_to']:,}" if b["up_to"] else "more"
        out.append(
            f'<rect x="{x:.1f}" y="{175 - height:.1f}" width="{step - 8:.1f}"'
            f' height="{height:.1f}" fill="{_COLOURS[0]}"><title>{name}: {b["prompts"]:,}</title>'
            f'</rect><text x="{x + step / 2 - 4:.1f}" y="{168 - height:.1f}" text-anchor="middle">'
            f'{b["prompts"]:,}</text><text x="{x + step / 2 - 4:.1f}" y="192"'
            f' text-anchor="middle">{name}</text>'
        )
    figures = (
        f"{what}: mean {lengths['mean']:,}, median {lengths['p50']:,}, 99% below"
        f" {lengths['p99']:,}, longest {lengths['max']:,}"
    )
    return f'<svg viewBox="0 0 940 200" role="img">{"".join(out)}</svg><p class=note>{figures}</p>'


def _bars(rows: list[tuple[str, int]]) -> str:
    if not rows:
        return "<p class=note>none</p>"
    most = max(amount for _, amount in rows)
    out = []
    for n, (name, amount) in enumerate(rows):
        y = 22 * n
        width = 720 * amount / most
        out.append(
            f'<text x="0" y="{y + 14}">{escape(name)}</text><rect x="60" y="{y + 2}"'
            f' width="{width:.1f}" height="16" fill="{_COLOURS[0]}"/>'
            f'<text x="{66 + width:.1f}" y="{y + 14}">{amount:,}</text>'
        )
    return f'<svg viewBox="0 0 940 {22 * len(rows) + 4}" role="img">{"".join(out)}</svg>'


def _sources(manifest: dict[str, Any]) -> str:
    rows = []
    for source in manifest["sources"]:
        own = manifest["mix"]["sources"][source["name"]]
        where = source.get("hub") or ", ".join(f["name"] for f in source["files"][:3])
        if source.get("revision"):
            where += f" @ {source['revision'][:12]}"
        planned = source["quota"] if source["quota"] is not None else "all"
        rows.append(
            [
                source["name"],
                where,
                source["rows"],
                source["candidates"],
                source["survivors"],
                planned,
                source["kept"],
                source["shortfall"],
                own["prompt_tokens"],
                own["output_tokens"],
            ]
        )
    header = ["source", "from", "rows", "usable", "unique", "planned", "kept", "short"]
    return _table([*header, "prompt tokens", "expected output"], rows, frozenset({1}))


def _causes(sources: list[dict[str, Any]]) -> str:
    rows = []
    for source in sources:
        for cause, amount in source["dropped"].items():
            examples = "; ".join(
                f"{e['part']}:{e['row'] + 1} {e['detail']}".strip()
                for e in source["examples"].get(cause, [])
            )
            rows.append([source["name"], cause, amount, examples])
    return _table(["source", "cause", "rows", "for example"], rows, frozenset({3}))


def _overlaps(sources: list[dict[str, Any]]) -> str:
    rows = [
        [source["name"], winner, amount]
        for source in sources
        for winner, amount in source["duplicates_of"].items()
    ]
    return _table(["duplicates in", "kept by", "rows"], rows)


def _counts(sources: list[dict[str, Any]], key: str, what: str) -> str:
    rows = [[s["name"], name, amount] for s in sources for name, amount in s[key].items()]
    return _table(["source", what, "times"], rows)


def _renamed(tools: dict[str, Any]) -> str:
    if not tools["renamed"] and not tools["types"]:
        return ""
    rows: list[list[Any]] = [["type", name, n] for name, n in tools["types"].items()]
    rows += [["name", f"{own} → {sent}", 1] for sent, own in list(tools["renamed"].items())[:500]]
    return "<h2>Mapped in tools</h2>" + _table(["what", "mapping", "times"], rows)
