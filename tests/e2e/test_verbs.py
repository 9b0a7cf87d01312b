"""Each verb of the command line, as a command, against a lab."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from console.lab.lab import Lab
from tests.e2e import play


class Shell:
    """``stoker`` as a command, on the lab's configuration."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    async def __call__(self, *words: str, status: int = 0, timeout: float = 90) -> str:
        """What it printed; the exit status must be the one expected."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "console.cli", *words, "--config", str(self.lab.toml)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout)
        assert process.returncode == status, (words, process.returncode, out, err)
        if status:
            assert err.count(b"\n") <= 1, err
        return (out + err if status else out).decode()

    async def document(self, *words: str, status: int = 0) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(await self(*words, "--json", status=status))


@pytest.mark.timeout(400)
async def test_the_verbs(tmp_path: Path) -> None:
    async with play.lab(tmp_path, count=3000, speed=40) as lab, play.watched(lab) as watch:
        stoker = Shell(lab)
        assert "current" in await stoker("deploy")
        await watch.completed(30)

        seen = await stoker.document("status")
        assert seen["connected"] is True
        assert seen["run"]["status"] == "running"
        assert [server["state"] for server in seen["servers"]] == ["ready", "ready"]
        assert seen["servers"][0]["max_running"] == 37
        assert seen["servers"][0]["lights"] == {"process": True, "http": True, "tokens": True}
        assert seen["batches"]["records"] >= 30
        assert seen["disagreements"] == []
        assert "ready" in await stoker("status")

        await plans(stoker)
        await logs_and_refusals(stoker)

        await stoker("run", "pause")
        await watch.until(
            lambda s: s.progress is not None and s.progress.status == "paused", 30, "paused"
        )
        await stoker("run", "resume")
        await watch.until(
            lambda s: s.progress is not None and s.progress.status == "running", 30, "running"
        )
        said = await stoker("run", "start", status=1)
        assert "at work already" in said
        await stoker("run", "stop")
        await watch.until(lambda s: not s.run.alive, 60, "the run's end")
        assert watch.progress.status == "stopped"
        said = await stoker("verify", str(lab.run))
        assert said.endswith("clean\n")
        before = watch.progress.completed

        said = await stoker("run", "start", "--prompts", str(lab.prompts))
        assert f"{before} done" in said
        await watch.completed(before + 20)
        said = await stoker("restart", "--set", "mem-fraction-static=0.9", "--yes", "--gpu", "1")
        assert "swap done" in said
        assert watch.state.infos[1].max_running == 43
        said = await stoker("rollback", "--dry-run")
        assert said.startswith("GPU 1: mem-fraction-static 0.90 → 0.85")
        assert "cost: " in said
        assert "GPU 0 has these flags already: it goes on" in said
        kept = watch.state.infos[0].pid
        assert "--yes" in await stoker("rollback", status=2)
        assert watch.state.infos[1].max_running == 43
        said = await stoker("rollback", "--yes", timeout=120)
        assert said.index("mem-fraction-static 0.90 → 0.85") < said.index("swap done")
        await watch.until(lambda s: s.infos[1].max_running == 37, 20, "37 slots again")
        assert watch.state.infos[0].pid == kept
        await stoker("run", "stop")
        await watch.until(lambda s: not s.run.alive, 60, "the run's end")
        await stoker("down", "--yes", timeout=120)
        assert "no server is up" in await stoker("run", "start", status=1)
        await misspelt_flag(stoker, watch)
        assert watch.fell == []
        assert play.clean(lab, s3=False).completed == watch.progress.completed


async def plans(stoker: Shell) -> None:
    """What is advised, and what a restart would do; nothing is done."""
    advice = await stoker.document("advise")
    assert advice["diagnosis"][0]["bound_by"] == "state slots"
    plan = await stoker.document(
        "restart", "--set", "mamba-scheduler-strategy=no_buffer", "--dry-run"
    )
    assert plan["predicted_max_running"] == 62
    assert any("no_buffer" in line for line in plan["diff"])
    said = await stoker("restart", "--set", "mamba-scheduler-strategy=no_buffer", "--dry-run")
    assert "predicted: 37 → 62 running requests a server, bound by state slots" in said
    assert " KV tokens, 186 → 186 state slots" in said
    assert " GiB of pools, " in said
    said = await stoker("restart", "--set", "mem-fraction-statc=0.9", "--dry-run", status=2)
    assert "mem-fraction-static" in said
    said = await stoker("restart", "--set", "mem-fraction-static=0.9", status=2)
    assert "--yes" in said


async def logs_and_refusals(stoker: Shell) -> None:
    """Logs, and what cannot be meant."""
    assert "Decode batch" in await stoker("logs", "0", "-n", "50")
    assert "fired up" in await stoker("logs", "1", "--grep", "fired up")
    assert "Starting generation" in await stoker("logs", "run", "--grep", "Starting")
    assert "no log called 'gpu9'" in await stoker("logs", "9", status=2)
    assert "grep '(?u)a'" in await stoker("logs", "0", "--grep", "(?u)a", status=2)
    assert "no GPU 12: 0 to 1" in await stoker("up", "--gpu", "12", status=2)
    assert "no GPU 12: 0 to 1" in await stoker("down", "--gpu", "12", "--yes", status=2)
    said = await stoker("rollback", "--epoch", "77", status=2)
    assert "stoker rollback: there is no epoch 77; there is: 1" in said
    assert "no swap is under way" in await stoker("confirm", "--yes", status=1)


async def misspelt_flag(stoker: Shell, watch: play.Watch) -> None:
    """It is told by whatever would use it, before anything is done."""
    toml = stoker.lab.toml
    sound = toml.read_text()
    toml.write_text(sound.replace("mem-fraction-static", "mem-fraction-statc"))
    epochs = [epoch.id for epoch in watch.state.epochs]
    text = "has no flag mem-fraction-statc; did you mean mem-fraction-static?"
    said = await stoker("up", status=2)
    assert said.startswith(f"stoker up: {toml}: fleet.flags: SGLang 0.5.12 {text}")
    assert text in (await stoker.document("status", status=1))["alerts"][-1]["text"]
    assert f"{text}" in await stoker("status", status=1)
    assert [epoch.id for epoch in watch.state.epochs] == epochs
    toml.write_text(sound)


async def test_unreachable_is_said_in_json_too(tmp_path: Path) -> None:
    toml = tmp_path / "stoker.toml"
    toml.write_text('[targets.x]\nssh = "root@127.0.0.1"\nssh_config = "c"\nworkspace = "/w"\n')
    (tmp_path / "c").write_text("Host *\n  Port 1\n  IdentityFile none\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "console.cli", "status", "--json", "--config", str(toml)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 3
    assert json.loads(out)["connected"] is False
