"""A file arrives whole and verified, or not at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.config import Target
from console.link.errors import LinkError
from console.link.push import push_file
from remote.paths import Workspace
from tests import disks


def content(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def small(workspace: Workspace) -> Iterator[Path]:
    """A disk of one megabyte in the workspace."""
    with disks.small(workspace.root / "small", "size=1m") as folder:
        yield folder


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(os.urandom(3_000_001))
    return path


async def test_a_file_arrives_and_is_sent_once(
    target: Target, workspace: Workspace, local: Path
) -> None:
    told: list[tuple[int, int]] = []
    digest = await push_file(target, local, "prompts.jsonl", lambda a, b: told.append((a, b)))
    there = workspace.root / "prompts.jsonl"
    assert content(there) == content(local)
    assert digest == hashlib.sha256(content(local)).hexdigest()
    assert told[-1] == (3_000_001, 3_000_001)
    assert len(told) > 5
    stamp = there.stat().st_mtime_ns
    told.clear()
    assert (
        await push_file(target, local, "prompts.jsonl", lambda a, b: told.append((a, b))) == digest
    )
    assert there.stat().st_mtime_ns == stamp, "the same bytes are not sent again"
    assert len(told) == 1


async def test_an_empty_file_and_an_absolute_path(
    target: Target, workspace: Workspace, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    await push_file(target, empty, str(workspace.root / "there"))
    assert (workspace.root / "there").read_bytes() == b""


async def test_what_goes_wrong_is_one_line(
    target: Target, workspace: Workspace, local: Path
) -> None:
    with pytest.raises(LinkError, match="does not exist there: create it first"):
        await push_file(target, local, "no/such/folder/x")
    (workspace.root / "folder").mkdir()
    with pytest.raises(LinkError, match="is a folder"):
        await push_file(target, local, "folder")
    with pytest.raises(LinkError, match="No such file"):
        await push_file(target, local.with_name("absent"), "x")


async def test_a_full_disk_leaves_what_was_there(target: Target, small: Path, local: Path) -> None:
    (small / "prompts.jsonl").write_text("old\n")
    with pytest.raises(LinkError, match="No space left"):
        await push_file(target, local, "small/prompts.jsonl")
    assert content(small / "prompts.jsonl") == b"old\n"
    assert os.listdir(small) == ["prompts.jsonl"]  # noqa: PTH208 - of an async test


def test_the_far_side_runs_on_a_bare_interpreter(tmp_path: Path) -> None:
    """Its source compiles for any Python that can say that it is too old."""
    import ast

    from console.link import far

    ast.parse(Path(far.__file__).read_text(), feature_version=(3, 8))
    done = subprocess.run(
        [sys.executable, "-S", "-E", far.__file__], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b""), "on this side nothing is run"
