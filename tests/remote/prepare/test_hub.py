"""Datasets of the hub, against a stand-in of its endpoint: gates, revisions, streams, cache."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.remote.prepare.conftest import read_lines
from tests.remote.prepare.hubserver import Hub, Repo, serve

ROOT = Path(__file__).resolve().parents[3]
QUESTIONS = [{"question": f"What is quay number {n} called in Saltmere?"} for n in range(9000)]


def lines(rows: list[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parquet(rows: list[dict[str, str]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=1000)
    return sink.getvalue()


CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
---
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    repos = {
        "open/quays": Repo(
            {
                "README.md": CARD,
                "data/train-00000.parquet": parquet(QUESTIONS[:5000]),
                "data/train-00001.parquet": parquet(QUESTIONS[5000:]),
            }
        ),
        "open/files": Repo({"part.jsonl": lines(QUESTIONS[:50]) + b'{"torn', "notes.txt": b"x"}),
        "shut/quays": Repo({"part.jsonl": lines(QUESTIONS[:50])}, gated=True),
    }
    with serve(repos) as running:
        running.tokens.add("granted")
        yield running


class Prepare:
    """A process that prepares one recipe after another: importing ``datasets`` takes seconds."""

    _LOOP = """
import contextlib, io, json, os, sys
from remote.prepare.command import run
if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ["HF_TOKEN"] = asked["token"]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(asked["argv"])
        print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""

    def __init__(self, folder: Path, endpoint: str, **variables: str) -> None:
        self.folder = folder
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "HF_HOME": str(folder / "hf"),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **variables,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._LOOP],
            cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __call__(self, recipe: str, *more: str, token: str = "") -> Ran:
        (self.folder / "recipe.toml").write_text(recipe)
        argv = ["recipe.toml", "-o", "p.jsonl", "--workers", "1", *more]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "token": token}) + "\n")
        self._process.stdin.flush()
        return Ran(*json.loads(self._process.stdout.readline()))

    @property
    def output(self) -> Path:
        return self.folder / "p.jsonl"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def prepare(folder: Path, hub: Hub) -> Iterator[Prepare]:
    running = Prepare(folder, hub.url)
    yield running
    running.close()


def source(hub: str, more: str = "") -> str:
    return f'[[sources]]\nname = "quays"\nhub = "{hub}"\n{more}\n'


def one_line(done: Ran) -> str:
    """The only line of an error."""
    assert "Traceback" not in done.stderr
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("prepare:")]
    return line


def test_a_gated_set_says_so_before_anything_is_read(prepare: Prepare, hub: Hub) -> None:
    recipe = source("open/quays") + source("shut/quays").replace('"quays"', '"shut"')
    hub.asked.clear()
    done = prepare(recipe)
    assert done.returncode == 2
    line = one_line(done)
    assert "shut/quays is gated" in line
    assert f"{hub.url}/datasets/shut/quays" in line
    assert "HF_TOKEN" in line
    assert not any("parquet" in asked for asked in hub.asked)


def test_a_granted_token_opens_it(prepare: Prepare) -> None:
    done = prepare(source("shut/quays", 'files = ["part.jsonl"]'), token="granted")
    assert done.returncode == 0, done.stderr
    assert len(read_lines(prepare.output)) == 50


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (source("open/gone"), "open/gone is not on the hub, or private"),
        (source("open/quays", 'revision = "v9"'), "open/quays has no revision 'v9'"),
        (source("open/files", 'files = ["other.jsonl"]'), "open/files has no file 'other.jsonl'"),
        (source("open/files", 'files = ["notes.txt"]'), "notes.txt is no JSONL"),
        (source("open/quays", 'split = "test"'), "Bad split: test"),
        (source("open/quays", 'config = "other"'), "other"),
    ],
)
def test_what_the_hub_lacks_is_one_line(prepare: Prepare, recipe: str, text: str) -> None:
    done = prepare(recipe)
    assert done.returncode == 2, done.stderr
    assert text in one_line(done)


def test_a_stream_is_read_and_its_commit_recorded(prepare: Prepare, hub: Hub) -> None:
    hub.busy = 1  # the first answer is "too many requests": asked again
    done = prepare(source("open/quays", "quota = 400"), "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    sha = hub.repos["open/quays"].sha
    (entry,) = manifest["sources"]
    assert entry["revision"] == sha
    assert entry["pinned"] is False
    assert f'revision = "{sha}"' in done.stderr
    assert entry["rows"] == entry["survivors"] == len(QUESTIONS)
    asked = {row["question"] for row in QUESTIONS}
    texts = {p["messages"][0]["content"] for p in read_lines(prepare.output)}
    assert texts < asked
    assert len(texts) == 400


def test_streamed_cached_and_named_files_give_the_same_prompts(prepare: Prepare, hub: Hub) -> None:
    sha = hub.repos["open/quays"].sha
    outputs = []
    for more in ("streaming = true", "streaming = false", 'files = ["data/*.parquet"]'):
        recipe = source("open/quays", f'revision = "{sha}"\nquota = 400\n{more}')
        done = prepare(recipe)
        assert done.returncode == 0, done.stderr
        assert "not pinned" not in done.stderr
        outputs.append(prepare.output.read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_stream_that_breaks_off_goes_on_where_it_was(prepare: Prepare, hub: Hub) -> None:
    repo = hub.repos["open/quays"]
    recipe = source("open/quays", f'revision = "{repo.sha}"\nquota = 400')
    assert prepare(recipe).returncode == 0
    whole = prepare.output.read_bytes()
    prepare.output.unlink()
    second = repo.files["data/train-00001.parquet"]
    repo.files["data/train-00001.parquet"] = second[: len(second) // 2] + b"\0" * 400
    try:
        done = prepare(recipe)
    finally:
        repo.files["data/train-00001.parquet"] = second
    assert done.returncode == 1
    assert "breaks off near row" in one_line(done)
    assert not prepare.output.exists()
    done = prepare(recipe)
    assert done.returncode == 0, done.stderr
    assert "4,096 rows were done already" in done.stderr
    assert prepare.output.read_bytes() == whole


def test_a_stream_that_stumbles_is_taken_up_again(prepare: Prepare, hub: Hub) -> None:
    repo = hub.repos["open/quays"]
    recipe = source("open/quays", f'revision = "{repo.sha}"\nquota = 400')
    assert prepare(recipe).returncode == 0
    whole = prepare.output.read_bytes()
    hub.garble = 1
    done = prepare(recipe)
    assert hub.garble == 0, "the file was not read"
    assert done.returncode == 0, done.stderr
    assert prepare.output.read_bytes() == whole


def test_without_network_what_is_cached_works(
    prepare: Prepare, folder: Path, tmp_path: Path, hub: Hub
) -> None:
    recipes = [
        source("open/files", 'files = ["part.jsonl"]'),
        source("open/quays", "streaming = false\nquota = 400"),
    ]
    online = []
    for recipe in recipes:
        assert prepare(recipe).returncode == 0
        online.append(prepare.output.read_bytes())
    nowhere = "http://127.0.0.1:9"
    empty = Prepare(tmp_path, nowhere)
    try:
        for recipe in recipes:
            done = empty(recipe)
            assert done.returncode == 2, done.stderr
            assert "cannot be reached" in one_line(done)
    finally:
        empty.close()
    for endpoint, variables in ((nowhere, {}), (hub.url, {"HF_HUB_OFFLINE": "1"})):
        offline = Prepare(folder, endpoint, **variables)
        try:
            for recipe, expected in zip(recipes, online, strict=True):
                done = offline(recipe)
                assert done.returncode == 0, done.stderr
                assert "using what is cached" in done.stderr
                assert offline.output.read_bytes() == expected
        finally:
            offline.close()
