"""What was wrong at some time, from events."""

from __future__ import annotations

from typing import Any

from console.hindsight import Hindsight
from remote.protocol import Event


def past(*told: tuple[float, str, str], level: Any = "error") -> Hindsight:
    """Events of a time, a kind and a text each."""
    return Hindsight([Event(i, at, kind, level, text) for i, (at, kind, text) in enumerate(told)])


def test_an_alert_stands_until_it_is_over_whatever_its_numbers_are_by_then() -> None:
    """It is told again only when it comes anew; a new agent tells all of them anew."""
    found = past(
        (10, "alert", "ETA 208 h, over the 48 h allowed"),
        (20, "alert", "GPU 5: 88 °C"),
        (25, "alert", "GPU 6: 93 °C"),
        (30, "alert.over", "ETA alert ended: 45 h, 48 h allowed"),
        (40, "alert.over", "GPU 5: 80 °C, no longer hot"),
        (50, "alert", "something nobody has seen"),
        (60, "alert.over", "over: something nobody has seen"),
        (70, "agent.started", "agent started"),
    )

    def codes(at: float) -> list[str]:
        return [alert.code for alert in found.at(at).alerts]

    assert codes(9) == []
    assert codes(10) == ["eta"]
    assert codes(29) == ["eta", "hot.5", "hot.6"]
    assert codes(39) == ["hot.5", "hot.6"]
    assert codes(45) == ["hot.6"]
    assert codes(55) == ["hot.6", "something nobody has seen"]
    assert codes(65) == ["hot.6"]
    assert codes(75) == []
    assert found.at(29).alerts[0].since == 10


def test_a_verdict_is_read_from_its_text() -> None:
    """What it is compared with says whether it is good, a warning that it is not."""
    text = "after start: 1.9/s; 660 tok/s a GPU; held by Mamba state pool: 37 slots a server"
    bad = past((5, "verdict", text), level="warning").at(6).verdict
    assert bad is not None
    assert (bad.good, bad.time) == (False, 5)
    assert bad.text.startswith("1.9/s")
    assert bad.bound_by == "Mamba state pool: 37 slots a server"
    fresh = past((5, "verdict", text), level="info").at(6).verdict
    assert fresh is not None
    assert fresh.good is None
    better = past((5, "verdict", "after swap: ×1.58 of epoch 1"), level="info").at(6).verdict
    assert better is not None
    assert better.good is True
