"""A cold kernel cache: one server goes ahead, the others follow."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec

from remote.fleet.kernels import is_cold
from remote.protocol import TargetSpec
from tests.remote.fleet.conftest import Site
from tests.waiting import until


def compiler(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    nvcc = folder / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    return folder


def cold(site: Site, **flags: object) -> TargetSpec:
    """A spec whose env script makes kernels be compiled, into a home that is empty yet."""
    (site.root / "home").mkdir()
    binaries = compiler(site.root / "bin")
    script = site.root / "env.sh"
    script.write_text(
        f"unset TVM_FFI_CACHE_DIR\nHOME={site.root / 'home'}\nPATH={binaries}:$PATH\n"
    )
    return msgspec.structs.replace(site.spec(**flags), env_script=str(script))  # type: ignore[arg-type]


def test_when_it_is_cold(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": "", "CUDA_HOME": str(tmp_path / "none")}
    assert not is_cold(env), "without a compiler nobody waits"
    env["PATH"] = str(compiler(tmp_path / "bin"))
    assert is_cold(env)
    built = home / ".cache" / "flashinfer" / "0.6" / "120a" / "cached_ops"
    built.mkdir(parents=True)
    assert is_cold(env), "an empty folder holds no kernel"
    (built / "kernel.so").touch()
    assert not is_cold(env)
    assert is_cold({**env, "HOME": str(tmp_path)})


async def test_one_goes_ahead_and_the_other_follows(site: Site) -> None:
    spec = cold(site, fake_load=0.8)
    fleet = site.fleet(spec)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await until(lambda: "waits for GPU 0" in fleet.states()[1].phase)
    assert fleet.states()[1].state == "stopped"
    assert fleet.states()[0].state in ("starting", "warming")
    await site.all_are(fleet, "ready")
    first, second = fleet.server(0), fleet.server(1)
    assert first.ready is not None
    assert second.launch is not None
    assert second.launch.asked >= first.ready.at - 0.5
    assert site.events.texts("fleet.environment") == [f"{spec.env_script} sets HOME, PATH"]


async def test_nobody_follows_one_that_fails(site: Site) -> None:
    spec = cold(site, fake_die="weights")
    fleet = site.fleet(spec)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await until(lambda: any("not started" in t for t in site.events.texts("fleet.cold")))
    assert fleet.server(1).launch is None


async def test_one_that_is_stopped_while_it_waits_is_not_started(site: Site) -> None:
    spec = cold(site, fake_load=1.0)
    fleet = site.fleet(spec)
    await fleet.up(None, epoch=site.epoch(spec), who="ann")
    await until(lambda: "waits for GPU 0" in fleet.states()[1].phase)
    await fleet.down([1], who="ann")
    assert fleet.states()[1].phase == ""
    await until(lambda: fleet.states()[0].state == "ready")
    await asyncio.sleep(0.5)
    assert fleet.server(1).launch is None
    assert fleet.states()[1].state == "stopped"
    # It is not called off for ever.
    await fleet.up([1], epoch=site.epoch(spec), who="ann")
    await site.all_are(fleet, "ready")


async def test_after_a_reboot_one_goes_ahead_too(site: Site) -> None:
    spec = cold(site, fake_load=0.8)
    fleet = await site.ready(spec)
    mains = [fleet.server(gpu).main for gpu in (0, 1)]
    await site.close(fleet)
    for main in mains:
        assert main is not None
        os.kill(main.pid, signal.SIGKILL)
    await until(lambda: not any(main.alive for main in mains if main is not None))
    other = site.fleet(spec)
    await other.adopt()
    await site.all_are(other, "ready")
    first, second = sorted(
        map(other.server, (0, 1)), key=lambda s: s.launch.asked if s.launch else 0
    )
    assert first.ready is not None
    assert second.launch is not None
    assert second.launch.asked >= first.ready.at - 0.5
