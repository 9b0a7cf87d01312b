"""Whole builds: the same bytes whoever works on them, and after every interruption."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from remote.prepare import build as building
from remote.prepare import spool
from remote.prepare.errors import PrepareError
from remote.prepare.output import rows_path
from remote.prepare.recipe import Recipe
from tests import disks
from tests.remote.prepare import synthetic
from tests.remote.prepare.conftest import Outcome, Quiet, read_lines, recipe_of, write_lines

ROOT = Path(__file__).resolve().parents[3]


def two_sources(tmp_path: Path, count: int = 600) -> dict[str, Any]:
    synthetic.write(tmp_path / "a.jsonl", count)
    synthetic.write(tmp_path / "b.jsonl", count, start=count - 200)  # 200 rows are in both
    return {
        "seed": 7,
        "sources": [
            {"name": "a", "path": "a.jsonl", "quota": count // 3, "priority": 2},
            {"name": "b", "path": "b.jsonl", "priority": 1},
        ],
    }


def recipe(data: dict[str, Any], **changes: Any) -> Recipe:
    merged = {**data, **changes}
    return recipe_of(*merged.pop("sources"), **merged)


def test_every_row_is_a_prompt_or_has_a_cause(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    outcome = run(recipe(two_sources(tmp_path)))
    for count in outcome.built.sources:
        own = [p for p in outcome.prompts if p["source"] == count.opened.source.name]
        assert count.rows == len(own) + sum(count.dropped.values())
    assert len(outcome.prompts) == len(outcome.rows)
    for index, (prompt, row) in enumerate(zip(outcome.prompts, outcome.rows, strict=True)):
        assert row["index"] == index
        assert row["id"] == prompt["id"]
        assert row["max_tokens"] == prompt["max_tokens"]
    assert len({prompt["id"] for prompt in outcome.prompts}) == len(outcome.prompts)
    # What both have, the source of the better priority keeps.
    assert outcome.built.sources[0].lost_to["b"] > 100
    assert "a" not in outcome.built.sources[1].lost_to


def test_same_bytes_from_one_process_and_from_three(
    tmp_path: Path, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = two_sources(tmp_path)
    monkeypatch.setattr("remote.prepare.sources.BLOCK", 40_000)  # more pieces to be shuffled
    monkeypatch.setattr("remote.prepare.crew.STRETCH", 150)
    one = run(recipe(data), "one.jsonl", workers=1)
    three = run(recipe(data), "three.jsonl", workers=3)
    assert one.bytes == three.bytes
    assert one.rows == three.rows
    assert one.built.sources[0].dropped == three.built.sources[0].dropped


def test_the_order_of_rows_in_their_files_does_not_matter(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    rows = [synthetic.row(n) for n in range(1, 900) if n % 50]
    write_lines(tmp_path / "rows.jsonl", rows)
    forward = run(recipe_of({"name": "rows", "path": "rows.jsonl", "quota": 300}))
    write_lines(tmp_path / "rows.jsonl", rows[::-1])
    backward = run(recipe_of({"name": "rows", "path": "rows.jsonl", "quota": 300}))
    assert forward.bytes == backward.bytes


def test_a_larger_quota_keeps_every_earlier_pick(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    data = two_sources(tmp_path)
    for unit, small, large in (("prompts", 50, 150), ("output_tokens", 90_000, 300_000)):
        picks = []
        for quota in (small, large):
            data["sources"][0]["quota"] = quota
            outcome = run(recipe(data, mix={"unit": unit}))
            picks.append([p["id"] for p in outcome.prompts])
        assert set(picks[0]) < set(picks[1])
        # And in the same order among themselves.
        kept = set(picks[0])
        assert [i for i in picks[1] if i in kept] == picks[0]


def test_a_larger_set_can_begin_with_an_earlier_one(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "a.jsonl", 300)
    source = {"name": "a", "path": "a.jsonl"}
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"

    def prepare(output: Path, quota: int, after: Path | None, **more: Any) -> None:
        building.build(
            recipe_of({**source, "quota": quota}, **more),
            tmp_path, output, Quiet(), workers=1, after=after,
        )  # fmt: skip

    prepare(old, 60, None)
    prepare(new, 120, old)
    assert new.read_bytes().startswith(old.read_bytes())
    assert [row["index"] for row in read_lines(rows_path(new))] == list(range(120))
    assert len({prompt["id"] for prompt in read_lines(new)}) == 120
    with pytest.raises(PrepareError, match="line 1 is not among"):
        prepare(new, 120, old, seed=99, dedup={"level": "exact"})
    with pytest.raises(PrepareError, match="written differently"):
        prepare(new, 120, old, budget={"max_tokens": 100, "floor": 50})
    assert new.read_bytes().startswith(old.read_bytes())


def test_another_seed_gives_another_choice(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    data = two_sources(tmp_path)
    first = run(recipe(data))
    second = run(recipe(data, seed=8))
    assert first.bytes != second.bytes
    assert len(first.prompts) == len(second.prompts)


def command(output: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "remote.prepare", "recipe.toml", "-o", output, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def write_recipe(tmp_path: Path, count: int) -> None:
    synthetic.write(tmp_path / "a.jsonl", count)
    (tmp_path / "recipe.toml").write_text(
        'seed = 3\n[[sources]]\nname = "a"\npath = "a.jsonl"\nquota = 500\n'
    )


def test_killed_then_terminated_then_finished_gives_the_same_bytes(tmp_path: Path) -> None:
    write_recipe(tmp_path, 10_000)
    work = tmp_path / "broken.jsonl.work"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command("broken.jsonl", "--workers", "2"),
            cwd=tmp_path, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def chunks() -> int:
        return len(list(work.glob("000-*.json")))

    def wait_for(count: int, running: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 150
        while chunks() < count:
            assert time.monotonic() < deadline
            assert running.poll() is None, "it ended before it could be interrupted"
            time.sleep(0.01)

    first = start()
    wait_for(1, first)
    left = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.communicate(timeout=60)
    assert not psutil.wait_procs(left, timeout=20)[1], "workers outlive a killed parent"
    assert not (tmp_path / "broken.jsonl").exists()
    done = chunks()
    second = start()
    wait_for(done + 1, second)
    second.terminate()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 130
    assert b"goes on where it was" in errors
    assert b"Traceback" not in errors
    again = subprocess.run(
        command("broken.jsonl", "--workers", "1"),
        cwd=tmp_path, env=environment(), check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert b"rows were done already" in again.stderr
    subprocess.run(
        command("whole.jsonl", "--workers", "1"),
        cwd=tmp_path, env=environment(), check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    for end in (".jsonl", ".rows.jsonl"):
        whole = (tmp_path / f"whole{end}").read_bytes()
        assert (tmp_path / f"broken{end}").read_bytes() == whole
    assert not work.exists()


def test_work_of_another_recipe_is_not_taken_for_its_own(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    write_lines(tmp_path / "rows.jsonl", [synthetic.row(n) for n in range(60)])
    output = tmp_path / "p.jsonl"
    source = {"name": "rows", "path": "rows.jsonl"}
    building.build(recipe_of(source), tmp_path, output, Quiet(), workers=1)
    watcher = Quiet()
    building.build(recipe_of(source, seed=1), tmp_path, output, watcher, workers=1)
    assert any("beginning anew" in line for line in watcher.lines)
    # A quota changes nothing that a row becomes: the work is used again.
    watcher = Quiet()
    building.build(recipe_of({**source, "quota": 5}, seed=1), tmp_path, output, watcher, workers=1)
    assert any("rows were done already" in line for line in watcher.lines)
    assert len(read_lines(output)) == 5
    # A changed input is another one.
    write_lines(tmp_path / "rows.jsonl", [synthetic.row(n) for n in range(61)])
    watcher = Quiet()
    building.build(recipe_of(source, seed=1), tmp_path, output, watcher, workers=1)
    assert any("beginning anew" in line for line in watcher.lines)


def test_a_torn_chunk_is_made_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [synthetic.row(n) for n in range(60)])
    output = tmp_path / "p.jsonl"
    source = {"name": "rows", "path": "rows.jsonl"}
    building.build(recipe_of(source), tmp_path, output, Quiet(), workers=1)
    before = output.read_bytes()
    lines = tmp_path / "p.jsonl.work" / "000-000000.lines"
    lines.write_bytes(lines.read_bytes()[:-20])
    watcher = Quiet()
    building.build(recipe_of(source), tmp_path, output, watcher, workers=1)
    assert not any("done already" in line for line in watcher.lines)
    assert output.read_bytes() == before


def test_two_at_once_on_the_same_output_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [synthetic.row(1)])
    folder = tmp_path / "p.jsonl.work"
    folder.mkdir()
    with building._locked(folder), pytest.raises(PrepareError, match="another prepare"):
        building.build(
            recipe_of({"name": "rows", "path": "rows.jsonl"}),
            tmp_path, tmp_path / "p.jsonl", Quiet(), workers=1,
        )  # fmt: skip


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with disks.small(tmp_path / "small", "size=256k") as folder:
        yield folder


def test_a_full_disk_is_one_line_and_nothing_half_done(tmp_path: Path, small_disk: Path) -> None:
    synthetic.write(tmp_path / "a.jsonl", 1000)
    source = {"name": "a", "path": str(tmp_path / "a.jsonl"), "limit": 1000}
    output = small_disk / "p.jsonl"
    # What is known beforehand is said beforehand; with a limit it is not.
    with pytest.raises(PrepareError, match="GB free"):
        building.build(recipe_of({**source, "limit": None}), tmp_path, output, Quiet(), workers=1)
    with pytest.raises(PrepareError, match="make room and run the same command again"):
        building.build(recipe_of(source), tmp_path, output, Quiet(), workers=1)
    assert not output.exists()
    assert not list(small_disk.rglob("*.part*"))


def test_a_failed_write_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "rows.jsonl", [synthetic.row(n) for n in range(60)])
    source = {"name": "rows", "path": "rows.jsonl"}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "x"))

    with monkeypatch.context() as patched:
        patched.setattr(spool, "_sync", full)
        with pytest.raises(PrepareError, match="make room and run the same command again"):
            building.build(recipe_of(source), tmp_path, tmp_path / "p.jsonl", Quiet(), workers=1)
    assert not list(tmp_path.glob("p.jsonl.work/*.part-*"))
    building.build(recipe_of(source), tmp_path, tmp_path / "p.jsonl", Quiet(), workers=1)


def test_thinking_has_the_same_share_in_every_source(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    outcome = run(recipe(two_sources(tmp_path), thinking=0.25))
    for name in ("a", "b"):
        on = [
            prompt["params"]["chat_template_kwargs"]["enable_thinking"]
            for prompt in outcome.prompts
            if prompt["source"] == name
        ]
        assert 0.2 < np.mean(on) < 0.3


def test_without_deduplication_ids_still_differ(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    rows = [{"messages": [{"role": "user", "content": "What is a quay?"}]}] * 3
    write_lines(tmp_path / "rows.jsonl", rows)
    source = {"name": "rows", "path": "rows.jsonl"}
    outcome = run(recipe_of(source, dedup={"level": "off"}))
    assert len({prompt["id"] for prompt in outcome.prompts}) == 3
    assert len(run(recipe_of(source, dedup={"level": "exact"})).prompts) == 1


def test_of_a_session_every_step_or_only_the_longest(
    tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    turns = [
        {"role": "user", "content": "Count the rows of boats.csv and of harbours.csv."},
        {"role": "assistant", "content": "There are 41 boats."},
        {"role": "user", "content": "And the harbours?"},
        {"role": "assistant", "content": "Nine."},
        {"role": "user", "content": "Thanks, now sort them."},
    ]
    other = [{"role": "user", "content": "Something else."}]
    bodies = [turns[:1], turns[:3], turns, other]
    folder = tmp_path / "captured"
    folder.mkdir()
    for n, body in enumerate(bodies):
        # One a file, laid out over several lines.
        text = json.dumps({"model": "m", "messages": body}, indent=2)
        (folder / f"{n}.json").write_text(text)
    source = {"name": "mine", "bodies": "captured"}
    assert len(run(recipe_of(source)).prompts) == 4
    longest = run(recipe_of({**source, "sessions": "longest"}))
    assert sorted(len(p["messages"]) for p in longest.prompts) == [1, 5]
    assert longest.dropped() == {"session_step": 2}
    assert all("_prefixes" not in row for row in longest.rows)


def test_a_worker_that_dies_is_one_line_and_leaves_nobody_behind(tmp_path: Path) -> None:
    write_recipe(tmp_path, 10_000)
    running = subprocess.Popen(
        command("p.jsonl", "--workers", "2"),
        cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    process = psutil.Process(running.pid)
    deadline = time.monotonic() + 150
    workers: list[psutil.Process] = []
    while len(workers) < 2:
        assert time.monotonic() < deadline
        assert running.poll() is None
        children = process.children()
        workers = [c for c in children if "spawn_main" in " ".join(c.cmdline())]
        time.sleep(0.01)
    workers[0].kill()
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    (line,) = [text for text in errors.decode().splitlines() if text.startswith("prepare:")]
    assert "a worker process died" in line
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
