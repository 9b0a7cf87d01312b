"""The journal keeps, gives back, and never stops anything."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote import samples
from remote.journal import Journal
from remote.protocol import Epoch, Progress, RunState, ServerState, Swap


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    made = Journal(tmp_path / "journal.db", lambda text: None)
    await made.open()
    yield made
    await made.close()


async def reopened(journal: Journal) -> Journal:
    await journal.close()
    again = Journal(journal.path, lambda text: None)
    await again.open()
    return again


def swap(number: int, text: str = "") -> Swap:
    return Swap(
        id=number,
        strategy="all",
        gpus=[0],
        from_epoch=1,
        to_epoch=2,
        who="me",
        began=1.0,
        text=text,
    )


async def test_events_come_back_in_order_after_any_cursor(journal: Journal) -> None:
    made = []
    for i in range(3000):
        made.append(journal.emit("test", f"event {i}"))
        if i % 500 == 0:
            await journal.history(0, 1, 1)  # the file has what came before: a burst may outrun it
    assert [e.id for e in await journal.events(made[-3].id, 100)] == [e.id for e in made[-2:]]
    # Older than what is kept in memory: from the file, newest `limit` of them.
    found = await journal.events(0, 2500)
    assert [e.id for e in found] == [e.id for e in made[-2500:]]
    # And below a bound: in memory, in the file, in both.
    for end in (2_900, 500, 1_100):
        found = await journal.events(0, 200, before=made[end].id)
        assert [e.id for e in found] == [e.id for e in made[end - 200 : end]]
    assert await journal.events(0, 200, before=made[0].id) == []
    again = await reopened(journal)
    assert again.last_event == made[-1].id
    assert again.first_event == made[0].id == journal.first_event
    assert again.emit("test", "next").id == made[-1].id + 1
    assert [e.text for e in await again.events(made[-2].id, 10)] == ["event 2999", "next"]
    await again.close()


async def test_marks_of_a_long_time_are_few_and_the_gravest(journal: Journal) -> None:
    """Also those that the ring does not hold any more; of each GPU its own."""
    first = journal.emit("server.failed", "died", gpu=3, level="error")
    for i in range(6_000):
        journal.emit("server.ready", f"ready {i}", gpu=i % 2)
        journal.emit("sample", "of no mark")
    last = journal.emit("server.silent", "silent", gpu=0, level="warning")
    whole = await journal.marks(first.time - 1, last.time + 1, 10)
    assert whole[0] == first
    assert whole[-1] == last
    assert len(whole) <= 2 + 2 * 10
    assert {e.kind for e in whole} == {"server.failed", "server.ready", "server.silent"}
    assert await journal.marks(last.time + 1, last.time + 2, 10) == []
    assert await journal.marks(last.time + 2, last.time, 10) == []


async def test_ids_grow_even_when_the_file_was_lost(journal: Journal) -> None:
    last = journal.emit("test", "before").id
    await journal.close()
    assert journal.path is not None
    journal.path.unlink()
    again = Journal(journal.path, lambda text: None)
    await again.open()
    assert again.emit("test", "after").id >= last
    assert again.next_epoch([7]) == 8
    await again.close()


async def test_epochs_swaps_and_configured_flags_survive(journal: Journal) -> None:
    journal.put_epoch(Epoch(id=3, since=1.0, flags={"mem-fraction-static": 0.9}))
    await journal.save_swap(swap(5))
    await journal.save_swap(swap(5, "further"))
    journal.note("configured", {"a": 1})
    again = await reopened(journal)
    assert again.epochs[3].flags == {"mem-fraction-static": 0.9}
    assert again.swaps[5].text == "further"
    assert again.next_epoch() == 4
    assert again.next_swap() == 6
    assert again.noted("configured", dict[str, int]) == {"a": 1}
    assert again.noted("configured", list[int]) is None
    assert again.noted("nothing", int) is None
    await again.close()


async def test_a_swap_is_durable_when_save_returns(journal: Journal) -> None:
    await journal.save_swap(swap(1, "here"))
    assert journal.path is not None
    with sqlite3.connect(journal.path) as other:
        rows = other.execute("SELECT data FROM swaps").fetchall()
    assert "here" in rows[0][0]


async def test_a_slow_disk_holds_up_the_swap_and_nothing_else(journal: Journal) -> None:
    assert journal.path is not None
    other = sqlite3.connect(journal.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the journal's thread waits for this as for a disk
    saves = [asyncio.create_task(journal.save_swap(swap(1, text))) for text in ("old", "new")]
    began = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert time.monotonic() - began < 2, "the loop stood still"
    assert not any(save.done() for save in saves)
    other.execute("ROLLBACK")
    await asyncio.gather(*saves)
    ((data,),) = other.execute("SELECT data FROM swaps").fetchall()
    assert "new" in data
    other.close()


async def test_history_over_restart_and_levels(journal: Journal) -> None:
    now = int(time.time())
    journal._upkeep_at = time.monotonic() + 3600
    for ago in range(600, 0, -1):
        state = ServerState(gpu=0, gen_tok_s=float(ago % 10))
        journal.add(samples.sample(now - ago, [state], [], 1))
    journal._submit(journal._upkeep).result(timeout=20)
    history = await journal.history(now - 600, now, 60)
    values = history.series["gen_tok_s"][0]
    assert len(values) == 60
    # But for the last ones, which only hold the seconds that are not folded yet.
    assert all(v == pytest.approx(4.5) for v in values[:-2])
    again = await reopened(journal)
    later = await again.history(now - 600, now, 60)
    assert later.series["gen_tok_s"][0] == values
    hour = await again.history(now - 7200, now, 120)  # by the minute, then what is not folded yet
    known = [v for v in hour.series["gen_tok_s"][0] if v is not None]
    assert 9 <= len(known) <= 12
    assert all(v == pytest.approx(4.5, abs=0.5) for v in known[1:-2])
    await again.close()


async def test_a_damaged_file_is_put_aside_and_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database, " * 500)
    told: list[str] = []
    journal = Journal(path, told.append)
    await journal.open()
    event = journal.emit("test", "goes on")
    await journal.save_swap(swap(1))
    assert any("damaged" in text for text in told)
    again = await reopened(journal)
    assert again.last_event == event.id
    assert (tmp_path / "journal.db.damaged").exists()
    await again.close()


async def test_a_disk_that_fails_leaves_it_in_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    told: list[str] = []
    journal = Journal(blocked / "journal.db", told.append)
    await journal.open()
    made = journal.emit("test", "still there")
    await journal.save_swap(swap(1))
    await journal.save_swap(swap(1, "ended"))
    journal.put_epoch(Epoch(id=1, since=0.0, flags={}))
    journal.note("configured", {"a": 1})
    journal.add(samples.sample(time.time(), [ServerState(gpu=0, gen_tok_s=3.0)], [], 1))
    assert await journal.events(made.id - 1, 10) == [made]
    history = await journal.history(time.time() - 10, time.time() + 1, 1)
    assert history.series["gen_tok_s"] == [[3.0]]
    assert len(told) == 1
    assert "in memory" in told[0]
    # Mended: everything kept meanwhile is written.
    blocked.unlink()
    journal._retry_at = 0.0
    journal.emit("test", "again")
    again = await reopened(journal)
    assert [e.text for e in again.recent] == ["still there", "again"]
    assert 1 in again.epochs
    assert again.swaps[1].text == "ended"
    assert again.noted("configured", dict[str, int]) == {"a": 1}
    await again.close()


async def test_the_runs_numbers_are_kept_and_thinned_with_age(tmp_path: Path) -> None:
    """Every ten seconds of the last two hours, every minute before; what did not change once."""
    path = tmp_path / "journal.db"
    journal = Journal(path)
    await journal.open()
    end = int(time.time())
    begin = end - 3 * 3600
    for number, second in enumerate(range(begin, end, 5)):
        journal.add_run(RunState(alive=True, progress=Progress(completed=number)), second)
        if number % 200 == 0:
            await journal.history(begin, begin + 1, 1)  # what outruns the disk is dropped
    same = RunState(alive=False)
    for second in range(end, end + 60, 10):
        journal.add_run(same, second)
    db = journal._db
    assert db is not None
    await journal._in_thread(lambda: journal._upkeep(db))
    await journal.close()
    with sqlite3.connect(path) as read:
        times = [t for (t,) in read.execute("SELECT time FROM runs ORDER BY time")]
    old = [t for t in times if t < end - 2 * 3600 - 60]
    new = [t for t in times if end - 2 * 3600 + 60 < t < end]
    assert 58 <= len(old) <= 61
    assert min(b - a for a, b in itertools.pairwise(old)) >= 10
    assert {b - a for a, b in itertools.pairwise(new)} == {10}
    assert [t for t in times if t >= end] == [end], "the same numbers are kept once"


async def test_it_is_told_from_every_other_one(journal: Journal) -> None:
    """By an id that stays with the file."""
    first = journal.id
    again = await reopened(journal)
    assert again.id == first != ""
    await again.close()
    assert journal.path is not None
    journal.path.unlink()
    other = Journal(journal.path, lambda text: None)
    await other.open()
    assert other.id not in ("", first)
    await other.close()
