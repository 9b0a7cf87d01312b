"""Lines that nobody should print, from a real file to the screen: shown, bounded, never obeyed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.cells import cell_len

from console.widgets.log_pane import LogPane
from remote.agent import logs
from remote.protocol import Decoder, Event, Happened, LogPart, encode
from tests.console.screen.driver import Driven, driven

CORPUS: dict[str, bytes] = {
    "erase": b"\x1b[2J\x1b[H everything gone",
    "alternate screen": b"\x1b[?1049h\x1b[?25l\x1b[?1000h",
    "scroll region": b"\x1b[1;2r\x1b[999B\x1bM",
    "title": b"\x1b]0;pwned\x07\x1b]2;pwned\x1b\\",
    "clipboard": b"\x1b]52;c;cm0gLXJm\x07",
    "link": b"\x1b]8;;http://evil/\x1b\\click\x1b]8;;\x1b\\",
    "notification": b"\x1b]9;hello\x07\x1b]777;notify;a;b\x07",
    "answers asked of the terminal": b"\x1b[6n\x1b[c\x1bP$qm\x1b\\\x05",
    "sixel": b"\x1bPq#0;2;0;0;0#0~~@@vv\x1b\\",
    "unfinished": b"\x1b]52;c;cm0g",
    "lone escape": b"\x1b",
    "c1": "\x9b2J\x9d0;x\x9c\x85".encode(),
    "nul and bell": b"nul\x00bel\x07bs\x08vt\x0bff\x0cdel\x7f",
    "shift out": b"\x0e\x0f\x1b(0lqqk\x1b(B",
    "carriage returns": b"10%\r50%\r\x1b[K100% loaded\r",
    "tabs": b"a\tb\t\tc",
    "bidi": "user \u202eetisoppo\u202c \u2066isolate\u2069 \u200f\u061c".encode(),
    "zero width": "a\u200bb\u200cc\u2060d\ufeffe\u00adf".encode(),
    "tags": "flag \U000e0041\U000e007f end".encode(),
    "wide": ("界" * 300 + " 한글 ｆｕｌｌ").encode(),
    "emoji": "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ⚠️ ☠".encode(),
    "combining": ("Z" + "\u0334\u0335\u0336\u0489" * 60 + " e\u0301").encode(),
    "separators": "line\u2028para\u2029next\x1c\x1d\x1e\x1f".encode(),
    "not utf-8": b"\xff\xfe\xc3\x28\xed\xa0\x80\xf0\x9f",
    "rich markup": b"[bold red]x[/] [link=http://a]y[/link] [/] [[",
    "textual markup": b"[@click=app.quit]quit[/] [$error]x[/] \\[",
    "format": b"%s %n {0} {self} $HOME `id` $(id)",
    "json": b'{"type":"snapshot"}',
    "marks of our own": "┄┄┄ 7 lines skipped ┄┄┄ │".encode(),
    "a megabyte": b"x" * (1 << 20),
    "a megabyte of escapes": b"\x1b[31m" * 200_000,
    "a megabyte of wide ones": "界".encode() * 350_000,
    "blank": b"",
    "end": b"the end of the corpus",
}
"""By what it tries; each a line as a server could write it."""


def parts(path: Path) -> list[LogPart]:
    """The file as the agent pushes it, over the wire."""
    found: list[LogPart] = []
    decoder = Decoder()
    inode, offset = path.stat().st_ino, 0
    while (part := logs.follow("gpu0", path, inode, offset)) is not None:
        for line in encode(part).splitlines(keepends=True):
            message = decoder.feed(line)
            if message is not None:
                assert isinstance(message, LogPart)
                found.append(message)
        offset = part.next
    assert decoder.bad == 0
    return found


def harmless(one: Driven) -> None:
    """Nothing on the screen is a control or reordering character, and no line is too long."""
    width, height = one.app.size
    strips = one.app.screen._compositor.render_strips()
    assert len(strips) <= height
    for strip in strips:
        assert strip.cell_length == width
        for text, _, control in strip:
            assert control is None
            assert cell_len(text) <= width
            bad = [c for c in text if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0]
            bad += [
                c for c in text if c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
            ]
            bad += [c for c in text if c in "\u200e\u200f\u061c\u2028\u2029\ufeff"]
            assert not bad, repr(text)
            text.encode()


@pytest.mark.parametrize("size", [(80, 24), (220, 60)])
async def test_the_corpus_in_every_pane(tmp_path: Path, size: tuple[int, int]) -> None:
    """Side by side, merged, scrolled through line by line and sideways; in good time."""
    path = tmp_path / "gpu0.log"
    path.write_bytes(b"\n".join(CORPUS.values()) + b"\n")
    async with driven(size) as one:
        await one.keys("0", "l")
        await one.until(lambda: one.app.screen.query(LogPane))
        for part in parts(path):
            one.story.on_message(part)
        pane = one.app.screen.query_one(LogPane)
        await one.until(lambda: any("the end of the corpus" in line for line in pane.held()))
        began = time.monotonic()
        await one.keys("home")
        for _ in range(len(CORPUS) // 2):
            harmless(one)
            await one.keys("down", "down", "right")
        await one.keys("M")
        await one.until(lambda: one.app.screen.query_one(LogPane).source == "all")
        harmless(one)
        await one.keys("home")
        for _ in range(6):
            harmless(one)
            await one.keys("pagedown")
        assert time.monotonic() - began < 60
        assert one.app.is_running


async def test_the_corpus_as_events_and_alerts() -> None:
    """On the fleet screen, in the list of events, and through its filter."""
    async with driven((120, 40)) as one:
        for number, line in enumerate(CORPUS.values()):
            text = line.decode("utf-8", "replace")[:20_000]
            event = Event(10_000 + number, time.time(), text[:30], "warning", text, 3, text[:40])
            one.story.on_message(Happened(event))
        await one.sees("the end of the corpus")
        harmless(one)
        await one.keys("e")
        await one.sees("the end of the corpus")
        await one.keys("home")
        for _ in range(4):
            harmless(one)
            await one.keys("pagedown")
        await one.keys("slash")
        await one.write("quit")
        await one.sees("[@click=app.quit]quit[/]")
        harmless(one)
        assert one.app.is_running
