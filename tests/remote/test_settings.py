"""What differs between two accounts of a target, and what brings the one to the other."""

from __future__ import annotations

from msgspec.structs import replace

from remote.protocol import (
    AlertSpec,
    FleetSpec,
    RunSpec,
    TargetSpec,
    differing,
    in_words,
    taken,
)

OLD = TargetSpec("t", "/w", fleet=FleetSpec(gpus=8, flags={"mem-fraction-static": 0.85}))
HOOK = replace(OLD, alerts=AlertSpec(webhook="https://hooks.example/s3cret"))


def test_what_needs_no_restart_is_taken_over() -> None:
    assert differing(OLD, replace(OLD, name="another name")) == []
    assert taken(OLD, HOOK) == HOOK
    assert in_words(differing(OLD, HOOK)) == "settings sent: alerts.webhook"
    bounds = replace(OLD, fleet=replace(OLD.fleet, drain_seconds=30.0))
    assert taken(OLD, bounds) == bounds


def test_what_needs_one_is_named_with_its_verb_and_left() -> None:
    new = replace(
        HOOK,
        fleet=FleetSpec(gpus=4, model="m", flags={"mem-fraction-static": 0.9}),
        run=RunSpec(max_tokens=9, concurrency=12),
    )
    assert taken(OLD, new) == HOOK
    text = in_words(differing(OLD, new))
    assert text == (
        "settings sent: alerts.webhook; "
        "fleet.model, fleet.gpus differ: `stoker down, then stoker up` applies them; "
        "fleet.flags differs: `stoker restart --set …` applies it; "
        "run.max_tokens differs: `stoker run stop, then stoker run start` applies it; "
        "run.concurrency differs: `stoker run resume --concurrency N` applies it"
    )
    assert "s3cret" not in text
