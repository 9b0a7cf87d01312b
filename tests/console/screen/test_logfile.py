"""Scrolling back through a whole file, against the agent's own reader of files."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console import clipboard
from console.clocks import moment_of
from console.logfile import (
    HELD,
    FilePast,
    LogError,
    OutsideError,
    between,
    outside,
    save,
    seek,
    stamp,
)
from console.logstyle import ERROR, log_style
from console.widgets.log_pane import LogPane
from remote.agent import logs
from remote.protocol import ReadLog, Request, Result
from tests.console.screen.driver import driven

BASE = 1_796_140_000


def at(second: int) -> str:
    """The stamp of a line."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BASE + second))


def write(path: Path, count: int) -> None:
    """One line a second, every thousandth an error."""
    with path.open("w") as out:
        for n in range(count):
            word = "ERROR boom" if n % 1_000 == 7 else "Decode batch, #running-req: 72"
            out.write(f"[{at(n)}] line {n} {word}\n")


class File:
    """Asks the agent's reader, as the agent does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = 0

    async def __call__(self, request: Request) -> Result | None:
        assert isinstance(request, ReadLog)
        self.asked += 1
        if request.offset is None:
            return logs.tail(request.source, self.path, request.lines, request.grep)
        return logs.read(request.source, self.path, request.offset, request.lines, request.grep)


async def test_paging_back_and_forth_keeps_numbers_and_bounds(tmp_path: Path) -> None:
    """All the way to the start, held lines bounded, and back to the end."""
    path = tmp_path / "a.log"
    write(path, 30_000)
    ask = File(path)
    past = FilePast("gpu0", path.stat().st_size)
    while await past.back(ask):
        assert past.count <= HELD + 500
    assert past.first == 0
    numbered = dict(past.lines())
    lowest = min(numbered)
    assert "line 0 " in numbered[lowest]
    for number, line in numbered.items():
        assert f"line {number - lowest} " in line
    while await past.on(ask):
        assert past.count <= HELD + 500
    assert past.next == past.size
    assert "line 29999 " in past.lines()[-1][1]


async def test_a_page_that_two_fetch_at_once_is_held_once(tmp_path: Path) -> None:
    """One key is given up for the next, and both answers come."""
    path = tmp_path / "log"
    write(path, 3_000)
    ask = File(path)

    async def slow(request: Request) -> Result | None:
        await asyncio.sleep(0.02)
        return await ask(request)

    past = FilePast("gpu0", path.stat().st_size // 2)
    await asyncio.gather(past.back(slow), past.back(slow))
    await asyncio.gather(past.on(slow), past.on(slow))
    lines = [line for _, line in past.lines()]
    assert len(lines) == len(set(lines)) > 900


async def test_a_search_is_done_on_the_far_side(tmp_path: Path) -> None:
    """Only what matches travels."""
    path = tmp_path / "a.log"
    write(path, 20_000)
    ask = File(path)
    past = FilePast("gpu0", path.stat().st_size, "ERROR")
    while await past.back(ask) or past.first > 0:
        pass
    assert [line.split()[3] for _, line in past.lines()] == [
        str(n) for n in range(7, 20_000, 1_000)
    ]
    assert ask.asked < 6


@pytest.mark.parametrize("second", [0, 1, 4_321, 19_999, 50_000])
async def test_a_time_is_found_by_halving(tmp_path: Path, second: int) -> None:
    """In a few reads, whatever the size."""
    path = tmp_path / "a.log"
    write(path, 20_000)
    ask = File(path)
    offset = await seek(ask, "gpu0", at(second))
    assert ask.asked < 20
    part = logs.read("gpu0", path, offset, 200)
    if second < 20_000:
        assert any(f"line {second} " in line for line in part.lines)


async def test_a_log_without_times_says_so(tmp_path: Path) -> None:
    """That of an old run; and one that cannot be read says that."""
    path = tmp_path / "a.log"
    path.write_text("Port 30000: OK\n" * 3_000)
    with pytest.raises(LogError, match="run: no times in this log"):
        await seek(File(path), "run", at(0))

    async def nobody(_: Request) -> Result | None:
        return None

    with pytest.raises(LogError, match="could not be read"):
        await seek(nobody, "run", at(0))


@pytest.mark.parametrize("second", [600, 1_400, 2_399])
async def test_a_traceback_in_the_middle_leads_nobody_astray(tmp_path: Path, second: int) -> None:
    """Hundreds of lines without a time exactly where the halving looks first."""
    path = tmp_path / "a.log"
    write(path, 2_400)
    lines = path.read_text().splitlines(keepends=True)
    lines[1_200:1_200] = ["  File x.py, line 1, in y\n"] * 700
    path.write_text("".join(lines))
    offset = await seek(File(path), "gpu0", at(second))
    part = logs.read("gpu0", path, offset, 900)
    assert any(f"line {second} " in line for line in part.lines)


async def test_errors_are_found_over_the_whole_file(tmp_path: Path) -> None:
    """One way and the other, and only while somebody wants to know."""
    path = tmp_path / "a.log"
    write(path, 20_000)
    ask = File(path)
    size = path.stat().st_size

    async def line(offset: int | None) -> str:
        assert offset is not None
        return logs.read("gpu0", path, offset, 1).lines[0]

    async def look(offset: int, *, back: bool, gone: bool = False) -> int | None:
        return await FilePast("gpu0", offset).look(ask, ERROR, lambda: gone, back=back)

    last = await look(size, back=True)
    assert "line 19007 ERROR" in await line(last)
    earlier = await look(last or 0, back=True)
    assert "line 18007 ERROR" in await line(earlier)
    behind = logs.read("gpu0", path, earlier or 0, 1).next
    assert await look(behind, back=False) == last
    behind = logs.read("gpu0", path, last or 0, 1).next
    assert await look(behind, back=False) is None
    assert await look(size, back=True, gone=True) is None


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-29 17:05:30] Scheduler hit an exception: Traceback (most recent call last)",
        "[2026-11-29 17:05:30] torch.OutOfMemoryError: CUDA out of memory",
        '[2026-11-29 17:05:30] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 503 Unavailable',
        '[2026-11-29 17:05:30] INFO:     127.0.0.1:1 - "GET /error HTTP/1.1" 200 OK',
        "[2026-11-29 17:05:30] Decode batch, #running-req: 3, error: 1",
        "[2026-11-29 17:05:30 TP0] Prefill batch [4], #new-seq: 3, failed: 1",
        "2026-11-29 17:05:30,123 E agent: server.failed: GPU 3",
        "x " * 300 + "error",
        "all is well",
    ],
)
def test_the_other_side_takes_for_errors_what_is_painted_as_such(line: str) -> None:
    """Two ways to say the same."""
    assert (re.search(ERROR.encode(), line.encode()) is not None) == (log_style(line) == "bad")


def test_times_as_typed() -> None:
    """With and without a day and seconds; without one, the last time it was that late."""
    newest = "2026-11-30 00:10:00"
    assert moment_of("00:05", newest) == "2026-11-30 00:05:00"
    assert moment_of("23:50", newest) == "2026-11-29 23:50:00"
    assert moment_of(" 7:05:09 ", newest) == "2026-11-29 07:05:09"
    assert moment_of("2026-12-28 23:59", newest) == "2026-12-28 23:59:00"
    assert moment_of("2026-11-28T23:59", newest) == "2026-11-28 23:59:00"
    assert moment_of("2026-02-30 10:00", newest) is None
    assert moment_of("10:00:70", newest) is None
    assert moment_of("25:00", newest) is None
    assert moment_of("soon", newest) is None
    assert stamp(["nothing", "2026-11-29 17:05:30,123 I agent"]) == "2026-11-29 17:05:30"


def test_the_clipboard_sequence_is_bounded_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Base64 holds no control character; too long is said."""
    assert clipboard.osc52("a\x1b\x07b") == "\x1b]52;c;YRsHYg==\a"
    assert clipboard.osc52("x" * 100_000) is None
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    assert clipboard.native() is None
    assert not clipboard.by_tool("x")


def saved(folder: Path) -> list[str]:
    """What was saved there."""
    return [path.read_text() for path in folder.glob("stoker-gpu0-*.log")]


async def test_lines_are_saved_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, not as they are painted."""
    monkeypatch.chdir(tmp_path)
    async with driven(elapsed=100) as one:
        await one.keys("0", "l")
        await one.until(lambda: any(p.count for p in one.app.screen.query(LogPane)))
        await one.keys("S", "enter")
        await one.until(lambda: saved(tmp_path))
        assert "Decode batch" in saved(tmp_path)[0]


async def test_a_span_of_a_whole_file_is_read_page_by_page(tmp_path: Path) -> None:
    """From the first line of the one second to the last of the other; no more of it is fetched."""
    path = tmp_path / "a.log"
    write(path, 40_000)
    ask = File(path)
    pages = [page async for page in between(ask, "gpu0", at(10_000), at(22_000))]
    lines = [line for page in pages for line in page]
    assert len(lines) == 12_001
    assert "line 10000 " in lines[0]
    assert "line 22000 " in lines[-1]
    assert len(pages) > 2
    assert [p async for p in between(ask, "gpu0", at(50_000), at(60_000))] in ([], [[]])


async def test_a_span_that_breaks_off_is_told(tmp_path: Path) -> None:
    """What came is kept; where nothing came there is no file."""
    path = tmp_path / "a.log"
    write(path, 40_000)
    ask = File(path)

    async def dropping(request: Request) -> Result | None:
        return None if ask.asked > 18 else await ask(request)

    out = tmp_path / "out"
    count, problem = await save(out, between(dropping, "gpu0", at(10_000), at(30_000)))
    assert 0 < count < 20_000
    assert count == len(out.read_text().splitlines())
    assert "could not be read on" in problem

    async def none() -> AsyncIterator[list[str]]:
        yield []

    assert await save(tmp_path / "none", none()) == (0, "")
    assert not (tmp_path / "none").exists()


async def test_a_span_is_saved_by_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two times; nonsense is one line and saves nothing."""
    monkeypatch.chdir(tmp_path)
    whole = tmp_path / "whole"
    write(whole, 3_000)
    ask = File(whole)
    async with driven() as one:
        monkeypatch.setattr(one.app.front, "call", lambda request, _timeout=30: ask(request))
        await one.keys("0", "l")
        await one.until(lambda: any(p.count for p in one.app.screen.query(LogPane)))
        await one.keys("S")
        await one.write("soon")
        await one.keys("enter")
        await one.sees("type two times")
        await one.keys("S")
        times = [at(1_000).replace(" ", "T"), at(1_099).replace(" ", "T")]
        await one.write(f"from {times[1]} to {times[0]}")
        await one.keys("enter")
        await one.sees("is before")
        assert not saved(tmp_path)
        await one.keys("S")
        await one.write(f"from {times[0]} to {times[1]}")
        await one.keys("enter")
        await one.sees("100 lines saved")
        lines = saved(tmp_path)[0].splitlines()
        assert (len(lines), "line 1000 " in lines[0]) == (100, True)


def test_times_that_logs_do_not_have_are_told_in_few_words() -> None:
    """Each by its name where they are two; together where they are many."""
    begin = [OutsideError(f"gpu{n}", "begins", f"02:51:0{n}") for n in (9, 7, 8)]
    assert outside(begin[:2]) == ["gpu9's log begins 02:51:09", "gpu7's log begins 02:51:07"]
    end = OutsideError("agent", "ends", "03:00:00")
    assert outside([*begin, end]) == [
        "agent's log ends 03:00:00",
        "3 of these logs begin 02:51:07 or later",
    ]
    assert outside([OutsideError("", "ends", "03:00:00")]) == ["these logs end 03:00:00"]
