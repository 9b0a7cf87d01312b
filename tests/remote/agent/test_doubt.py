"""A verdict that numbers have left behind."""

from __future__ import annotations

from msgspec.structs import replace

from remote.agent.doubt import Doubt, apart
from remote.protocol import Progress, ServerState, ServerWork, Verdict

VERDICT = Verdict(
    time=1_000.0, text="26.21/s, ETA 60 min", rate_per_sec=26.21, eta_hours=1.0, tok_s=5_440.0
)
OWN = Progress(
    completed=9_000,
    in_flight=320,
    rate_per_sec=26.0,
    eta_hours=1.0,
    servers={"http://127.0.0.1:30000": ServerWork(completed=2_000)},
)


def fleet(tok_s: float) -> list[ServerState]:
    return [ServerState(gpu=gpu, state="ready", gen_tok_s=tok_s) for gpu in range(8)]


def test_it_is_doubted_once_the_servers_have_done_something_else_for_a_minute() -> None:
    doubt = Doubt()
    assert not any(doubt.look(VERDICT, fleet(700.0), OWN, 1_000.0 + s) for s in range(600))
    tenth = [doubt.look(VERDICT, fleet(68.0), OWN, 2_000.0 + s) for s in range(61)]
    assert tenth == [False] * 60 + [True]
    for second in range(200):  # never for a whole minute
        speed = 68.0 if second % 50 else 680.0
        assert not doubt.look(VERDICT, fleet(speed), OWN, 3_000.0 + second)


def test_a_pause_is_no_reason_to_doubt() -> None:
    """Nor is what a mean still holds of it afterwards."""
    doubt, low = Doubt(), replace(OWN, rate_per_sec=10.0, eta_hours=2.6)
    paused = replace(OWN, status="paused")
    assert not any(doubt.look(VERDICT, fleet(0.0), paused, 2_000.0 + s) for s in range(300))
    assert not any(doubt.look(VERDICT, fleet(680.0), low, 2_300.0 + s) for s in range(110))
    assert any(doubt.look(VERDICT, fleet(680.0), low, 2_410.0 + s) for s in range(120))


def test_the_runs_own_numbers_count_once_they_are_of_the_time_since() -> None:
    slow = replace(OWN, rate_per_sec=12.0, eta_hours=2.2)
    assert not apart(VERDICT, fleet(680.0), slow, 1_100.0), "a mean over the restart before it"
    assert apart(VERDICT, fleet(680.0), slow, 1_121.0)
    few = {"http://127.0.0.1:30000": ServerWork(completed=300)}
    assert not apart(VERDICT, fleet(680.0), replace(slow, servers=few), 1_121.0)
    later = replace(OWN, eta_hours=0.3)
    assert apart(VERDICT, fleet(680.0), later, 3_000.0), "hardly anything is left"
    early = Verdict(time=1_000.0, text="every server runs its most at once")
    assert not apart(early, fleet(68.0), OWN, 3_000.0), "it said nothing of a rate"


def test_it_is_judged_anew_less_and_less_often_until_somebody_acts() -> None:
    doubt = Doubt()
    assert [s for s in range(2_000) if doubt.again(float(s))] == [0, 300, 900]
    doubt.begin()
    assert doubt.again(2_000.0)
