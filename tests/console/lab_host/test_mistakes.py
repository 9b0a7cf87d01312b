"""Mistakes as an operator meets them: one line that says what and what to do."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from console.lab.lab import Lab
from console.lab.options import Options
from console.lab.ports import free_range

STOKER = Path(sys.executable).with_name("stoker")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab that only serves: nothing is deployed in it."""
    here = Lab(Options(gpus=1, count=2, s3=False, folder=tmp_path_factory.mktemp("lab")))
    asyncio.run(here.up())
    yield here
    asyncio.run(here.down())


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    status: int
    line: str


def stoker(folder: Path, *words: str) -> Said:
    """Run the command in a folder; whatever happens it prints one line and no traceback."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STOKER_", "XDG_"))}
    done = subprocess.run(
        [STOKER, *words],
        cwd=folder,
        env={**env, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"stoker {words[0]}")
    return Said(done.returncode, done.stderr)


@pytest.fixture
def settings(lab: Lab, tmp_path: Path) -> Path:
    """A folder with the lab's ``stoker.toml`` and client configuration, to be spoiled."""
    shutil.copy(lab.toml, tmp_path)
    shutil.copytree(lab.folder / "ssh", tmp_path / "ssh")
    config = tmp_path / "ssh/config"
    config.write_text(config.read_text().replace(str(lab.folder), str(tmp_path)))
    return tmp_path


def edit(path: Path, pattern: str, text: str) -> None:
    """Replace what is there in a file."""
    found, count = re.subn(pattern, lambda _: text, path.read_text())
    assert count
    path.write_text(found)


def wrong_key(folder: Path) -> None:
    (folder / "ssh/id").unlink()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "ssh/id"], check=True
    )


def unknown_host_key(folder: Path) -> None:
    (folder / "ssh/known_hosts").write_text("")


def another_host_key(folder: Path) -> None:
    key = (folder / "ssh/id.pub").read_text().split()[1]
    edit(folder / "ssh/known_hosts", r"AAAA\S+", key)


def nobody_listens(folder: Path) -> None:
    edit(folder / "ssh/config", r"Port \d+", f"Port {free_range(1)}")


def wrong_container(folder: Path) -> None:
    edit(folder / "stoker.toml", r"pct = 200", "pct = 201")


def no_python(folder: Path) -> None:
    edit(folder / "stoker.toml", r"agent_python = .*", 'agent_python = "/opt/none/bin/python"')


def no_workspace(folder: Path) -> None:
    edit(folder / "stoker.toml", r"workspace = .*", 'workspace = "/no/such/workspace"')


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (wrong_key, r"(?i)key.*refused|refused.*key|permission denied"),
        (unknown_host_key, r"(?i)unknown.*SHA256:|SHA256:.*unknown|not known"),
        (another_host_key, r"(?i)changed"),
        (nobody_listens, r"refuses connections"),
        (wrong_container, "no container 201"),
        (no_python, r"/opt/none/bin/python"),
    ],
)
def test_way_is_barred(settings: Path, spoil: Callable[[Path], None], says: str) -> None:
    """What stands between the laptop and the agent."""
    spoil(settings)
    said = stoker(settings, "up")
    assert re.search(says, said.line), said.line
    assert said.status == 3


def test_missing_workspace(settings: Path) -> None:
    """Nothing is created where nobody expects it."""
    no_workspace(settings)
    assert "/no/such/workspace does not exist" in stoker(settings, "deploy").line


def test_stopped_container(lab: Lab, settings: Path) -> None:
    """It says how to start it."""
    lab.container.set_state("stopped")
    try:
        said = stoker(settings, "up")
    finally:
        lab.container.set_state("running")
    assert "pct start 200" in said.line
    assert said.status == 3


def test_nothing_deployed(settings: Path) -> None:
    """A verb that needs the agent says how to get one."""
    said = stoker(settings, "up")
    assert "stoker deploy" in said.line
    assert said.status == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such prompts file"),
        ('{"messages":[{}]}\n{"messages":\n', "p.jsonl:2: not JSON"),
        ('{"messages":[{}]}\n{"prompt":""}\n', "p.jsonl:2: a JSON object with `messages`"),
        ("", "no prompts in it"),
    ],
)
def test_prompts_file(settings: Path, text: str | None, says: str) -> None:
    """Looked at before it travels."""
    if text is not None:
        (settings / "p.jsonl").write_text(text)
    said = stoker(settings, "run", "start", "--prompts", "p.jsonl")
    assert says in said.line
    assert said.status == 2


def test_no_configuration(tmp_path: Path) -> None:
    """It names what would make one."""
    said = stoker(tmp_path, "status")
    assert "stoker init" in said.line
    assert said.status == 2


def test_unknown_target(settings: Path) -> None:
    """It names those there are."""
    said = stoker(settings, "status", "ct201")
    assert "did you mean 'ct200'" in said.line
    assert said.status == 2


def test_lab_in_a_folder_with_something_in_the_way(tmp_path: Path) -> None:
    """A lab's folder where a file stands for one of its own."""
    (tmp_path / "mine").mkdir()
    for name in ("lab.lock", "ct"):
        (tmp_path / "mine" / name).touch()
    said = stoker(tmp_path, "lab", "--serve", "--dir", "mine")
    assert re.search(r"/mine/ct\S*: .*: mend that, or name another --dir", said.line)
    assert said.status == 2


def test_speed_that_is_no_number(tmp_path: Path) -> None:
    """No server would ever be up."""
    said = stoker(tmp_path, "lab", "--headless", "--speed", "nan")
    assert "stoker lab: --speed: 'nan': a number above 0" in said.line
    assert said.status == 2


def test_lab_of_a_busy_folder(lab: Lab, tmp_path: Path) -> None:
    """One lab a folder."""
    said = stoker(tmp_path, "lab", "--serve", "--dir", str(lab.folder))
    assert "another `stoker lab` is at work there" in said.line
    assert said.status == 2
