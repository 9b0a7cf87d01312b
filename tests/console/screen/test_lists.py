"""Events and answers that are more than what is sent at first: both lists go on to the first."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from console.screens.events import EventPane
from console.widgets.filter_line import FilterLine
from remote import answers
from remote.protocol import Event, ReadAnswers, ReadEvents, Request, Result, Skipped
from tests.console.screen.driver import Driven, driven


def many(one: Driven, count: int) -> None:
    """So many events there, the newest thousand of them here; the last hour of each day's one."""
    now = time.time()
    events = [
        Event(n, now - 120 * (count - n), "x.y", text=f"number {n}.") for n in range(1, count + 1)
    ]
    one.story.events[:] = events
    one.app.state = replace(one.app.state, events=tuple(events[-1_000:]))
    one.story.on_message(Skipped("events", count - 1_000))


def saved(folder: Path) -> list[int]:
    """Ids of the events in the one file there."""
    (path,) = folder.iterdir()
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


async def test_older_events_are_fetched_by_going_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the very first, with their day; the place stays; the end forgets them. All are saved."""
    monkeypatch.chdir(tmp_path)
    async with driven() as one:
        many(one, 2_200)
        await one.keys("e")
        await one.sees("1.2k older: page up")
        pane = one.app.screen.query_one(EventPane)
        await one.until(lambda: "number 2200." in pane.shown()[-1])
        day = time.strftime("%m-%d ", time.localtime(time.time() - 120 * 1_400))
        count = 0
        while count != pane.count:
            count = pane.count
            await one.keys("home", "home")
            await one.until(lambda: not one.app.screen._loading)  # type: ignore[attr-defined]
        await one.until(lambda: "number 1." in pane.shown()[0])
        assert pane.count == 2_200
        await one.until(lambda: "page up" not in one.screen())
        assert pane.chosen == 1
        asked = len(one.sent(ReadEvents))
        await one.keys("home")
        assert len(one.sent(ReadEvents)) == asked
        assert day in "".join(f"{text} " for _, text in pane._lines)
        await one.keys("S")
        await one.sees("2,200 events saved")
        assert saved(tmp_path) == list(range(1, 2_201))
        await one.keys("end")
        await one.until(lambda: pane.following and "number 2200." in pane.shown()[-1])


async def test_a_filter_reaches_events_that_were_not_sent() -> None:
    """Up looks on until something matches."""
    async with driven() as one:
        many(one, 2_200)
        await one.keys("e", "slash")
        await one.until(lambda: isinstance(one.app.focused, FilterLine))
        await one.write("number 11[.]")
        await one.keys("enter")
        pane = one.app.screen.query_one(EventPane)
        await one.until(lambda: pane.count == 0)
        await one.keys("up")
        await one.until(lambda: pane.count == 1 and "number 11." in pane.shown()[0])


def records(folder: Path) -> None:
    """Three batches of small records, the first of them with the one that is sought."""
    for batch in range(3):
        lines = [
            {"index": 100 * batch + n, "content": f"answer {100 * batch + n}.", "outcome": "ok"}
            for n in range(100)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        name = f"completions_00000{batch}.jsonl"
        (folder / name).write_text(text)
        with (folder / "manifest.jsonl").open("a") as out:
            out.write(json.dumps({"name": name, "indices": [100 * batch] + [1] * 99}) + "\n")


async def test_answers_are_looked_for_until_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said not to be there that was not looked for; a prompt is found by its index."""
    records(tmp_path)
    monkeypatch.setattr(answers, "SCAN", 8_000)
    async with driven() as one:
        plain = one.story.call
        asked: list[ReadAnswers] = []

        async def call(request: Request, timeout: float = 30) -> Result:
            if not isinstance(request, ReadAnswers):
                return await plain(request, timeout)
            asked.append(request)
            if request.index is not None:
                return answers.of_prompt(tmp_path, request.index, request.chars)
            return answers.newest(
                tmp_path, request.kind, request.limit, request.grep, request.outcome,
                request.chars, request.before,
            )  # fmt: skip

        one.story.call = call  # type: ignore[method-assign]
        await one.keys("g", "a", "slash")
        await one.until(lambda: isinstance(one.app.focused, Input))
        asked.clear()
        await one.write("answer [37]\\.")
        await one.keys("enter")
        await one.sees("none in the newest 7.8 KiB looked through; enter goes on")
        assert "nothing of this kind" not in one.screen()
        listed = one.app.screen.query_one(OptionList)
        for looks in range(2, 5):
            if listed.option_count > 1:
                break
            await one.keys("enter")
            await one.until(lambda: len(asked) == looks)  # noqa: B023
            await one.until(lambda: "looking …" not in one.screen())
        await one.until(lambda: listed.option_count == 2)
        assert [str(o.prompt).split()[0] for o in listed.options] == ["7", "3"]
        entry = one.app.screen.query_one("#search", Input)
        for index, seen in (("#7", "answer 7."), ("# 9,999", "prompt 9,999 has no record")):
            await one.keys("slash")
            await one.until(lambda: entry.has_focus)
            entry.value = index
            await one.keys("enter")
            await one.sees(seen)
        await one.sees("Answers: prompt 9,999")
        await one.keys("slash")
        await one.until(lambda: entry.has_focus)
        entry.value = "[/INST]"
        await one.keys("enter")
        await one.sees("done, /[/INST]/")
