"""What a bug report wants to know of the machine, of this very one."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from pathlib import Path

import pytest

from remote import kernel_log
from remote.agent import machine
from remote.paths import Workspace
from remote.protocol import LogPart, ReadLog, ReadMachine
from tests.remote.agent.conftest import Agent, Link

SMI = """#!/bin/sh
case "$*" in
-q) echo 'Driver Version : 580.95.05'; echo "key $HF_TOKEN sk-abcdefghijklmnop12345";;
*query-gpu*) echo '580.95.05, NVIDIA X, 9.0'; echo 'Unable to determine the device'
    echo '580.95.05, NVIDIA X, 9.0';;
topo*) echo 'topo is not known here' >&2; exit 3;;
*) sleep 0; echo table;;
esac
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A path with a driver's tool on it, and no toolkit."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    return {"PATH": f"{smi.parent}:/usr/bin:/bin", "HF_TOKEN": "t0ps3cret", "HOME": "/h"}


async def test_all_that_can_be_had_and_why_the_rest_cannot(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real commands, a real Python; secrets are gone before anything travels."""
    monkeypatch.setenv(kernel_log.ENVIRON, str(tmp_path / "none"))
    holder = await asyncio.create_subprocess_exec(
        "sleep", "60", env={"NCCL_DEBUG": "INFO", "HF_TOKEN": "t0ps3cret", "MINE": "no"}
    )
    try:
        await asyncio.sleep(0.2)
        found = await machine.look(sys.executable, env, [holder.pid])
    finally:
        holder.kill()
        await holder.wait()
    assert found.facts["CUDA driver version"] == "580.95.05"
    assert found.facts["cards"] == "2 × NVIDIA X, compute 9.0"
    assert found.facts["Python executable"] == sys.executable
    assert found.facts["kernel"].startswith(f"Linux {platform.release()}")
    assert found.facts["psutil"], "a package that this Python has"
    assert found.missing["sglang version"] == f"{sys.executable} has none"
    assert found.missing["NVCC"] == "`nvcc --version`: not installed here"
    assert found.missing["nvidia-smi-topo.txt"] == (
        "`nvidia-smi topo -m` ended with 3: topo is not known here"
    )
    assert str(tmp_path / "none") in found.missing["kernel.log"]
    assert "dmesg" in found.missing["kernel.log"]
    assert "Driver Version : 580.95.05" in found.texts["nvidia-smi-q.txt"]
    assert "NCCL_DEBUG=INFO" in found.texts["environment.txt"]
    assert "HF_TOKEN=‹removed›" in found.texts["environment.txt"]
    assert "MINE" not in found.texts["environment.txt"]
    whole = str(found)
    assert "sk-abc" not in whole
    assert "t0ps3cret" not in found.texts["environment.txt"]


async def test_a_command_that_hangs_holds_up_no_search(
    agent: Agent, workspace: Workspace, tmp_path: Path
) -> None:
    """A driver in trouble is when logs are searched."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text('#!/bin/sh\ncase "$*" in topo*) sleep 12;; esac\n')
    smi.chmod(0o755)
    agent.start(PATH=f"{smi.parent}:{os.environ['PATH']}")
    socket = await agent.ready()
    looks, searches = await Link.open(socket), await Link.open(socket)
    looking = asyncio.create_task(looks.ask(ReadMachine()))
    await asyncio.sleep(1.0)
    found = await searches.ask(ReadLog("agent", grep="started"))
    assert isinstance(found, LogPart)
    assert not looking.done()
    looking.cancel()
    looks.close()
    searches.close()


async def test_nothing_there_is_said_too(tmp_path: Path) -> None:
    """No Python named, no driver, no server."""
    found = await machine.look("", {"PATH": str(tmp_path)}, [])
    assert found.missing["python, torch and sglang versions"].startswith("this target names no")
    assert found.missing["nvidia-smi-q.txt"] == "`nvidia-smi -q`: not installed here"
    assert "environment of a running server" in found.missing
    none = await machine.look("/no/such/python", {"PATH": str(tmp_path)}, [])
    assert none.missing["python, torch and sglang versions"] == (
        "/no/such/python: not installed here"
    )


def test_the_kernel_log_tells_of_cards_memory_and_faults(tmp_path: Path) -> None:
    """With times; of other things not, and of a hostile line nothing that moves a cursor."""
    path = tmp_path / "kmsg"
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    texts = [
        "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.",
        "usb 1-1: new device",
        "Out of memory: Killed process 77 (python)",
        "nvidia \x1b[2J here",
    ]
    path.write_text("".join(f"4,{n},{int((now - 60) * 1e6)},-;{t}\n" for n, t in enumerate(texts)))
    lines, why = kernel_log.lately(path=str(path))
    assert why == ""
    assert [line.split(" ", 1)[1][:8] for line in lines] == ["NVRM: Xi", "Out of m", "nvidia  "]
    stamp = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() - 60))
    assert lines[0].startswith(stamp) or abs(time.time() % 60) < 2
    assert kernel_log.lately(most=1, path=str(path))[0] == lines[-1:]
    missing, why = kernel_log.lately(path=str(tmp_path / "none"))
    assert missing == []
    assert "No such file" in why
    assert os.fspath(tmp_path / "none") in why
