"""What these tests share: where reference rows lie, and how a recipe is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remote.prepare import build as building
from remote.prepare.output import rows_path
from remote.prepare.recipe import Recipe, parse
from remote.prepare.rows import Request

REFERENCE = Path(__file__).resolve().parents[4] / "shared"


class Quiet:
    """A watcher that remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def begin(self, name: str, total: int) -> None: ...

    def advance(self, amount: int, rows: int = 0) -> None: ...

    def end(self) -> None: ...


@pytest.fixture
def dataset_rows() -> Path:
    """Folder with a few rows of every known dataset."""
    folder = REFERENCE / "fixtures" / "datasets"
    if not folder.is_dir():
        pytest.skip("reference rows are not here")
    return folder


@pytest.fixture
def real_data() -> Path:
    """Folder with GSM8K, HumanEval and BFCL."""
    folder = REFERENCE / "data"
    if not folder.is_dir():
        pytest.skip("real data is not here")
    return folder


def read_lines(path: Path) -> list[Any]:
    """The JSON values of a file, one a line; only a newline ends one."""
    return [msgspec.json.decode(line) for line in path.read_bytes().split(b"\n") if line.strip()]


def write_lines(path: Path, rows: list[Any]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def recipe_of(*sources: dict[str, Any], **rest: Any) -> Recipe:
    """A recipe from its parts."""
    return parse({"sources": list(sources), **rest})


def body_of(request: Request) -> dict[str, Any]:
    """As in the body of a chat completion, without sampling."""
    tools = {"tools": request.tools} if request.tools else {}
    return {"messages": request.messages, **tools, **request.params}


class Outcome:
    """A finished build, read back."""

    def __init__(self, built: building.Built, output: Path, watcher: Quiet) -> None:
        self.built = built
        self.said = watcher.lines
        self.bytes = output.read_bytes()
        self.prompts = read_lines(output)
        self.rows = read_lines(rows_path(output))

    def dropped(self, source: int = 0) -> dict[str, int]:
        """Counts by cause of one source."""
        return self.built.sources[source].dropped


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Outcome]:
    """Run a recipe in this process (or with ``workers``)."""

    def do(recipe: Recipe, name: str = "prompts.jsonl", workers: int = 1) -> Outcome:
        watcher = Quiet()
        output = tmp_path / name
        built = building.build(recipe, tmp_path, output, watcher, workers=workers)
        building.remove_work(output)
        return Outcome(built, output, watcher)

    return do
