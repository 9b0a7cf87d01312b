"""The lab as a whole, up to the agent: what it makes, what it refuses, what it leaves."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import boto3
import psutil
import pytest
from botocore.exceptions import EndpointConnectionError

from console import config
from console.lab import container, job, ports, s3
from console.lab.container import Container
from console.lab.errors import LabError
from console.lab.lab import Lab
from console.lab.options import STORY, Known, Options, as_it_was
from tests import disks


async def inside(lab: Lab, *argv: str) -> str:
    """Standard output of a command in the lab's container, the way the console goes."""
    async with await asyncssh.connect("lab", config=[str(lab.target.ssh_config)]) as connection:
        command = " ".join(["pct", "exec", lab.target.hop.name, "--", *argv])
        done = await connection.run(command, stdin=asyncssh.DEVNULL, check=True)
    return str(done.stdout)


async def test_up_and_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is there, nothing of the user's gets in, and at the end nothing is left."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the user's")
    monkeypatch.setenv("HF_TOKEN", "the user's")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    async with Lab(Options(gpus=3, count=20, folder=tmp_path / "lab")) as lab:
        assert config.load(lab.toml).target(None) == lab.target
        spec = lab.target.spec
        assert spec.fleet.flags == STORY
        assert spec.fleet.gpus == 3
        assert len(lab.prompts.read_text().splitlines()) == 20
        env = await inside(lab, "env")
        assert "STOKER_SIMULATED=1" in env
        assert "the user" not in env
        assert "simulated" in await inside(lab, "nvidia-smi")
        assert (lab.container.root / "secrets.env").stat().st_mode & 0o777 == 0o600
        assert (lab.folder / "ssh").stat().st_mode & 0o777 == 0o700
        client = boto3.client(
            "s3",
            endpoint_url=spec.run.s3.endpoint_url,
            aws_access_key_id=s3.KEY_ID,
            aws_secret_access_key=s3.SECRET,
            region_name="us-east-1",
        )
        client.put_object(Bucket=spec.run.s3.bucket, Key="a", Body=bytes(200_000))
        assert client.head_object(Bucket=spec.run.s3.bucket, Key="a")["ContentLength"] == 200_000
        version = "import importlib.metadata as m; print(m.version('sglang'))"
        assert await inside(lab, spec.python, "-c", shlex.quote(version)) == "0.5.12\n"
        await inside(lab, "sh", "-c", "'setsid sleep 300 </dev/null >/dev/null 2>&1 &'")
        started = list(container.processes(lab.folder, 200))
        assert [process.name() for process in started] == ["sleep"]
        services = [service.process.pid for service in lab._services]
    assert not started[0].is_running()
    assert not any(psutil.pid_exists(pid) for pid in services)
    with pytest.raises(EndpointConnectionError):
        client.list_buckets()
    assert lab.toml.exists()


async def test_cut(tmp_path: Path) -> None:
    """Every connection drops at once, what runs goes on, and a new connection works."""
    folder = tmp_path / "a 'lab' for $5"
    async with Lab(Options(gpus=1, count=1, folder=folder, s3=False)) as lab:
        connection = await asyncssh.connect("lab", config=[str(lab.target.ssh_config)])
        process = await connection.create_process("pct exec 200 -- sh -c 'echo $$; sleep 300'")
        pid = int(await process.stdout.readline())
        lab.cut()
        await asyncio.wait_for(connection.wait_closed(), 10)
        assert psutil.pid_exists(pid)
        assert await inside(lab, "echo", "again") == "again\n"
    assert not psutil.pid_exists(pid)


async def test_temporary_folder_goes_with_a_killed_lab() -> None:
    """Nobody else would remove it."""
    async with Lab(Options(gpus=1, count=1, s3=False)) as lab:
        stdin = lab._services[0].process.stdin
        assert stdin is not None
        stdin.close()  # as the end of this process would
        await asyncio.wait_for(asyncio.to_thread(lab._services[0].process.wait), 20)
        assert not lab.folder.exists()


async def test_temporary_folder_goes() -> None:
    """Without --dir nothing stays."""
    async with Lab(Options(gpus=1, count=1, s3=False)) as lab:
        assert lab.target.spec.run.s3.bucket == ""
        folder = lab.folder
    assert not folder.exists()


async def test_same_folder_again(tmp_path: Path) -> None:
    """Keys, ports of the servers and an edited stoker.toml stay; the way there works again."""
    options = Options(gpus=2, count=5, s3=False, folder=tmp_path)
    async with Lab(options) as lab:
        first = lab.target.spec
        keys = (lab.folder / "ssh/id").read_bytes()
    lab.toml.write_text(lab.toml.read_text().replace("max_tokens = 4096", "max_tokens = 512"))
    async with Lab(Options(folder=tmp_path, s3=False)) as lab:
        again = lab.target.spec
        assert (lab.folder / "ssh/id").read_bytes() == keys
        assert (again.run.max_tokens, again.fleet) == (512, first.fleet)
        assert len(lab.prompts.read_text().splitlines()) == 5
        assert await inside(lab, "echo", "there") == "there\n"


async def test_new_dialect(tmp_path: Path) -> None:
    """The flag has another name there, and the user's flags win."""
    options = Options(
        gpus=1, count=1, sglang="0.5.23", folder=tmp_path, s3=False, flags={"context-length": 4096}
    )
    async with Lab(options) as lab:
        flags = lab.target.spec.fleet.flags
    assert flags["mamba-radix-cache-strategy"] == "extra_buffer"
    assert "mamba-scheduler-strategy" not in flags
    assert flags["context-length"] == 4096


async def test_own_prompts(tmp_path: Path) -> None:
    """As they are, as many as wanted."""
    own = tmp_path / "own.jsonl"
    own.write_text("".join(f'{{"messages":[],"n":{n}}}\n' for n in range(10)))
    options = Options(gpus=1, count=3, prompts=own, folder=tmp_path / "lab", s3=False)
    async with Lab(options) as lab:
        assert lab.prompts.read_bytes() == b"".join(own.read_bytes().splitlines(True)[:3])


async def test_refusals(tmp_path: Path) -> None:
    """One line that says what and what to do."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(LabError, match="not empty and no lab"):
        await Lab(Options(folder=tmp_path / "mine")).up()
    for name in ("lab ä", 'lab "x"', "lab %h"):
        with pytest.raises(LabError, match="plain ASCII is needed"):
            await Lab(Options(folder=tmp_path / name)).up()
    missing = Options(folder=tmp_path / "a", prompts=tmp_path / "none.jsonl", s3=False)
    with pytest.raises(LabError, match=r"none\.jsonl: No such file"):
        async with Lab(missing):
            pass
    async with Lab(Options(gpus=1, count=1, folder=tmp_path / "b", s3=False)):
        with pytest.raises(LabError, match="another `stoker lab` is at work"):
            async with Lab(Options(folder=tmp_path / "b", s3=False)):
                pass


async def test_refused_lab_ends_nothing_of_the_one_at_work(tmp_path: Path) -> None:
    """What runs in a folder is ended by the lab that has it."""
    async with Lab(Options(gpus=1, count=1, folder=tmp_path, s3=False)) as lab:
        marks = {"STOKER_LAB": str(lab.folder), "STOKER_CONTAINER": "200"}
        inner = await asyncio.create_subprocess_exec("sleep", "300", env={**os.environ, **marks})
        with pytest.raises(LabError, match="another `stoker lab` is at work"):
            async with Lab(Options(folder=tmp_path, s3=False)):
                pass
        assert inner.returncode is None
        assert await inside(lab, "echo", "there") == "there\n"
    # 255: the lab, in whose process this child was born, was the first to wait for its end.
    assert await asyncio.wait_for(inner.wait(), 10) in (-9, 255)


async def test_dead_service_is_told(tmp_path: Path) -> None:
    """Nothing goes on without it."""
    async with Lab(Options(gpus=1, count=1, folder=tmp_path, s3=False)) as lab:
        lab.check()
        (host,) = (service.process for service in lab._services)
        host.kill()
        await asyncio.to_thread(host.wait)
        with pytest.raises(LabError, match="the lab's host has died: start the lab again"):
            lab.check()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk that is too small for a lab."""
    with disks.small(tmp_path / "small", "size=64k") as folder:
        yield folder


def resize(disk: Path, size: str) -> None:
    """Make it larger."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


async def test_full_disk(small: Path) -> None:
    """One line; with room made the same command works, whatever was half written."""
    options = Options(gpus=1, count=2, s3=False, folder=small / "lab")
    for size in ("64k", "128k"):
        resize(small, size)
        with pytest.raises(LabError, match="No space left on device: mend that, or name another"):
            async with Lab(options):
                pass
    resize(small, "64m")
    async with Lab(options) as lab:
        assert await inside(lab, "echo", "there") == "there\n"


async def test_job_that_breaks_off_is_told(tmp_path: Path) -> None:
    """Beside an open console nobody waits for it."""
    said: list[str] = []
    async with Lab(Options(gpus=1, count=1, folder=tmp_path, s3=False)) as lab:
        await job.go_on(lab, said.append)
    (line,) = said
    assert line.startswith("the lab's job: ")
    assert "stoker deploy" in line


async def test_taken_s3_port(tmp_path: Path) -> None:
    """The port stands in stoker.toml, so another one will not do."""
    async with Lab(Options(gpus=1, count=1, folder=tmp_path)) as lab:
        port = lab.s3_port
    assert port is not None
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    async with server:
        with pytest.raises(LabError, match=f"port {port} of the lab's S3 is taken"):
            async with Lab(Options(folder=tmp_path)):
                pass


async def test_without_moto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab goes on without S3 and says so."""
    monkeypatch.setattr(s3, "installed", lambda: False)
    said: list[str] = []
    async with Lab(Options(gpus=1, count=1, folder=tmp_path), said.append) as lab:
        assert lab.target.spec.run.s3.bucket == ""
    assert said == ["no S3 in this lab: it comes with `stoker[lab]`"]


async def test_killed_lab_takes_all_along(tmp_path: Path) -> None:
    """SIGKILL of the lab ends host, S3 and what ran inside; the next start works."""
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from console.lab.lab import Lab; from console.lab.options import Options\n"
        "async def main():\n"
        "    async with Lab(Options(gpus=1, count=1, s3=False, folder=Path(sys.argv[1]))) as lab:\n"
        "        print(*(s.process.pid for s in lab._services), flush=True)\n"
        "        await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    lab = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert lab.stdout is not None
    line = await lab.stdout.readline()
    services = [psutil.Process(int(pid)) for pid in line.split()]
    marks = {"STOKER_LAB": str(tmp_path), "STOKER_CONTAINER": "200"}
    inner = await asyncio.create_subprocess_exec("sleep", "300", env={**os.environ, **marks})
    lab.kill()
    await lab.wait()
    assert await asyncio.wait_for(inner.wait(), 20) < 0
    _, alive = await asyncio.to_thread(psutil.wait_procs, services, 10)
    assert not alive
    async with Lab(Options(folder=tmp_path, s3=False)) as again:
        assert await inside(again, "true") == ""


def test_free_range() -> None:
    """Ports in a row, none of them taken."""
    base = ports.free_range(8)
    assert all(ports.free(port) for port in range(base, base + 8))


async def test_taken_port_is_seen() -> None:
    """A listener makes its port not free."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        assert not ports.free(server.sockets[0].getsockname()[1])


def soon(wanted: Callable[[], bool]) -> bool:
    """Whether it is so within ten seconds."""
    deadline = time.monotonic() + 10
    while not wanted() and time.monotonic() < deadline:
        time.sleep(0.01)
    return wanted()


def test_processes_of_a_container(tmp_path: Path) -> None:
    """Found by their environment, frozen and thawed, and killed when the container stops."""
    inside = Container(tmp_path)
    inside.create()
    marks = {"STOKER_LAB": str(tmp_path), "STOKER_CONTAINER": "200"}
    child = subprocess.Popen(["sleep", "300"], env={**os.environ, **marks})
    other = subprocess.Popen(["sleep", "300"], env={**os.environ, **marks, "STOKER_LAB": "/other"})
    try:
        assert [process.pid for process in container.processes(tmp_path)] == [child.pid]
        inside.freeze()
        assert soon(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
        inside.thaw()
        assert soon(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING)
        inside.stop()
        assert child.wait(10) == -9
        assert other.poll() is None
    finally:
        child.kill()
        other.kill()
        child.wait()
        other.wait()


def test_damaged_memory(tmp_path: Path) -> None:
    """A damaged lab.json is as good as none."""
    lab = Lab(Options(folder=tmp_path))
    lab.folder = tmp_path
    (tmp_path / "lab.json").write_text("{")
    assert lab._known() == Known()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(gpus=4), "of 2 GPUs and SGLang 0.5.23: name another --dir for --gpus 4"),
        (Options(flags={"context-length": 1}), "change [fleet.flags] in its stoker.toml"),
    ],
)
def test_another_lab_in_the_same_folder(options: Options, text: str) -> None:
    """What an existing stoker.toml says is not silently something else."""
    known = Known(gpus=2, sglang="0.5.23")
    with pytest.raises(LabError, match=re.escape(text)):
        as_it_was(options, known, Path("lab"))
    assert as_it_was(Options(), known, Path("lab")).gpus == 2
    assert as_it_was(Options(gpus=2), known, Path("lab")).sglang == "0.5.23"
