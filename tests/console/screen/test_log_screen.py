"""The logs' screen over whole files, against the agent's own reader of files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from console.batchline import compact
from console.screens.ask import AskLine
from console.screens.logs import LogsScreen
from console.widgets.file_pane import FilePane
from console.widgets.log_pane import LogPane
from remote.agent import logs
from remote.protocol import (
    Alert,
    Event,
    Happened,
    HostState,
    LogPart,
    ReadLog,
    Request,
    Result,
    Snapshot,
)
from tests.console.screen.driver import Driven, driven
from tests.console.screen.test_logfile import BASE, File, at, write


class Gate(File):
    """A reader that answers when it is let."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, request: Request) -> Result | None:
        await self.open.wait()
        return await super().__call__(request)


@asynccontextmanager
async def reading(path: Path, east_s: int | None = None) -> AsyncIterator[tuple[Driven, Gate]]:
    """A console with the one pane of GPU 0, whose log is this file."""
    async with driven(elapsed=20) as one:
        gate = Gate(path)
        plain, shown = one.story.call, one.story.snapshot

        async def call(request: Request, timeout: float = 30) -> Result:
            if isinstance(request, ReadLog):
                found = await gate(request)
                assert found is not None
                return found
            return await plain(request, timeout)

        async def silent(_: object) -> None:
            pass

        def snapshot(full: bool = True) -> Snapshot:
            return replace(shown(full), host=HostState(clock_east_s=east_s))

        one.story.call = call  # type: ignore[method-assign]
        one.story.subscribe = silent  # type: ignore[method-assign, assignment]
        one.story.snapshot = snapshot  # type: ignore[method-assign]
        one.story.tell()
        await one.keys("0", "l")
        await one.until(lambda: len(list(one.app.screen.query(LogPane))) == 1)
        tail = logs.tail("gpu0", path, 200)
        one.story.on_message(LogPart("gpu0", 7, tail.offset, tail.next, tail.lines, 0, tail.size))
        await one.until(lambda: pane_of(one).count)
        yield one, gate


def pane_of(one: Driven) -> FilePane:
    """The pane."""
    return one.app.screen.query_one(FilePane)


async def to(one: Driven, when: str) -> None:
    """Type a time."""
    await one.keys("T")
    await one.until(lambda: isinstance(one.app.screen, AskLine))
    await one.write(when)
    await one.keys("enter")


def stamped(second: int, east_s: int = 0) -> str:
    """The stamp of a line, on a clock so far east of UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BASE + second + east_s))


async def test_a_time_is_gone_to_within_a_filter(tmp_path: Path) -> None:
    """Only what matches, from then on, and on from there; also where that is far away."""
    path = tmp_path / "a.log"
    write(path, 30_000)
    async with reading(path) as (one, _):
        await one.filter("line [0-9]+77 ")
        await to(one, stamped(2_500))
        pane = pane_of(one)
        await one.until(lambda: "line 2577 " in "".join(pane.shown()[:1]))
        assert all("77 Decode" in line for line in pane.shown())
        await one.keys("escape")
        await one.filter("!ERROR boom|Decode")
        await one.until(lambda: pane.following and not pane.count)
        await one.keys("ctrl+home")
        await one.until(lambda: not pane.fetching and pane.past is not None)
        assert not pane.count
        looked = pane.past.next if pane.past else 0
        await one.keys("pagedown")  # it is looked for further on
        await one.until(lambda: pane.past is not None and pane.past.next > looked)


async def test_a_page_that_comes_late_undoes_nothing(tmp_path: Path) -> None:
    """End, escape and another filter are the last word."""
    path = tmp_path / "a.log"
    write(path, 5_000)
    async with reading(path) as (one, gate):
        pane = pane_of(one)
        for keys, late in (
            (("home", "pageup"), ("end",)),
            (("ctrl+home",), ("escape",)),
            (("ctrl+home",), ("end",)),
        ):
            gate.open.clear()
            await one.keys(*keys)
            await one.until(lambda: pane.fetching)
            await one.keys(*late)
            gate.open.set()
            await one.pilot.pause(0.3)
            assert pane.following, late
            assert pane.past is None
            assert not pane.fetching
            assert "line 4999 " in pane.shown()[-1]
        gate.open.clear()
        await to(one, stamped(100))
        await one.until(lambda: pane.fetching)
        await one.filter("line 48")
        gate.open.set()
        await one.pilot.pause(0.3)
        assert pane.following
        assert all("line 48" in line for line in pane.shown())


async def test_two_clocks_are_one(tmp_path: Path) -> None:
    """Lines are shown in ours, a time is typed in ours; the prompt says that theirs is another."""
    ours = time.localtime(BASE).tm_gmtoff
    theirs = ours + 7_200
    path = tmp_path / "a.log"
    with path.open("w") as out:
        for n in range(9_000):
            out.write(f"[{stamped(n, theirs)}] line {n} Decode batch\n")
    async with reading(path, theirs) as (one, _):
        pane = pane_of(one)
        last = stamped(8_999, ours)[11:]
        await one.until(lambda: f"{last} line 8999 " in pane.shown()[-1])
        await one.keys("T")
        await one.sees("the logs are written in UTC")
        await one.keys("escape")
        await to(one, stamped(2_500, ours))
        await one.until(lambda: "line 2500 " in "".join(pane.shown()[:1]))
        await one.keys("V")
        await one.until(lambda: pane.shown()[0].startswith(f"[{stamped(2_500, theirs)}] line"))


async def test_errors_are_jumped_to_over_the_whole_file(tmp_path: Path) -> None:
    """From the newest line back, then both ways; where there is no more that is told."""
    path = tmp_path / "a.log"
    write(path, 5_000)
    async with reading(path) as (one, _):
        pane = pane_of(one)

        def at(number: int) -> bool:
            chosen = [line for place, line in pane._lines if place == pane.chosen]
            return not pane.fetching and any(f"line {number} ERROR" in line for line in chosen)

        for key, number in (
            ("E", 4_007),
            ("left_square_bracket", 3_007),
            ("left_square_bracket", 2_007),
            ("right_square_bracket", 3_007),
            ("E", 4_007),
        ):
            await one.keys(key)
            await one.until(partial(at, number))
            assert any(f"line {number} ERROR" in line for line in pane.shown())
        await one.keys("E")
        await one.sees("gpu0: no error from here to the end of the log")


async def test_what_is_sought_is_marked_and_nothing_is_hidden(tmp_path: Path) -> None:
    """In the whole file; what a filter matched is marked in another way."""
    path = tmp_path / "a.log"
    write(path, 5_000)
    async with reading(path) as (one, _):
        pane = pane_of(one)
        await one.keys("F")
        await one.until(lambda: isinstance(one.app.screen, AskLine))
        await one.write("line 12(3|4) ")
        await one.keys("enter")
        await one.until(lambda: any("line 124 " in line for line in pane.shown()))
        assert any("line 122 " in line for line in pane.shown())

        def looks(text: str, attribute: str) -> bool:
            strips = one.app.screen._compositor.render_strips()
            return any(
                text in segment.text and segment.style and getattr(segment.style, attribute)
                for strip in strips
                for segment in strip
            )

        await one.until(lambda: looks("line 124 ", "reverse"))
        assert not looks("line 122 ", "reverse")
        await one.filter("line 49")
        await one.until(lambda: looks("line 49", "underline"))
        await one.keys("F")
        await one.write("(")
        await one.keys("enter")
        await one.sees("not a regular expression")


async def test_an_endless_pattern_that_is_sought_freezes_nothing(tmp_path: Path) -> None:
    """Neither the look for it nor its marks."""
    path = tmp_path / "a.log"
    path.write_text(f"[{stamped(0)}] {'a' * 1_900}!\n" * 60)
    async with reading(path) as (one, _):
        began = time.monotonic()
        await one.keys("F")
        await one.until(lambda: isinstance(one.app.screen, AskLine))
        await one.write("(a|aa)+$")
        await one.keys("enter")
        await one.sees("no repetition inside a repetition")
        await one.keys("escape", "e")
        await one.until(lambda: one.app.current_mode == "events")
        assert time.monotonic() - began < 60


async def test_a_log_without_times_is_told_and_kept_in_order(tmp_path: Path) -> None:
    """That of an old run: no time to go to; merged, its new lines stand where they came."""
    path = tmp_path / "a.log"
    path.write_text("Port 30000: OK\n" * 900)
    async with reading(path) as (one, _):
        await to(one, "17:05")
        await one.sees("gpu0: no times in this log")
        await one.keys("S")
        await one.write("from 17:05 to 17:06")
        await one.keys("enter")
        await one.sees("nothing was saved")
        await one.keys("M")
        await one.until(lambda: not list(one.app.screen.query(FilePane)))
        pane = one.app.screen.query_one(LogPane)
        await one.until(lambda: pane.count)
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 60))
        one.story.on_message(LogPart("gpu1", 1, 0, 0, [f"[{now}] a minute ago"]))
        await one.until(lambda: "a minute ago" in pane.shown()[-1])
        one.story.on_message(LogPart("gpu0", 7, 0, 0, ["without a time"]))
        await one.until(lambda: "without a time" in pane.shown()[-1])
        await one.filter("a minute|without")  # all of them anew
        await one.until(lambda: pane.count == 2)
        assert "without a time" in pane.shown()[-1]


async def test_merged_lines_of_one_second_take_turns(tmp_path: Path) -> None:
    """As they come and anew; a line without a time stays behind the one before it."""
    path = tmp_path / "a.log"
    path.write_text("".join(f"[{stamped(n // 5)}] zero {n}\n" for n in range(20)))
    async with reading(path) as (one, _):
        when = stamped(3)
        one.story.on_message(LogPart("gpu1", 1, 0, 0, [f"[{when}] one {n}" for n in range(2)]))
        await one.keys("M")
        await one.until(lambda: not list(one.app.screen.query(FilePane)))
        pane = one.app.screen.query_one(LogPane)

        def told() -> list[str]:
            lines = [line.partition("│")[2] for line in pane.held()]
            lines = [line.partition("] ")[2] or line for line in lines]
            return [line for line in lines if line.split()[0] in ("zero", "one", "File")]

        await one.until(lambda: "one 1" in told())
        first = ["zero 15", "one 0", "zero 16", "one 1", "zero 17", "zero 18", "zero 19"]
        assert told()[15:] == first
        rows = [f"[{when}] Traceback", "  File it", f"[{when}] one 3"]
        one.story.on_message(LogPart("gpu1", 1, 0, 0, rows))
        one.story.on_message(LogPart("gpu0", 7, 0, 0, [f"[{when}] zero 20", f"[{when}] zero 21"]))
        await one.until(lambda: "zero 21" in told())
        assert told()[15:] == [*first, "  File it", "one 3", "zero 20", "zero 21"]
        await one.filter("zero|one|File")  # all of them anew
        turns = [*first[:5], "  File it", "zero 18", "one 3", "zero 19", "zero 20", "zero 21"]
        await one.until(lambda: told()[15:] == turns)


async def test_an_event_leads_to_the_logs_around_it(tmp_path: Path) -> None:
    """Of its GPU, at its time, by the clock of that machine."""
    ours = time.localtime(BASE).tm_gmtoff
    path = tmp_path / "a.log"
    with path.open("w") as out:
        for n in range(9_000):
            out.write(f"[{stamped(n, ours - 3_600)}] line {n}\n")
    async with reading(path, ours - 3_600) as (one, _):
        await one.keys("escape", "e")
        newest = one.app.state.events[-1].id
        for number, gpu in enumerate((0, 1), 1):
            event = Event(newest + number, BASE + 4_000, "x.y", "error", "here it is", gpu)
            one.story.on_message(Happened(event))
        await one.sees("here it is")
        await one.keys("up", "up")
        await one.sees("held")
        await one.keys("enter")
        await one.until(lambda: one.app.current_mode == "logs" and one.app.focus_gpu == 0)
        await one.until(lambda: "line 3990" in "".join(pane_of(one).shown()[:1]))


async def test_what_is_wrong_leads_to_that_servers_logs_at_that_time(tmp_path: Path) -> None:
    """By enter on its line of the panel, as an event does."""
    path = tmp_path / "a.log"
    with path.open("w") as out:
        for n in range(9_000):
            out.write(f"[{stamped(n)}] line {n}\n")
    async with reading(path) as (one, _):
        story = one.story
        await one.keys("escape", "f")
        story.servers[0].state, story.servers[0].cause = "failed", "CUDA out of memory"
        story.alerts.append(Alert("server.failed.0", "GPU 0 failed", BASE + 4_000, "error"))
        story.alerts.append(Alert("disk", "disk: 3.0 GB free in the workspace", BASE + 5_000))
        story.tell()
        await one.keys("exclamation_mark")
        await one.sees("⏎ shows its logs")
        await one.keys("down", "down", "up", "enter")
        await one.until(lambda: one.app.current_mode == "logs" and one.app.focus_gpu == 0)
        await one.until(lambda: "line 3990" in "".join(pane_of(one).shown()[:1]), 20)


def test_batch_lines_in_a_few_words() -> None:
    """Of both kinds, with what they tell; other lines are none."""
    assert compact(
        "Decode batch, #running-req: 37, #full token: 96200, full token usage: 0.20, mamba num: "
        "42, mamba usage: 0.61, cuda graph: True, gen throughput (token/s): 678.12, #queue-req: 3"
    ) == "D 37 req · kv 20% · mamba 61% · 678 tok/s · 3 wait"  # fmt: skip
    assert compact(
        "Prefill batch [12], #new-seq: 1, #new-token: 931, #cached-token: 64, token usage: 0.20, "
        "#running-req: 36, #queue-req: 0, "
    ) == "P 1 new · 931 tok · 64 cached · 36 req · kv 20%"  # fmt: skip
    assert compact("Decode batch, nothing known") is None
    assert compact("a Decode batch, #running-req: 1") is None


async def test_noise_that_is_hidden_is_counted(tmp_path: Path) -> None:
    """In the title, and it comes back by a key."""
    path = tmp_path / "a.log"
    write(path, 300)
    line = 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'
    with path.open("a") as out:
        out.write(f"[{stamped(300)}] {line}\n" * 12)
    async with reading(path) as (one, _):
        await one.sees("12 noise hidden")
        await one.keys("o", "o")
        await one.until(lambda: "noise hidden" not in one.screen())
        assert "/health" in pane_of(one).shown()[-1]


async def test_lines_that_a_flood_left_out_are_told_until_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the title, until one follows on, looks at them (they are in the file) or a while goes
    by."""
    path = tmp_path / "a.log"
    write(path, 500)
    async with reading(path) as (one, _):
        pane = pane_of(one)

        def flood(begin: int) -> None:
            with path.open("a") as out:
                out.writelines(f"[{stamped(n)}] line {n}\n" for n in range(begin, begin + 2_000))
            tail = logs.tail("gpu0", path, 300)
            part = LogPart("gpu0", 7, tail.offset, tail.next, tail.lines, 1_700, tail.size)
            one.story.on_message(part)

        flood(500)
        await one.sees("1.7k skipped at ")
        await one.keys("end")
        await one.until(lambda: "1.7k skipped at " not in one.screen())
        flood(2_500)
        await one.sees("1.7k skipped at ")
        await one.keys("pageup", "pageup")
        await one.until(lambda: pane.past is not None and not pane.fetching)
        await one.until(lambda: "skipped at" not in one.screen())
        assert not any("skipped" in line for line in pane.held())
        numbers = [int(line.split()[3]) for line in pane.held()]
        assert numbers == list(range(numbers[0], 4_500)), "what was left out is there"
        assert int(pane.shown()[-1].split()[-1]) > 4_300, "a page up from the newest line"
        await one.keys("end")
        monkeypatch.setattr("console.widgets.file_pane.SKIPPED_S", 2.0)
        flood(4_500)
        await one.sees("1.7k skipped at ")
        await one.until(lambda: "1.7k skipped at " not in one.screen())


@pytest.mark.parametrize("keys", ["vv", "lvv", "vMv", "MvM", "5v5v", "nnv"])
async def test_panes_that_change_at_once_leave_the_keys_alive(keys: str) -> None:
    """The one that has the keys is one that is there, however fast the panes came and went."""
    async with driven((120, 40)) as one:
        await one.keys("l")
        for _ in range(6):
            one.burst(*keys)

        def kept() -> bool:
            return one.app.focused in list(one.app.screen.query(LogPane))

        await one.until(kept)
        await one.pilot.pause(0.6)  # the last panes may still be coming
        await one.until(kept)
        assert isinstance(one.app.screen, LogsScreen)
        await one.keys("f")
        await one.until(lambda: one.app.current_mode == "fleet")


async def test_a_pane_scrolls_back_through_the_file_and_returns(tmp_path: Path) -> None:
    """Page up above what is held fetches; the lines one looks at stay; end follows again."""
    path = tmp_path / "a.log"
    write(path, 5_000)
    async with reading(path) as (one, _):
        pane = pane_of(one)
        await one.until(lambda: "line 4999 " in "".join(pane.shown()[-1:]))
        for _ in range(40):
            await one.keys("home", "pageup")
            await one.until(lambda: not pane.fetching)
            if "line 0 " in pane.shown()[0]:
                break
        assert "line 0 " in pane.shown()[0]
        await one.keys("end")
        await one.until(lambda: pane.past is None)
        await one.keys("ctrl+home")
        await one.sees("from 0%")
        await one.keys("T")
        await one.write(at(2_500))
        await one.keys("enter")
        await one.until(lambda: "line 2500 " in "".join(pane.shown()[:1]))
        await one.keys("slash")
        await one.until(lambda: one.app.focused is not None and one.app.focused.id == "filter")
        await one.write("error boom")
        await one.until(lambda: pane.past is None)
        await one.keys("enter", "pageup", "pageup")
        await one.until(lambda: any("line 7 ERROR" in line for line in pane.shown()))
        await one.keys("escape")
        await one.until(lambda: pane.following and "line 4999 " in "".join(pane.shown()[-1:]))
