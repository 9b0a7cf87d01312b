"""Servers with different flags: what is said of them, and of a swap that stopped half-way."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from console import mixed, model
from console.model import State
from console.notices import notices
from console.widgets.swap import swap_lines
from remote.fleet.conclusion import conclude
from remote.fleet.plan import mark, steps
from remote.protocol import Epoch, Swap
from tests.console.screen.story import BAD, BEGAN
from tests.console.screen.told import NOW, plain, seen, silent

FAST = {**BAD, "mem-fraction-static": 0.91}


def split(on_new: int, new_tok_s: float = 26_600.0, old_tok_s: float = 15_100.0) -> State:
    """The first servers run epoch 3, the others still epoch 2."""
    story = silent()
    story.epochs.append(Epoch(3, story.now, FAST, "ops", "a try"))
    state = seen(story)
    servers, infos = dict(state.servers), dict(state.infos)
    for gpu in servers:
        new = gpu < on_new
        rate = new_tok_s if new else old_tok_s
        servers[gpu] = msgspec.structs.replace(servers[gpu], gen_tok_s=rate)
        infos[gpu] = msgspec.structs.replace(infos[gpu], epoch=3 if new else 2)
    return replace(state, servers=servers, infos=infos, verdict=None)


def half_way() -> Swap:
    """Four are through, the fifth did not come up, three were not begun with."""
    swap = Swap(3, "rolling", list(range(8)), 2, 3, "ops", BEGAN, steps=steps(range(8)))
    for gpu in range(4):
        for step in steps([gpu]):
            swap = mark(swap, gpu, step.name, state="done", began=BEGAN, ended=BEGAN)
    swap = mark(swap, 4, "stop", state="done", began=BEGAN)
    swap = mark(swap, 4, "ready", state="failed", began=BEGAN, text="killed (signal 9)")
    return conclude(mark(swap, 4, "put back", state="done", began=BEGAN))


def test_a_mixed_fleet_is_told_with_the_key_that_ends_it() -> None:
    (one,) = [n for n in notices(split(4), NOW) if n.code == "fleet.mixed"]
    assert (one.level, one.action) == ("warning", "restart")
    assert one.text == (
        "4 servers run epoch 3, GPU 4–7 still epoch 2 (26,600 and 15,100 tok/s each): "
        "restart with epoch 3's flags finishes it"
    )


def test_nothing_is_said_where_all_run_the_same_or_a_swap_is_under_way() -> None:
    assert not mixed.parts(split(8))
    doing = Swap(3, "rolling", list(range(8)), 2, 3, "ops", BEGAN)
    assert not mixed.parts(replace(split(4), swap=doing))
    assert mixed.parts(replace(split(4), swap=half_way()))


def test_the_faster_flags_are_the_ones_to_have() -> None:
    """Also where fewer servers have them than not, so that the dialog has to start from edits."""
    state = split(2)
    assert model.current_flags(state) == BAD
    edits = mixed.finishing(state, model.current_flags(state))
    assert edits == {"mem-fraction-static": 0.91}
    slower = split(4, new_tok_s=10_000.0)
    assert "restart with epoch 2's flags makes them alike again" in mixed.told(mixed.parts(slower))
    assert mixed.finishing(slower, FAST)["mem-fraction-static"] == BAD["mem-fraction-static"]


def test_a_swap_that_stopped_half_way_says_so() -> None:
    swap = half_way()
    assert mixed.left(swap) == ("stopped half-way: 0–3 on epoch 3, 4 failed, 5–7 not touched")
    text = plain(swap_lines(swap, NOW, 110, 20))
    assert "rolled back" not in text
    assert "100%" not in text
    assert "✔ 0 1 2 3  through" in text
    assert "5 6 7  not touched" in text


def test_a_swap_that_was_taken_back_whole_keeps_its_word() -> None:
    swap = Swap(3, "rolling", [0, 1], 2, 3, "ops", BEGAN, steps=steps([0, 1]))
    swap = mark(swap, 0, "ready", state="failed", began=BEGAN, text="no")
    swap = conclude(mark(swap, 0, "put back", state="done", began=BEGAN))
    assert (mixed.ended(swap), mixed.left(swap)) == ("rolled back", "")


def test_what_can_be_done_about_a_swap_under_way() -> None:
    doing = Swap(3, "canary", [0, 1], 2, 3, "ops", BEGAN, steps=steps([0, 1], "canary"))
    state = replace(split(1), swap=doing)
    assert mixed.under_way(state) == (
        "swap 3 to epoch 3 is under way: no other can begin; esc, then B takes it back, "
        "or wait for its end"
    )
    judged = mark(doing, 0, "judge", state="doing", began=BEGAN)
    assert "K keeps the new flags" in mixed.under_way(replace(state, swap=judged))
    assert mixed.under_way(split(1)) == ""
