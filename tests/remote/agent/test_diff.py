"""A subscriber gets what changed, and can put the whole together from it."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from remote.agent import diff
from remote.agent.diff import Picture
from remote.protocol import GpuState, HostState, ServerState, TargetSpec, Verdict, encode

ONE = Picture(
    target=TargetSpec(name="t", workspace="/w"),
    servers=[ServerState(gpu=g, state="ready", running=37) for g in range(8)],
    gpus=[GpuState(gpu=g, name="card", temperature_c=60.0) for g in range(8)],
)


def test_first_is_whole_then_only_changes() -> None:
    first = diff.changes(None, ONE, 1.0, 1)
    assert first.full
    assert first.target == ONE.target
    same = diff.changes(ONE, ONE, 2.0, 2)
    assert not same.full
    assert same.servers is UNSET
    assert same.gpus is UNSET
    assert len(encode(same)) < 100


def test_only_the_members_that_changed() -> None:
    servers = [*ONE.servers]
    servers[3] = replace(servers[3], running=36)
    now = replace(ONE, servers=servers, host=HostState(cpu=0.5))
    told = diff.changes(ONE, now, 3.0, 3)
    assert told.servers == [servers[3]]
    assert told.host == HostState(cpu=0.5)
    assert told.gpus is UNSET


def test_a_member_that_went_makes_it_whole() -> None:
    told = diff.changes(ONE, replace(ONE, gpus=ONE.gpus[:7]), 3.0, 3)
    assert told.full


def test_a_section_that_became_nothing_is_told() -> None:
    before = replace(ONE, verdict=Verdict(time=1.0, text="x"))
    assert diff.changes(before, ONE, 2.0, 2).verdict is None


def test_tidy_rounds_what_nobody_can_see() -> None:
    state = ServerState(gpu=0, kv_usage=0.123456789, phase_since=1_800_000_000.25)
    assert diff.tidy(state).kv_usage == 0.1235
    assert diff.tidy(state).phase_since == 1_800_000_000.25
