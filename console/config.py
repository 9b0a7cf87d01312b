"""``stoker.toml`` → typed settings.

Found by ``--config``, else ``$STOKER_CONFIG``, else ``./stoker.toml``, else ``stoker/stoker.toml``
in the user's configuration folder. Mistakes are one line that names the file, the place and, for
an unknown key, the nearest known one.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, get_args

import msgspec

from remote.protocol import ANSWERED, POLICY, AlertSpec, FleetSpec, RunSpec, S3Spec, TargetSpec

T = TypeVar("T", bound=msgspec.Struct)

VERBS = (
    "lab",
    "status",
    "deploy",
    "up",
    "down",
    "restart",
    "rollback",
    "confirm",
    "run",
    "logs",
    "prepare",
    "verify",
    "doctor",
    "advise",
    "tune",
    "replay",
    "serve",
    "export",
    "init",
)
"""Words that no target may be called, since ``stoker NAME`` opens the console on a target."""

HopKind = Literal["pct", "docker", "podman", "incus", "none"]
_HOPS = tuple(kind for kind in get_args(HopKind) if kind != "none")
_TOP = ("default", "targets", "fleet", "run", "alerts")
_TARGET = (
    "ssh",
    "ssh_config",
    "hop",
    "sudo",
    "workspace",
    "python",
    "agent_python",
    "env_script",
    "credentials_file",
    "read_only",
    "fleet",
    "run",
    "alerts",
)


class ConfigError(Exception):
    """One line: what is wrong in which file, and what to do."""


@dataclass(frozen=True)
class Hop:
    """How a command gets from the machine that SSH reaches into the container."""

    kind: HopKind = "none"
    name: str = ""
    sudo: bool = False


@dataclass(frozen=True)
class Target:
    """One workspace on one container, and the way there.

    ``ssh`` is empty for this very machine. Where ``ssh_config`` is set, that OpenSSH client
    configuration is the only one read; else the user's own is.
    """

    name: str
    ssh: str
    spec: TargetSpec
    ssh_config: Path | None = None
    hop: Hop = field(default_factory=Hop)
    agent_python: str = ""
    read_only: bool = False


@dataclass(frozen=True)
class Settings:
    """All of one ``stoker.toml``."""

    path: Path
    targets: dict[str, Target]
    default: str | None = None

    def first(self, name: str | None) -> str | None:
        """The target that a console opens on; None where it shows all of them. Raises ConfigError
        for a name that is none."""
        if name is None and self.default is None and len(self.targets) > 1:
            return None
        return self.target(name).name

    def target(self, name: str | None) -> Target:
        """The named target, or the default, or the only one; ConfigError says which there are."""
        if name is None:
            name = self.default or (next(iter(self.targets)) if len(self.targets) == 1 else None)
        known = ", ".join(self.targets)
        if name is None:
            raise ConfigError(f"{self.path}: several targets ({known}): name one, or set `default`")
        if name not in self.targets:
            near = _nearest(name, [*self.targets, *VERBS])
            raise ConfigError(f"{self.path}: no target {name!r}{near}; there is: {known}")
        return self.targets[name]


def find(explicit: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The configuration file to read. Raises ConfigError when there is none."""
    if explicit or environ.get("STOKER_CONFIG"):
        path = Path(explicit or environ["STOKER_CONFIG"]).expanduser()
        if not path.is_file():
            raise ConfigError(f"{path}: no such configuration file")
        return path
    user = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "stoker/stoker.toml"
    for path in (Path("stoker.toml"), user):
        if path.is_file():
            return path
    raise ConfigError(
        f"no stoker.toml here and none at {user}: `stoker init` writes a first one, "
        "--config names another, `stoker lab` needs none"
    )


def load(path: Path) -> Settings:
    """Read and check a whole file. Raises ConfigError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    try:
        return _settings(path, data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _settings(path: Path, data: dict[str, Any]) -> Settings:
    _known("", data, _TOP)
    tables = _table("targets", data.get("targets", {}))
    if not tables:
        raise ConfigError("no [targets.NAME] table: say where to connect to")
    targets = {name: _target(path, name, data, table) for name, table in tables.items()}
    default = data.get("default")
    if default is not None and default not in [*targets]:  # whatever it is, a list say
        raise ConfigError(f"default = {default!r} names no target{_nearest(str(default), targets)}")
    return Settings(path=path, targets=targets, default=default)


def _target(path: Path, name: str, data: dict[str, Any], raw: object) -> Target:
    where = f"targets.{name}"
    if name in VERBS:
        raise ConfigError(f"[{where}]: `stoker {name}` is a verb, so a target may not be called so")
    table = _table(where, raw)
    _known(where, table, _TARGET)
    workspace = _ascii(where, table, "workspace")
    if not PurePosixPath(workspace).is_absolute():
        raise ConfigError(f"{where}.workspace: an absolute path on the container is needed")
    spec = TargetSpec(
        name=name,
        workspace=workspace,
        python=_ascii(where, table, "python"),
        env_script=_ascii(where, table, "env_script"),
        credentials_file=_ascii(where, table, "credentials_file"),
        fleet=_section(f"{where}.fleet", FleetSpec, data.get("fleet"), table.get("fleet")),
        run=_section(f"{where}.run", RunSpec, data.get("run"), table.get("run")),
        alerts=_section(f"{where}.alerts", AlertSpec, data.get("alerts"), table.get("alerts")),
    )
    _check(where, spec)
    ssh_config = _text(where, table, "ssh_config")
    own = path.parent / Path(ssh_config).expanduser() if ssh_config else None
    if own is not None and not own.is_file():
        raise ConfigError(f"{where}.ssh_config: {own}: no such file")
    return Target(
        name=name,
        ssh=_text(where, table, "ssh"),
        ssh_config=own,
        hop=_hop(where, table),
        agent_python=_ascii(where, table, "agent_python"),
        read_only=_flag(where, table, "read_only"),
        spec=spec,
    )


def _check(where: str, spec: TargetSpec) -> None:
    if not 1 <= spec.fleet.gpus <= 64:
        raise ConfigError(f"{where}.fleet.gpus = {spec.fleet.gpus}: 1 to 64 are possible")
    if not 1024 <= spec.fleet.base_port <= 65535 - spec.fleet.gpus:
        raise ConfigError(f"{where}.fleet.base_port = {spec.fleet.base_port}: 1024 to 65535")
    _check_run(f"{where}.run", spec.run)
    for flag in spec.fleet.flags:
        if flag.startswith("-"):
            raise ConfigError(f"{where}.fleet.flags: write {flag.lstrip('-')!r}, without dashes")


def _check_run(where: str, run: RunSpec) -> None:
    if isinstance(run.concurrency, int) and run.concurrency < 1:
        raise ConfigError(f'{where}.concurrency: "auto" or a number from 1 on')
    if run.max_tokens < 1:
        raise ConfigError(f"{where}.max_tokens = {run.max_tokens}: from 1 on")
    if run.retries < 0:
        raise ConfigError(f"{where}.retries = {run.retries}: 0 or more")
    if run.temperature is not None and not 0 <= run.temperature < math.inf:
        raise ConfigError(f"{where}.temperature = {run.temperature}: a number from 0 on")
    for outcome, action in run.policy.items():
        if outcome not in ANSWERED:
            known = ", ".join(ANSWERED)
            raise ConfigError(f"{where}.policy.{outcome}: the outcomes of an answer are {known}")
        if not POLICY.fullmatch(action):
            raise ConfigError(
                f"{where}.policy.{outcome} = {action!r}: keep, set-aside or retry:N (1 to 99)"
            )
    if run.delete_uploaded and not run.s3.bucket:
        raise ConfigError(
            f"{where}.delete_uploaded: nothing is uploaded without {where}.s3.bucket; name one, "
            "or take this out"
        )


def _hop(where: str, table: dict[str, Any]) -> Hop:
    raw = _table(f"{where}.hop", table.get("hop", {}))
    _known(f"{where}.hop", raw, (*_HOPS, "sudo"))
    kinds = [kind for kind in _HOPS if kind in raw]
    if len(kinds) > 1:
        raise ConfigError(f"{where}.hop: one of {', '.join(kinds)}, not several")
    sudo = _flag(where, table, "sudo") or _flag(f"{where}.hop", raw, "sudo")
    if not kinds:
        return Hop(sudo=sudo)
    kind: HopKind = kinds[0]
    name = raw[kind]
    if kind == "pct" and not (isinstance(name, int) and not isinstance(name, bool) and name > 0):
        raise ConfigError(f"{where}.hop.pct: the container's id, a number such as 200")
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name):
        raise ConfigError(f"{where}.hop.{kind}: the container's name")
    _travels(f"{where}.hop.{kind}", str(name))
    return Hop(kind=kind, name=str(name), sudo=sudo)


def _section(where: str, kind: type[T], general: object, special: object) -> T:
    """A section of the file with the target's own keys laid over the general ones."""
    merged = dict(_table(where.rsplit(".", 1)[-1], general or {}))
    for key, value in _table(where, special or {}).items():
        inner = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if inner else value
    fields = [f.encode_name for f in msgspec.structs.fields(kind)]
    _known(where, merged, fields)
    if "s3" in merged:
        _known(f"{where}.s3", _table(f"{where}.s3", merged["s3"]), S3Spec.__struct_fields__)
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "").replace(" - at $", f" at {where}")
        raise ConfigError(text[0].lower() + text[1:]) from None


def _known(where: str, table: dict[str, Any], known: Any) -> None:
    for key in table:
        if key not in known:
            place = f"{where}.{key}" if where else key
            raise ConfigError(f"unknown key {place}{_nearest(key, known)}")


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word.replace("-", "_"), list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a table is needed")
    return value


def _text(where: str, table: dict[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{where}.{key}: text in quotes is needed")
    return value


def _ascii(where: str, table: dict[str, Any], key: str) -> str:
    value = _text(where, table, key)
    _travels(f"{where}.{key}", value)
    return value


def _travels(place: str, value: str) -> None:
    # A remote shell of another locale would read other bytes.
    if not value.isascii():
        raise ConfigError(f"{place}: plain ASCII is needed on the way to a container")


def _flag(where: str, table: dict[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.{key}: true or false")
    return value
