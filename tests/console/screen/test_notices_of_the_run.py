"""What is said of the run: the verdict, the ETA, and the flags that would help."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from console.model import reduce
from console.notices import Notice, notices, proposed
from console.text import moment
from console.widgets.notices import notice_lines
from remote.protocol import (
    Alert,
    Epoch,
    Verdict,
)
from tests.console.screen.told import NOW, codes, plain, told


def test_a_verdict_without_anything_to_propose_has_no_key() -> None:
    full = Verdict(NOW, "all slots are in use", None, bound_by="Mamba state pool: 37 slots")
    (one,) = [n for n in notices(replace(told()[1], verdict=full), NOW) if n.code == "verdict"]
    assert one.action == ""


def test_until_the_verdict_it_is_said_what_is_waited_for() -> None:
    """And what is known already stands, with the flags that would help."""
    state = replace(told()[1], verdict=Verdict(NOW, "", waits="the first tokens"))
    found = [n.text for n in notices(state, NOW)]
    assert found == ["Waiting for the first tokens: a verdict comes within a minute of them"]
    early = Verdict(
        NOW, "full", bound_by="KV cache", remedy="a=1: 72 slots", waits="measuring",
        due=state.time + 40,
    )  # fmt: skip
    found = [n.text for n in notices(replace(state, verdict=early), NOW)]
    assert sorted(found) == [
        "Measuring: verdict in about 40 s",
        f"at {moment(NOW, NOW)}: full. Held back by KV cache. Better: a=1: 72 slots",
    ]


def test_the_verdict_names_what_holds_the_run_back() -> None:
    """Once, also where its own sentence does not."""
    state = replace(told()[1], verdict=Verdict(NOW, "1.9 prompts/s", bound_by="KV cache"))
    texts = [n.text for n in notices(state, NOW)]
    assert texts == [f"at {moment(NOW, NOW)}: 1.9 prompts/s. Held back by KV cache"]


def test_a_verdict_is_dated_and_says_nothing_of_a_run_that_pauses() -> None:
    verdict = Verdict(NOW - 600, "ETA 35 min", False, after="swap")
    state = replace(told()[1], verdict=verdict)
    (only,) = notices(state, NOW)
    assert only.text == f"at {moment(NOW - 600, NOW)}, after the restart: ETA 35 min"
    assert state.progress is not None
    paused = msgspec.structs.replace(state.progress, status="paused")
    run = msgspec.structs.replace(state.run, progress=paused)
    assert [n.code for n in notices(replace(state, run=run), NOW)] == ["run.paused"]


def test_a_verdict_says_nothing_of_a_run_that_is_gone() -> None:
    """It would promise an end."""
    story, state = told()
    assert "verdict" in codes(state)
    story.alive = False
    assert "verdict" not in codes(reduce(state, story.snapshot(), NOW))


def test_the_key_at_an_eta_is_the_one_that_helps() -> None:
    """Flags where the servers are full, requests where too few are sent."""
    eta = Alert("eta", "ETA 208 h, over the 48 h allowed", NOW - 9, "error")
    state = replace(told()[1], alerts=(eta,), verdict=None)
    assert notices(state, NOW)[0].action == "restart"
    few = Verdict(NOW, "slow", False, bound_by="requests: the run offers 12 of 37 slots a server")
    assert notices(replace(state, verdict=few), NOW)[0].action == "run.concurrency"
    full = Verdict(NOW, "slow", False, bound_by="KV cache: 97% used", remedy="a=1: 72 slots")
    assert notices(replace(state, verdict=full), NOW)[0].action == "restart"
    held = replace(state, verdict=full, run=msgspec.structs.replace(state.run, concurrency=5))
    assert notices(held, NOW)[0].action == "run.concurrency", "turned down since"


def test_what_mends_it_is_said_with_its_key_where_the_eye_falls_first() -> None:
    """With the alert of the ETA, else with the verdict; once."""
    verdict = Verdict(
        NOW, "1.9 prompts/s", False, bound_by="1.9", remedy="kv-limit=3: 72 slots",
        remedy_flags={"kv-limit": 3, "cap": False},
    )  # fmt: skip
    state = replace(told()[1], verdict=verdict)
    assert proposed(state) == verdict.remedy_flags
    (only,) = notices(state, NOW)
    words = "Better: kv-limit=3: 72 slots"
    at = f"at {moment(NOW, NOW)}"
    assert (only.text, only.action) == (f"{at}: 1.9 prompts/s. {words}", "restart")
    eta = Alert("eta", "ETA 208 h, over the 48 h allowed", NOW - 9, "error")
    first, second = notices(replace(state, alerts=(eta,)), NOW)
    assert (first.text, first.action) == (f"{eta.text}. {words}", "restart")
    assert (second.text, second.action) == (f"{at}: {verdict.text}", "")
    other = replace(state, epochs=(*state.epochs, Epoch(9, NOW + 1, {})), alerts=(eta,))
    assert [n.text for n in notices(other, NOW)] == [eta.text]
    assert proposed(other) == {}


def test_a_flag_is_not_broken_at_its_hyphens() -> None:
    """It is to be read, and typed."""
    text = "ETA 38 min, over the 31 min allowed: 37 slots. Better: mamba-scheduler-strategy=no"
    for width in range(50, 100):
        lines = plain(notice_lines([Notice("error", text, "restart")], width, 9))
        assert "mamba-scheduler-strategy=no" in lines, width
