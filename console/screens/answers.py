"""A look at what the run has written: prompt, reasoning, answer, tools; newest or searched."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from console.screens.modal import Modal
from console.text import duration, number, size, visible
from console.widgets.paint import Line, Part, Tall, cut, pad
from remote.protocol import Answer, Answers, ReadAnswers

if TYPE_CHECKING:
    from console.app import StokerApp

KINDS: tuple[Literal["done", "failed", "set_aside"], ...] = ("done", "failed", "set_aside")
OUTCOMES = ("", "ok", "length", "looped", "empty", "bad_tool_call", "rejected", "failed")
LIMIT = 100
POLL_S = 5.0
"""The list is asked for anew so often while its top is shown."""

_INDEX = re.compile(r"\s*#\s*(\d[\d,]*)\s*")
"""A prompt's index, as one types it into the search."""


def one_line(answer: Answer, width: int) -> str:
    """An answer in a list."""
    said = answer.reason or answer.content or answer.tool_calls or "(neither text nor call)"
    tokens = number(answer.completion_tokens)
    head = f"{answer.index:>8} {pad(answer.outcome, 13)} {pad(answer.source, 10)} {tokens:>6} tok  "
    return cut(head + visible(" ".join(said.split()), 400), max(20, width))


def answer_lines(answer: Answer, width: int) -> list[Line]:
    """One answer in full: numbers, then each text under its heading."""
    facts: list[Part] = [
        (f"prompt {answer.index:,}", "bold strong"),
        (f"  {visible(answer.outcome)}", "good" if answer.outcome == "ok" else "warn"),
        (f"  {visible(answer.finish_reason)}", "dim"),
        (f"  {visible(answer.source)}", "text"),
    ]
    tokens = (
        f"{number(answer.prompt_tokens)} in, {number(answer.completion_tokens)} out"
        f" ({number(answer.reasoning_tokens)} of them reasoning)"
    )
    where = f"{answer.server}  epoch {number(answer.epoch)}  attempt {answer.attempts}"
    if answer.segments > 1:
        where += f"  continued: {answer.segments} parts"
    lines: list[Line] = [
        facts,
        [(tokens, "text"), (f"  {duration(answer.latency_s)}  ", "dim"), (where, "dim")],
        [(visible(answer.finished_at), "dim")],
    ]
    for heading, text, style in (
        ("given up because", answer.reason, "bad"),
        ("prompt", answer.prompt, "text"),
        ("reasoning", answer.reasoning, "dim"),
        ("answer", answer.content, "text"),
        ("tool calls", answer.tool_calls, "info"),
    ):
        if not text:
            continue
        lines += [[], [(heading, "bold accent")]]
        for row in text.split("\n"):
            shown = visible(row, 20_000)
            for part in textwrap.wrap(shown, max(20, width)) or [""]:
                lines.append([(part, style)])
    return lines


class AnswerText(Tall):
    """The lines of one answer, as tall as they are."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        return answer_lines(self.answer, width)


class AnswerScreen(Modal[None]):
    """One answer, scrolling."""

    app: StokerApp

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog") as box:
            box.border_title = f"Prompt {self.answer.index:,}"
            box.border_subtitle = "Y copies the answer, esc closes"
            with VerticalScroll():
                yield AnswerText(self.answer)

    def on_key(self, event: events.Key) -> None:
        """Leave, copy, scroll."""
        if event.key in ("escape", "q", "enter"):
            event.stop()
            self.dismiss(None)
        elif event.key == "Y":
            event.stop()
            self.app.copy_to_clipboard(self.answer.content or self.answer.tool_calls)
            self.app.say("copied")
        elif event.key in ("j", "k"):
            scroll = self.query_one(VerticalScroll)
            scroll.scroll_relative(y=1 if event.key == "j" else -1, animate=False)


class AnswersScreen(Modal[None]):
    """The list; enter opens one."""

    app: StokerApp

    def __init__(self) -> None:
        super().__init__()
        self.kind = 0
        self.outcome = 0
        self.grep = ""
        self.found: list[Answer] = []
        self._next = ""
        """Where a further look begins, empty where there is none."""
        self._loading = False
        self._asked_at = 0.0
        self._got_at: float | None = None
        """When what is listed came."""
        self.following = True
        """Whether the list is asked for anew by itself."""
        self._looked = 0
        """Bytes that were looked through for what is found so far."""

    def compose(self) -> ComposeResult:
        """See :class:`Modal`."""
        with Vertical(classes="dialog wide"):
            yield OptionList(id="answers", markup=False)
            entry = Input(
                id="search", placeholder="regular expression over the records, or #1234; enter"
            )
            entry.display = False
            yield entry

    def on_mount(self) -> None:
        """The newest."""
        self.query_one(OptionList).focus()
        self.app.spawn(self.load())
        self.set_interval(1, self._follow)

    def _follow(self) -> None:
        """Tell how old the list is; ask for it anew while its top is shown. Whoever has scrolled,
        types, or reads one keeps what is there."""
        listed = self.query_one(OptionList)
        self.following = (
            self.app.screen is self
            and not self.query_one("#search", Input).has_focus
            and not listed.highlighted
            and not self.grep
        )
        if self.following and not self._loading and self.app.now() - self._asked_at >= POLL_S:
            self.app.spawn(self.load(quiet=True))
        self._title()

    def _title(self) -> None:
        """What is listed, and how old that is."""
        request = self.request
        words = [request.kind.replace("_", " ")] if request.index is None else []
        words += [request.outcome] if request.outcome else []
        words += [f"/{request.grep}/"] if request.grep else []
        words += [f"prompt {request.index:,}"] if request.index is not None else []
        age = "" if self._got_at is None else f"  {duration(self.app.now() - self._got_at)} old"
        held = "" if self.following or self._got_at is None else ", held"
        title = f"Answers: {', '.join(words)}{age}{held}"
        self.query_one(".dialog").border_title = Content(title)

    @property
    def request(self) -> ReadAnswers:
        """What is looked for now."""
        if index := _INDEX.fullmatch(self.grep):
            return ReadAnswers(index=int(index[1].replace(",", "")))
        return ReadAnswers(
            kind=KINDS[self.kind], limit=LIMIT, grep=self.grep, outcome=OUTCOMES[self.outcome]
        )

    async def load(self, *, on: bool = False, quiet: bool = False) -> None:
        """Ask anew, or go on behind what is found so far; ``quiet`` where nobody asked for it."""
        box = self.query_one(".dialog")
        request = self.request
        self._title()
        keys = ["tab kind", "o outcome", "/ search", "r reload"]
        if request.kind != "done":
            keys.append("R retry them")
        box.border_subtitle = "   ".join([*keys, "enter opens", "esc closes"])
        asked = replace(request, before=self._next) if on else request
        self._loading, self._asked_at = True, self.app.now()
        try:
            found = await self.app.outbox.ask(asked, timeout=60, quiet=quiet)
        finally:
            self._loading = False
        if quiet and not self.following:
            return  # somebody has begun to read
        if not isinstance(found, Answers) or not self.is_attached or request != self.request:
            return  # refused, left, or something else is looked for meanwhile
        if on and asked.before != self._next:
            return  # asked twice
        self._got_at = self.app.now()
        self._title()
        if quiet and found.answers == self.found:
            return
        first = len(self.found) if on else 0
        self.found = [*self.found[:first], *found.answers]
        self._looked = found.looked + (self._looked if on else 0)
        self._next = "" if found.complete else found.next
        listed = self.query_one(OptionList)
        # Not laid out yet where the answer was quick: as wide as it will be.
        width = max(40, (listed.size.width or min(200, self.app.size.width * 24 // 25) - 4) - 4)
        listed.clear_options()
        listed.add_options(Option(one_line(a, width), id=f"a{n}") for n, a in enumerate(self.found))
        if self._next:
            listed.add_option(Option(self._further()))
        elif found.note or not self.found:
            listed.add_option(Option(found.note or self._nothing(request), disabled=True))
        if self.found or self._next:
            listed.highlighted = min(first, listed.option_count - 1)

    def _further(self) -> str:
        """The last line of a list that is not all there is."""
        count = f"{len(self.found):,}" if self.found else "none"
        return f"{count} in the newest {size(self._looked)} looked through; enter goes on"

    def _nothing(self, request: ReadAnswers) -> str:
        if request.index is not None:
            return f"prompt {request.index:,} has no record: not done, or no such prompt"
        return "nothing of this kind"

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open it, or go on looking."""
        if event.option_index < len(self.found):
            self.app.push_screen(AnswerScreen(self.found[event.option_index]))
            self._follow()  # the list behind it says at once that it is held
        elif self._next:
            event.option_list.replace_option_prompt_at_index(event.option_index, "looking …")
            self.app.spawn(self.load(on=True))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search."""
        event.stop()
        self.grep = event.value
        event.input.display = bool(event.value)
        self.query_one(OptionList).focus()
        self.app.spawn(self.load())

    def on_key(self, event: events.Key) -> None:
        """The list's own keys."""
        entry = self.query_one("#search", Input)
        if event.key == "escape":
            event.stop()
            if entry.has_focus:
                entry.display = bool(self.grep)
                self.query_one(OptionList).focus()
            else:
                self.dismiss(None)
            return
        if entry.has_focus:
            return
        if event.key == "slash":
            event.stop()
            entry.display = True
            self.call_after_refresh(entry.focus)
        elif event.key == "R" and KINDS[self.kind] != "done":
            event.stop()
            self.dismiss(None)
            aside = KINDS[self.kind] == "set_aside"
            # By the app itself: what a screen that is gone asked for is not heard.
            self.app.call_later(self.app.action_act, "run.retry_aside" if aside else "run.retry")
        elif event.key in ("j", "k"):
            event.stop()
            listed = self.query_one(OptionList)
            (listed.action_cursor_down if event.key == "j" else listed.action_cursor_up)()
        elif event.key in ("tab", "o", "r"):
            event.stop()
            event.prevent_default()
            self.kind = (self.kind + (event.key == "tab")) % len(KINDS)
            self.outcome = (self.outcome + (event.key == "o")) % len(OUTCOMES)
            self.app.spawn(self.load())
