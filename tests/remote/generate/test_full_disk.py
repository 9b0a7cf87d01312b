"""A disk that fills up while the run writes: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import disks
from tests.remote.generate.conftest import Generation, Served, wait_for, write_prompts
from tests.remote.generate.test_run import check, indices


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit(2)")
def test_file_size_limit(
    serve: Callable[..., Served], generation: Callable[..., Generation]
) -> None:
    """Short writes and EFBIG, mended while the run waits."""
    run = generation(300)
    server = serve(delay=0.02, size=2000)
    run.start(server)
    assert run.process is not None
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    wait_for(lambda: "disk full" in run.progress().get("problem", ""))
    wait_for(lambda: not run.progress()["in_flight"], what="admission has stopped")
    open_batch = run.folder / "completions_000001.jsonl.open"
    data = open_batch.read_bytes()
    assert data.endswith(b"}\n"), "what could not be written whole was taken back"
    assert data.count(b"\n") == run.done() == run.progress()["completed"]
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
    assert run.wait() == 0
    assert indices(run) == list(range(300))
    assert run.progress()["problem"] == ""
    check(run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of two megabytes and eighty files."""
    with disks.small(tmp_path / "disk", "size=2m,nr_inodes=80") as folder:
        yield folder


@pytest.mark.root
def test_small_disk(serve: Callable[..., Served], small_disk: Path, tmp_path: Path) -> None:
    """ENOSPC on a real file system, also while it is killed and started again."""
    prompts = write_prompts(tmp_path / "prompts.jsonl", 300)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_600_000))
    server = serve(delay=0.02, size=2000)
    run = Generation(small_disk / "out", prompts)
    run.log = tmp_path / "log"
    run.start(server)
    wait_for(lambda: "disk full" in run.text())
    assert "the disk has 0.0 GB left, the remaining 300 records need about" in run.text()
    wait_for(lambda: "disk full" in run.progress().get("problem", ""))
    run.kill()
    run.wait()
    done = run.done()
    assert 0 < done < 300
    check(run)
    ballast.unlink()
    run.start(server)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(300))
    check(run)


@pytest.mark.root
def test_no_room_for_another_file(
    serve: Callable[..., Served], small_disk: Path, tmp_path: Path
) -> None:
    """What needs a new file waits: the next batch, progress.json. A start says what to do."""
    prompts = write_prompts(tmp_path / "prompts.jsonl", 900)
    server = serve(delay=0.1)
    run = Generation(small_disk / "out", prompts)
    run.log = tmp_path / "log"
    run.start(server)
    wait_for(lambda: run.done() > 100)

    def fill() -> None:
        with contextlib.suppress(OSError):
            for number in range(200):
                (small_disk / f"ballast{number}").touch()

    fill()
    wait_for(lambda: "disk full (completions_000002.jsonl.open" in run.text(), 60)
    assert run.done() == 500
    assert run.process is not None
    assert run.process.poll() is None
    run.kill()
    run.wait()
    fill()
    run.start(server)
    assert run.wait() == 2
    assert run.text().splitlines()[-1].startswith("remote.generate: ")
    assert run.text().splitlines()[-1].endswith("make room")
    assert "Traceback" not in run.text()
    for path in small_disk.glob("ballast*"):
        path.unlink()
    run.start(server)
    assert run.wait() == 0, run.text()
    assert indices(run) == list(range(900))
    check(run)
