"""What a run says of settings that cannot be meant, and of answers that show it: once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.generate.outcomes import Answer
from remote.generate.records import Usage
from remote.generate.remarks import Remarks
from remote.generate.settings import Settings
from tests.remote.generate.conftest import Generation, Served

OFF = {"chat_template_kwargs": {"enable_thinking": False}}
ON = {"chat_template_kwargs": {"enable_thinking": True}}
ONE, TWO = "http://127.0.0.1:1", "http://127.0.0.1:2"


def answer(content: str, reasoning: str | None = None) -> Answer:
    """An answer as the client reads it."""
    return Answer(content, reasoning, None, "stop", Usage(), "m")


def remarks(**settings: Any) -> tuple[Remarks, list[str]]:
    """Over a run of such settings, and what they say."""
    said: list[str] = []
    return Remarks(Settings(Path("p"), Path("o"), (ONE,), **settings), said.append), said


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, False),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "thinking": False}, False),
        ({"temperature": 0.0, "request": OFF}, False),
        ({"temperature": 0.0, "request": {"temperature": 0.6}}, False),
        ({"request": {"temperature": 0}}, True),
        ({"request": {"temperature": 0, **ON}, "thinking": False}, True),
    ],
)
def test_temperature_0_with_thinking(settings: dict[str, Any], warned: bool) -> None:
    """By what is really sent."""
    looking, said = remarks(**settings)
    looking.at_start()
    assert [text[:35] for text in said] == ["warning: temperature 0 with thinkin"] * warned


def test_thoughts_in_the_text_are_told_once_a_server() -> None:
    """Whether the run thinks or not."""
    looking, said = remarks()
    for server in (ONE, TWO, ONE):
        looking.look(server, answer("hm</think>Paris."), None)
        looking.look(server, answer("Paris.", "hm"), None)
    assert [text.split()[1] for text in said] == [ONE, TWO]
    assert all("--reasoning-parser" in text for text in said)


@pytest.mark.parametrize(
    ("settings", "params", "seen", "warned"),
    [
        ({"thinking": False}, None, answer("Paris.", "hm"), True),
        ({"thinking": False}, None, answer("Paris.", " \n"), False),
        ({"thinking": False}, ON, answer("Paris.", "hm"), False),
        ({"request": OFF}, None, answer("Paris.", "hm"), True),
        ({}, OFF, answer("Paris.", "hm"), True),
        ({}, None, answer("Paris.", "hm"), False),
        ({"thinking": False}, None, answer("<think>\n\n</think>Paris."), False),
        ({"thinking": False}, None, answer("<think>hm</think>Paris."), True),
    ],
)
def test_thinking_though_it_is_off(
    settings: dict[str, Any], params: dict[str, Any] | None, seen: Answer, warned: bool
) -> None:
    """The prompt's own word wins."""
    looking, said = remarks(**settings)
    for _ in range(3):
        looking.look(ONE, seen, params)
    assert sum("thinks though thinking is off" in text for text in said) == warned


def test_a_run_says_it(serve: Callable[..., Served], generation: Callable[..., Generation]) -> None:
    """On its log, and goes on."""
    run = generation(40)
    run.start(serve(), options=("--no-thinking", "--temperature", "0"))
    assert run.wait() == 0
    assert run.text().count("warning: ") == run.text().count("thinks though thinking is off") == 1
