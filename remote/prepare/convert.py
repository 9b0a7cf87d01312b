"""One row → its candidates: what would be written, and all by which it is judged.

Everything here is a function of the row, the recipe and the row's place; that is why the
result does not depend on which process did it, or when.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from remote.prepare import labels
from remote.prepare import text as texts
from remote.prepare.adapters import Adapter, Mapping, apply, detect
from remote.prepare.budget import Counter, answer_room
from remote.prepare.conversation import requests
from remote.prepare.decontaminate import Evaluations
from remote.prepare.recipe import Recipe, Source
from remote.prepare.rows import Drop, Notes, Request

ID_LENGTH = 24
"""Hex digits of the key in a prompt's id: 96 bits."""

KINDS = ("general", "code", "math")
"""Which rule a text falls under when near duplicates are judged."""


@dataclass(frozen=True)
class Place:
    """Where a row stands: part of the source (file or stream) and row within it, from 0."""

    part: str
    row: int


@dataclass
class Candidate:
    """One prompt that could be chosen."""

    line: bytes
    """As in ``prompts.jsonl``, without newline."""
    meta: dict[str, Any]
    """As in the rows file, without index; the language may still be missing."""
    key: bytes
    """SHA-256 over messages, tools and parameters: the same prompt, the same key."""
    folded: bytes
    """The same over the normalised texts, where they are compared."""
    rank: int
    """By which prompts of a source are chosen: the lowest first."""
    frame: int
    """System, tools, numbers and number of turns; near duplicates have the same. 0: none."""
    shingles: list[str]
    kind: int
    tokens: int
    out: int
    domain: int
    prefixes: list[bytes]
    """Keys of the shorter sessions that this one begins with (only where they matter)."""


@dataclass
class Verdict:
    """What became of one row (or of one prompt of it)."""

    cause: str
    detail: str = ""


@dataclass
class _Subject:
    """What a prompt is about."""

    domain: str
    why: str
    language: str | None
    kind: str
    """One of ``KINDS``."""
    is_code: bool
    """By its text: names in it keep their case where duplicates are looked for."""


class Converter:
    """Turns rows of one source into candidates.

    Args:
        recipe: the whole recipe.
        source: whose rows these are.
        counter: counts prompt tokens.
        evaluations: what must not be in the set.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: Source,
        counter: Counter,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._recipe = recipe
        self._source = source
        self._counter = counter
        self._evaluations = evaluations
        self._seed = f"{recipe.seed}|".encode()
        self._thinks = recipe.thinks()
        self._given = source.declared()
        self._detected: dict[frozenset[str], Adapter | None] = {}

    def mapping(self, row: dict[str, Any]) -> tuple[Mapping, str]:
        """What this row's columns mean, and the name of who knows it.

        Raises:
            Drop: ``unknown_columns``.
        """
        if self._given is not None:
            return self._given, self._source.adapter or "declared"
        keys = frozenset(row)
        adapter = self._detected.get(keys)
        if adapter is None:
            adapter = detect(row)
            if adapter is None:
                raise Drop("unknown_columns", ", ".join(sorted(map(str, row)))[:120])
            if not adapter.turn_keys:
                self._detected[keys] = adapter
        return adapter.mapping, adapter.name

    def requests(
        self, row: Any, notes: Notes
    ) -> tuple[list[Request], Mapping, str, str, list[str]]:
        """The row's requests, its mapping, the adapter's name, the row's own id, its labels.

        Raises:
            Drop: there is none.
        """
        if not isinstance(row, dict):
            raise Drop("not_an_object", str(row)[:80])
        mapping, adapter = self.mapping(row)
        draft = apply(row, mapping, notes)
        rules = self._source.rules(mapping)
        made = requests(draft, rules, notes, self._counter.markers)
        return made, mapping, adapter, draft.id, draft.labels

    def convert(
        self, rows: list[tuple[Place, Any]]
    ) -> tuple[list[tuple[Place, Candidate | Verdict]], dict[str, int], dict[str, int]]:
        """Rows → candidates and verdicts in order, notes counted, adapters counted."""
        results: list[tuple[Place, Candidate | Verdict]] = []
        noted: dict[str, int] = {}
        adapters: dict[str, int] = {}
        waiting: list[tuple[int, Request, dict[str, Any]]] = []
        for place, row in rows:
            notes = Notes()
            try:
                made, mapping, adapter, own, row_labels = self.requests(row, notes)
            except Drop as drop:
                results.append((place, Verdict(drop.cause, drop.detail)))
                continue
            except RecursionError:
                results.append((place, Verdict("nested_too_deeply")))
                continue
            adapters[adapter] = adapters.get(adapter, 0) + 1
            for name, count in notes.items():
                noted[name] = noted.get(name, 0) + count
            for request in made:
                info = {
                    "own": own,
                    "labels": row_labels,
                    "domain": mapping.domain,
                    "adapter": adapter,
                    "notes": dict(notes),
                }
                waiting.append((len(results), request, info))
                results.append((place, Verdict("")))
        thinking = [self._thinking(request) for _, request, _ in waiting]
        counts = self._counter.count([request for _, request, _ in waiting], thinking)
        for (at, request, info), think, tokens in zip(waiting, thinking, counts, strict=True):
            place = results[at][0]
            try:
                results[at] = (place, self._candidate(place, request, info, think, tokens))
            except Drop as drop:
                results[at] = (place, Verdict(drop.cause, drop.detail))
            except UnicodeEncodeError:
                results[at] = (place, Verdict("lone_surrogate"))
        return results, noted, adapters

    def _thinking(self, request: Request) -> bool | None:
        """Whether this prompt's answer may think; the same wherever the prompt comes from."""
        share = self._recipe.thinking
        if share is None or isinstance(share, bool):
            return share
        try:
            digest = hashlib.sha256(self._seed + b"thinking|" + _key(request)).digest()
        except UnicodeEncodeError:
            return None
        return int.from_bytes(digest[:8], "big") < share * 2**64

    def _candidate(
        self,
        place: Place,
        request: Request,
        info: dict[str, Any],
        think: bool | None,
        tokens: int,
    ) -> Candidate:
        source = self._source
        if tokens < 0:
            raise Drop("template_refuses")
        user = request.user_texts()
        turns = len(user) if request.mode == "each" else 1
        thinks = self._thinks if think is None else think
        out = answer_room(self._recipe.budget, tokens, thinking=thinks, turns=turns)
        joined = "\n".join(user)
        subject = self._subject(request, info, user, joined)
        if self._evaluations is not None and (found := self._evaluations.hit(user)):
            raise Drop("contaminated", found)
        extra = _extra(request)
        key = _key(request, extra)
        folded, frame, shingles = self._forms(request, joined, extra, is_code=subject.is_code)
        identity = self._identity(place, request, key)
        meta: dict[str, Any] = {
            "id": identity,
            "key": key.hex(),
            "source": source.name,
            "part": place.part,
            "row": place.row,
            "own_id": info["own"],
            "adapter": info["adapter"],
            "domain": subject.domain,
            "domain_why": subject.why,
            "language": subject.language,
            "turns": len(user),
            "tools": len(request.tools),
            "prompt_tokens": tokens,
            "exact": self._counter.exact,
            "max_tokens": out,
            "clamped": out < self._recipe.budget.max_tokens,
            "mode": request.mode,
            "thinking": think,
        }
        if request.turn is not None:
            meta["turn"] = request.turn
        if request.renamed:
            meta["renamed_tools"] = request.renamed
        if info["notes"]:
            meta["notes"] = info["notes"]
        ranked = hashlib.sha256(self._seed + source.name.encode() + b"|" + key).digest()
        return Candidate(
            line=_line(request, identity, source.name, out, think),
            meta=meta,
            key=key,
            folded=folded,
            rank=int.from_bytes(ranked[:8], "big"),
            frame=frame,
            shingles=shingles,
            kind=KINDS.index(subject.kind),
            tokens=tokens,
            out=out,
            domain=labels.DOMAINS.index(subject.domain),
            prefixes=_prefixes(request) if source.sessions == "longest" else [],
        )

    def _subject(
        self, request: Request, info: dict[str, Any], user: list[str], joined: str
    ) -> _Subject:
        """What the prompt is about, by the source's word and its own text.

        Raises:
            Drop: of a domain or in a language that the source is not to give.
        """
        source = self._source
        code, math = labels.code_why(joined), labels.math_why(joined)
        domain, why = labels.domain(
            request,
            given=source.domain,
            by_mapping=info["domain"],
            labels=info["labels"],
            code=code,
            math=math,
        )
        if source.domains and domain not in source.domains:
            raise Drop(f"domain:{domain}")
        language = labels.language(user) if source.languages else None
        if source.languages and language not in source.languages:
            raise Drop(f"language:{language}")
        kind = "general"
        if code or domain == "code":
            kind = "code"
        elif math or domain == "math":
            kind = "math"
        return _Subject(domain, why, language, kind, is_code=bool(code))

    def _identity(self, place: Place, request: Request, key: bytes) -> str:
        """The prompt's id: its key, and what tells apart those that may be there several times."""
        identity = key.hex()[:ID_LENGTH]
        if self._recipe.dedup.level == "off":
            # The same prompt may then be there several times; its place tells them apart.
            where = f"{self._source.name}|{place.part}|{place.row}|{request.turn}"
            return identity + "-" + hashlib.sha256(where.encode()).hexdigest()[:8]
        return identity if request.turn is None else f"{identity}#{request.turn}"

    def _forms(
        self, request: Request, joined: str, extra: bytes, *, is_code: bool
    ) -> tuple[bytes, int, list[str]]:
        """Key of the normalised prompt, and frame and shingles for near duplicates."""
        level = self._recipe.dedup.level
        if level in ("off", "exact"):
            return b"", 0, []
        fold = not is_code
        parts = [
            f"{m['role']}\0{texts.normalised(m['content'] or '', fold=fold)}"
            + "".join(
                f"\0{c['function']['name']}\0{c['function']['arguments']}"
                for c in m.get("tool_calls", ())
            )
            for m in request.messages
        ]
        folded = hashlib.sha256("\1".join(parts).encode() + extra).digest()
        if level != "near" or not self._source.near or request.has_tool_turns():
            # Steps of a session share nearly all of their text and are still different.
            return folded, 0, []
        text = texts.normalised(joined, fold=fold)
        pieces = texts.shingles(text)
        if not pieces:
            return folded, 0, []
        system = parts[0] if request.messages[0]["role"] == "system" else ""
        users = sum(m["role"] == "user" for m in request.messages)
        # Numbers are content: prompts that differ in one are different problems.
        numbers = " ".join(texts.numbers(text))
        frame = hashlib.sha256(f"{system}\1{users}\1{numbers}\1".encode() + extra).digest()
        return folded, int.from_bytes(frame[:8], "big") | 1, pieces


def _line(request: Request, identity: str, source: str, out: int, think: bool | None) -> bytes:
    """The prompt as the run reads it."""
    line: dict[str, Any] = {"id": identity, "source": source, "messages": request.messages}
    if request.tools:
        line["tools"] = request.tools
    line["max_tokens"] = out
    params = dict(request.params)
    if think is not None:
        params["chat_template_kwargs"] = {"enable_thinking": think}
    if params:
        line["params"] = params
    if request.mode == "each":
        line["mode"] = "each"
    return msgspec.json.encode(line)


def _extra(request: Request) -> bytes:
    """Tools in the order of their names, mode and parameters, as bytes that compare."""
    tools = sorted(request.tools, key=lambda t: t["function"]["name"])
    params = {k: v for k, v in request.params.items() if k != "tool_choice" or v != "auto"}
    return msgspec.json.encode([tools, request.mode, params], order="sorted")


def _key(request: Request, extra: bytes | None = None) -> bytes:
    body = msgspec.json.encode(request.messages, order="sorted")
    return hashlib.sha256(body + b"\1" + (_extra(request) if extra is None else extra)).digest()


def _prefixes(request: Request) -> list[bytes]:
    """The key of every shorter prompt of which this one is the continuation."""
    found = []
    for end in range(1, len(request.messages)):
        if request.messages[end - 1]["role"] in ("user", "tool"):
            shorter = Request(request.messages[:end], request.tools, request.params, request.mode)
            found.append(_key(shorter))
    return found


def nfc(text: str) -> str:
    """Names of files, the same on every file system."""
    return unicodedata.normalize("NFC", text)


def relative(path: Path, base: Path) -> str:
    """How a file is named in manifests: relative to the recipe where it lies below it."""
    try:
        return nfc(path.resolve().relative_to(base.resolve()).as_posix())
    except ValueError:
        return nfc(path.name)
