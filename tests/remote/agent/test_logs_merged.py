"""Several log files as one, by time, a page at a time both ways."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from remote.agent import logs, merged
from remote.paths import Workspace
from remote.protocol import Failure, MergedPart, ReadMerged
from tests.remote.agent.conftest import Link

BASE = 1_796_140_000
SOURCES = ["gpu0", "gpu1", "gpu2", "run"]


def stamp(second: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BASE + second))


def write(folder: Path, seed: int, count: int) -> tuple[dict[str, Path], list[str]]:
    """Logs with banners and tracebacks, and all their lines in the order they are to come."""
    chance = random.Random(seed)
    paths, keyed = {}, []
    for place, source in enumerate(SOURCES):
        second = chance.randrange(50)
        lines: list[tuple[int | None, str]] = []
        for n in range(count):
            second += chance.choice([0, 0, 0, 1, 2])
            text = f"{source} {n} {'x' * chance.choice([3, 40, 900])}"
            if n < 3 or chance.random() < 0.2:
                lines.append((None, f"  File {text}"))
            else:
                sign = f"[{stamp(second)}]" if source != "run" else f"{stamp(second)},123 I"
                lines.append((second, f"{sign} {text}"))
        at, nth = next(second for second, _ in lines if second is not None), 0
        for n, (own, line) in enumerate(lines):
            if own is not None:
                nth = nth + 1 if own == at else 1
                at = own
            keyed.append((at, nth, place, n, line))
        paths[source] = folder / source
        paths[source].write_text("".join(f"{line}\n" for _, line in lines))
    keyed.sort(key=lambda one: one[:4])
    return paths, [line for *_, line in keyed]


def ask(paths: dict[str, Path], **options: object) -> MergedPart:
    return merged.read(paths, ReadMerged(sources=list(paths), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_pages_both_ways_are_the_whole_in_order(tmp_path: Path, seed: int) -> None:
    paths, whole = write(tmp_path, seed, 700)
    got: list[str] = []
    at = dict.fromkeys(paths, 0)
    while (part := ask(paths, at=at, lines=97)).lines:
        assert part.begin == at
        got += part.lines
        at = part.next
    assert got == whole
    assert at == part.sizes
    got, at = [], part.sizes
    while (part := ask(paths, at=at, lines=-61)).lines:
        assert part.next == at
        got = part.lines + got
        at = part.begin
    assert got == whole
    assert set(at.values()) == {0}
    assert ask(paths, lines=-5).lines == whole[-5:], "no place: the end"


@pytest.mark.parametrize("grep", ["gpu[01] .*xxxxx", "^(?!.*gpu)", "nothing at all"])
def test_a_search_is_paged_the_same_way(tmp_path: Path, grep: str) -> None:
    paths, whole = write(tmp_path, 5, 700)
    wanted = [line for line in whole if re.search(grep, line)]
    for step, begin in ((50, 0), (-50, None)):
        got: list[str] = []
        at = None if begin is None else dict.fromkeys(paths, begin)
        part = ask(paths, at=at, lines=step, grep=grep)
        while part.lines:
            if len(part.lines) == abs(step):  # else it went on to the start, or to the end
                assert ask(paths, at=part.begin, lines=1).lines == part.lines[:1] or step > 0
                assert ask(paths, at=part.next, lines=-1).lines == part.lines[-1:] or step < 0
            got = got + part.lines if step > 0 else part.lines + got
            part = ask(paths, at=part.next if step > 0 else part.begin, lines=step, grep=grep)
        assert got == wanted
        ends = part.next if step > 0 else part.begin
        assert ends == (part.sizes if step > 0 else dict.fromkeys(paths, 0))


def test_a_time_is_gone_to_in_all_files(tmp_path: Path) -> None:
    paths, whole = write(tmp_path, 7, 3_000)
    assert sum(path.stat().st_size for path in paths.values()) > 20 * merged._CHUNK
    for second in (0, 60, 61, 500, 1_234, 1_700):
        part = ask(paths, when=stamp(second), lines=30)
        at = whole.index(part.lines[0])
        assert part.lines == whole[at : at + 30]
        before = ask(paths, at=part.begin, lines=-1_000).lines
        assert before == whole[max(0, at - 1_000) : at]
        times = [line[1:20] for line in before if line.startswith("[")]
        assert not times or max(times) < stamp(second)
        assert stamp(second) <= part.lines[0].lstrip("[")[:19] or "File" in part.lines[0]
    assert ask(paths, when=stamp(90_000), lines=30).lines == []
    assert ask(paths, when=stamp(-9_000), lines=3).lines == whole[:3]


def test_logs_without_times_missing_ones_and_endless_lines(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("gpu0", "run", "agent")}
    paths["gpu0"].write_text("".join(f"[{stamp(n)}] line {n}\n" for n in range(50)))
    paths["run"].write_text("no time\n" * 30_000)
    ended = time.mktime(time.gmtime(BASE + 50))  # the clock of the logs is the machine's
    os.utime(paths["run"], (ended, ended))
    part = ask(paths, lines=-1_700)
    assert part.sources == ["gpu0", "run"]
    timed = [n for n, line in enumerate(part.lines) if line != "no time"]
    assert [part.lines[n] for n in timed] == [f"[{stamp(n)}] line {n}" for n in (47, 48, 49)]
    assert {timed[1] - timed[0], timed[2] - timed[1]} <= {600, 601, 602}, "spread evenly"
    assert ask(paths, at=part.begin, lines=1_700).lines == part.lines
    paths["gpu0"].write_text("[2026-99-99 99:99:99] no such time\n")
    assert len(ask(paths, lines=-9).lines) == 9
    paths["gpu0"].write_text("".join(f"[{stamp(n)}] line {n}\n" for n in range(50)))
    paths["agent"].write_text(f"[{stamp(20)}] {'y' * 700_000}\nafter it\nunfinished")
    two = {name: paths[name] for name in ("gpu0", "agent")}
    part = ask(two, when=stamp(20), lines=3)
    assert [line[22:29] for line in part.lines] == ["line 20", "yyyyyyy", ""]
    assert all(len(line) < logs.LINE + 100 for line in part.lines)
    assert ask(two, at=part.next, lines=-3).lines == part.lines
    again = ask(paths, lines=-40_000)
    assert len(again.lines) == 30_052
    assert "unfinished" not in again.lines[-1]


def test_what_one_request_reads_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing ends where the next goes on, at about one time in all files."""
    monkeypatch.setattr(logs, "SCAN", 3 << 20)
    paths = {name: tmp_path / name for name in ("gpu0", "gpu1")}
    for path, every in zip(paths.values(), (1, 9), strict=True):
        with path.open("w") as out:
            for n in range(0, 90_000, every):
                out.write(f"[{stamp(n)}] {'line' * 20} {n}\n")
        with path.open("r+") as out:
            out.write(f"[{stamp(0)}] HERE")
    asked = 0
    at: dict[str, int] | None = None
    found: list[str] = []
    while not found:
        part = ask(paths, at=at, lines=-5, grep="HERE")
        assert part.begin != at
        asked, at, found = asked + 1, part.begin, part.lines
        if not found:
            times = [ask({s: paths[s]}, at=at, lines=1).lines[0][1:20] for s in at if at[s]]
            hours = [time.mktime(time.strptime(when, "%Y-%m-%d %H:%M:%S")) for when in times]
            assert max(hours) - min(hours) < 26_000, "a chunk of the sparse one"
    assert asked > 2
    assert len(found) == 2


def test_lines_of_one_second_take_turns(tmp_path: Path) -> None:
    """The first of each log, then the second of each; a traceback stays whole, wherever a page
    begins."""
    paths = {name: tmp_path / name for name in ("gpu0", "gpu1", "run")}
    for name, path in paths.items():
        rows = [f"[{stamp(7)}] {name} {n}" for n in range(400)]
        if name == "gpu1":
            rows[150] += "\nTraceback\nRuntimeError: it"
        path.write_text("\n".join([*rows, f"[{stamp(8)}] {name} last", ""]))
    whole = ask(paths, at=dict.fromkeys(paths, 0), lines=2_000).lines
    at = next(n for n, line in enumerate(whole) if line == "RuntimeError: it")
    assert [line[22:] for line in whole[at - 3 : at + 2]] == [
        "gpu0 150",
        "gpu1 150",
        "",
        "",
        "run 150",
    ]
    assert [line[22:] for line in whole[-6:-3]] == ["gpu0 399", "gpu1 399", "run 399"]
    for step in (7, 50):
        pages: list[str] = []
        place = ask(paths, lines=-1).next
        while (part := ask(paths, at=place, lines=-step)).lines:
            assert ask(paths, at=part.begin, lines=len(part.lines)).lines == part.lines
            pages, place = part.lines + pages, part.begin
        assert pages == whole


async def test_the_agent_merges_its_logs(socket: Path, workspace: Workspace) -> None:
    """On request; a search in a process of its own; what it does not know is said."""
    with workspace.run_log.open("w") as out:
        out.writelines(f"{stamp(-n)},000 I line {n}\n" for n in range(3_000, 0, -1))
    link = await Link.open(socket)
    part = await link.ask(ReadMerged(sources=["run", "agent"], when=stamp(-2_000), lines=20))
    assert isinstance(part, MergedPart)
    assert [line.split()[-1] for line in part.lines] == [str(n) for n in range(2_000, 1_980, -1)]
    assert part.sources[part.whose[0]] == "run"
    asked = ReadMerged(sources=["run", "agent"], at=part.begin, lines=-4, grep="line 2[0-9]*0$")
    part = await link.ask(asked)
    assert isinstance(part, MergedPart)
    assert [line.split()[-1] for line in part.lines] == ["2040", "2030", "2020", "2010"]
    for wrong, why in (
        (ReadMerged(sources=["run", "no"]), "no log called 'no'"),
        (ReadMerged(sources=["run"], grep="("), "grep '('"),
    ):
        refused = await link.ask(wrong)
        assert isinstance(refused, Failure)
        assert why in refused.text
