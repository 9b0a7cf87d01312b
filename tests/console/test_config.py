"""stoker.toml as operators write it, and as they get it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.config import ConfigError, Hop, find, load

GOOD = """
default = "ct200"

[targets.ct200]
ssh = "root@10.1.2.6"
hop = { pct = 200 }
workspace = "/workspace"
python = "/root/venv/bin/python"
agent_python = ""

[targets.near]
workspace = "/workspace"
[targets.near.fleet]
gpus = 2
[targets.near.fleet.flags]
mem-fraction-static = 0.85

[fleet]
model = "Qwen/Qwen3.6-27B"
gpus = 8
[fleet.flags]
mamba-scheduler-strategy = "no_buffer"
mem-fraction-static = 0.90
enable-metrics = true

[run]
concurrency = "auto"
hedge = true
delete_uploaded = true
[run.policy]
looped = "retry:2"
empty = "keep"
[run.s3]
bucket = "b"

[alerts]
eta_hours_over = 48
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "stoker.toml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    settings = load(write(tmp_path, GOOD))
    target = settings.target(None)
    assert (target.name, target.ssh, target.hop) == ("ct200", "root@10.1.2.6", Hop("pct", "200"))
    assert target.spec.fleet.flags["mem-fraction-static"] == 0.90
    assert target.spec.run.s3.bucket == "b"
    assert target.spec.run.policy == {"looped": "retry:2", "empty": "keep"}
    assert (target.spec.run.hedge, target.spec.run.delete_uploaded) == (True, True)
    assert target.spec.alerts.eta_hours_over == 48
    near = settings.target("near").spec
    assert near.fleet.gpus == 2
    assert near.fleet.model == "Qwen/Qwen3.6-27B"
    assert near.fleet.flags == {
        "mamba-scheduler-strategy": "no_buffer",
        "mem-fraction-static": 0.85,
        "enable-metrics": True,
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("workspace =", "workspce ="),
            ":7: targets.ct200.workspce: unknown key (did you mean 'workspace'?)",
        ),
        (("[alerts]", "[alert]"), ":36: alert: unknown key (did you mean 'alerts'?)"),
        (
            ("eta_hours_over", "eta_hour_over"),
            ":37: alerts.eta_hour_over: unknown key (did you mean 'eta_hours_over'?)",
        ),
        (("= 48", "= -1"), ":37: alerts.eta_hours_over = -1.0: hours above 0"),
        (("gpus = 2", "gpu = 2"), ":14: targets.near.fleet.gpu: unknown key"),
        (("gpus = 2", "gpus = 65"), ":14: targets.near.fleet.gpus = 65: 1 to 64"),
        (("gpus = 2", "drain_seconds = nan"), ":14: targets.near.fleet.drain_seconds = nan: sec"),
        (("[fleet.flags]", "[fleet.flags]\nx = inf"), ":22: fleet.flags.x = inf: a finite"),
        (("0.85", "18446744073709551616"), ":16: targets.near.fleet.flags.mem-fraction-static ="),
        (("hedge = true", "params = { a = [nan] }"), ":28: run.params.a = nan: a finite number"),
        (("hedge = true", "max_tokens = 99999999999"), ":28: run.max_tokens = 99999999999: 1 to"),
        (("[alerts]", "[[alerts]]"), ":36: alerts: a table is needed"),
        (("bucket =", "buckets ="), ":34: run.s3.buckets: unknown key (did you mean 'bucket'?)"),
        (("gpus = 8", 'gpus = "8"'), ":20: fleet.gpus: expected int, got str"),
        (("gpus = 8", "gpus = 0"), ":20: fleet.gpus = 0: 1 to 64"),
        (("pct = 200", 'pct = "x"'), ":6: targets.ct200.hop.pct: the container's id"),
        (("[targets.near]", "[targets.status]"), "is a verb"),
        (
            ('default = "ct200"', 'default = "ct20"'),
            ":2: default = 'ct20': names no target (did you mean 'ct200'?)",
        ),
        (("mem-fraction-static = 0.90", "--mem-fraction-static = 0.90"), "without dashes"),
        (('default = "ct200"', 'default = ["ct200"]'), "= ['ct200']: names no target"),
        (('"/workspace"', '"workspace"'), "an absolute path"),
        (('"/workspace"', '"/wörk"'), "targets.ct200.workspace: plain ASCII"),
        (('agent_python = ""', 'agent_python = "/é/python"'), "agent_python: plain ASCII"),
        (("pct = 200", 'docker = "é"'), "hop.docker: plain ASCII"),
        (("hop = {", "hop = "), "not valid TOML"),
        (
            ("looped =", "loops ="),
            ":31: run.policy.loops: the outcomes of an answer are ok, length",
        ),
        (("looped =", "failed ="), "run.policy.failed: the outcomes of an answer are ok"),
        (("retry:2", "retry"), ":31: run.policy.looped = 'retry': keep, set-aside or retry:N"),
        (('"retry:2"', "2"), ":30: run.policy: expected str, got int"),
        (("hedge = true", "hedge = 1"), ":28: run.hedge: expected bool, got int"),
        (('bucket = "b"', ""), "delete_uploaded: nothing is uploaded without"),
        (('concurrency = "auto"', "concurrency = 0"), 'run.concurrency = 0: "auto" or a'),
        (('concurrency = "auto"', "retries = -1"), "run.retries = -1: 0 to"),
        (('concurrency = "auto"', "temperature = nan"), "run.temperature = nan: a number"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    path = write(tmp_path, GOOD.replace(*change))
    with pytest.raises(ConfigError) as caught:
        load(path)
    text = str(caught.value)
    assert expected in text
    assert text.startswith(f"{path}:")
    assert "\n" not in text


def test_which_target(tmp_path: Path) -> None:
    settings = load(write(tmp_path, GOOD.replace('default = "ct200"', "")))
    with pytest.raises(ConfigError, match="several targets"):
        settings.target(None)
    with pytest.raises(ConfigError, match=r"no target 'ct2O0' \(did you mean 'ct200'\?\)"):
        settings.target("ct2O0")


def test_where_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "conf")}
    with pytest.raises(ConfigError, match="stoker lab"):
        find(None, environ)
    user = tmp_path / "conf/stoker/stoker.toml"
    user.parent.mkdir(parents=True)
    user.write_text(GOOD)
    assert find(None, environ) == user
    here = write(tmp_path, GOOD)
    assert find(None, environ).resolve() == here
    with pytest.raises(ConfigError, match="no such configuration file"):
        find(None, {**environ, "STOKER_CONFIG": str(tmp_path / "nope.toml")})


def test_a_command_line_names_the_file_that_another_shell_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "my files"
    here.mkdir()
    monkeypatch.chdir(write(here, GOOD).parent)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "conf"))
    target = load(Path("stoker.toml")).target("near")
    assert target.command("deploy") == f"stoker deploy near --config '{here}/stoker.toml'"
    user = tmp_path / "conf/stoker/stoker.toml"
    user.parent.mkdir(parents=True)
    user.write_text(GOOD)
    assert load(user).target("near").command("deploy") == "stoker deploy near"
