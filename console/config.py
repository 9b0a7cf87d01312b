"""``stoker.toml`` → typed settings.

Found by ``--config``, else ``$STOKER_CONFIG``, else ``./stoker.toml``, else ``stoker/stoker.toml``
in the user's configuration folder. Mistakes are one line that names the file, the place and, for
an unknown key, the nearest known one.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from console import written
from remote.protocol import (
    ANSWERED,
    MOST_AT_ONCE,
    POLICY,
    AlertSpec,
    FleetSpec,
    RunSpec,
    S3Spec,
    TargetSpec,
)

T = TypeVar("T", bound=msgspec.Struct)
Place: TypeAlias = tuple[str, ...]
"""Keys from the top of the file on."""

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

UNBUILT = ("doctor", "tune")
"""Those of them that are not there yet."""

HopKind = Literal["pct", "docker", "podman", "incus", "none"]
_HOPS = tuple(kind for kind in get_args(HopKind) if kind != "none")
_TOP = ("default", "targets", "fleet", "run", "alerts")
_SHARED = ("fleet", "run", "alerts")
"""Tables for all targets, which a target may have of its own, too."""
_MANY = 10_000_000
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


class _MistakeError(Exception):
    """One thing that is wrong in the file, and where: as a target has it, so that it may be
    written in a table for all of them."""

    def __init__(self, place: Place, text: str, value: object = None) -> None:
        super().__init__(text)
        self.place = place
        self.value = value


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
    file: Path | None = None
    """The stoker.toml that it stands in, as an absolute path, where a command line that means
    this target has to name it."""

    def command(self, *words: str) -> str:
        """The `stoker` line of these words for this target, for any shell on this machine."""
        return command(self.name, self.file, words)


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
        if name is not None and name not in self.targets and name in UNBUILT:
            raise ConfigError(f"{name}: this version has no such verb, and no target is called so")
        return self.target(name, [verb for verb in VERBS if verb not in UNBUILT]).name

    def target(self, name: str | None, others: Sequence[str] = ()) -> Target:
        """The named target, or the default, or the only one; ConfigError says which there are,
        and whether one of the ``others`` may have been meant."""
        if name is None:
            name = self.default or (next(iter(self.targets)) if len(self.targets) == 1 else None)
        known = ", ".join(self.targets)
        if name is None:
            raise ConfigError(f"{self.path}: several targets ({known}): name one, or set `default`")
        if name not in self.targets:
            near = _nearest(name, [*self.targets, *others])
            raise ConfigError(f"{self.path}: no target {name!r}{near}; there is: {known}")
        return self.targets[name]


def command(target: str, file: Path | None, words: Sequence[str], more: Sequence[str] = ()) -> str:
    """A `stoker` line: verb, target, options, and the configuration where it has to be named."""
    named = ["--config", str(file)] if file is not None else []
    return shlex.join(["stoker", *words, target, *more, *named])


def user_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the user's own configuration is looked for."""
    folder = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return folder / "stoker/stoker.toml"


def find(explicit: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The configuration file to read. Raises ConfigError when there is none."""
    if explicit or environ.get("STOKER_CONFIG"):
        path = Path(explicit or environ["STOKER_CONFIG"]).expanduser()
        if not path.is_file():
            what = "a folder, not a file" if path.is_dir() else "no such configuration file"
            raise ConfigError(f"{path}: {what}")
        return path
    user = user_file(environ)
    for path in (Path("stoker.toml"), user):
        if path.is_file():
            return path
    raise ConfigError(
        f"no stoker.toml here and none at {user}: `stoker init` writes a first one, "
        "--config names another, `stoker lab` needs none"
    )


def load(path: Path) -> Settings:
    """Read and check a whole file. Raises ConfigError."""
    data: dict[str, Any] = {}
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
        return _settings(path, data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except _MistakeError as error:
        where = as_written(data, error.place)
        line = written.line_of(text, where)
        value = "" if error.value is None else f" = {_short(error.value)}"
        at = f":{line}" if line is not None else ""
        raise ConfigError(f"{path}{at}: {'.'.join(where)}{value}: {error}") from None


def as_written(data: dict[str, Any], place: Place) -> Place:
    """Where the file says what a target has at a place: in the target's own table, or in the one
    for all targets."""
    if place[:1] == ("targets",) and len(place) > 3 and place[2] in _SHARED:
        general = place[2:]
        if written.has(data, general) and not written.has(data, place):
            return general
    return place


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _settings(path: Path, data: dict[str, Any]) -> Settings:
    _known((), data, _TOP)
    tables = _table(("targets",), data.get("targets", {}))
    if not tables:
        raise _MistakeError(("targets",), "no [targets.NAME] table: say where to connect to")
    for name in _SHARED:
        _table((name,), data.get(name, {}))
    targets = {name: _target(path, name, data, table) for name, table in tables.items()}
    default = data.get("default")
    if default is not None and default not in [*targets]:  # whatever it is, a list say
        near = _nearest(str(default), targets)
        raise _MistakeError(("default",), f"names no target{near}", default)
    return Settings(path=path, targets=targets, default=default)


def _target(path: Path, name: str, data: dict[str, Any], raw: object) -> Target:
    where = ("targets", name)
    if name in VERBS:
        raise _MistakeError(where, f"`stoker {name}` is a verb, so a target may not be called so")
    table = _table(where, raw)
    _known(where, table, _TARGET)
    workspace = _ascii(where, table, "workspace")
    if not PurePosixPath(workspace).is_absolute():
        raise _MistakeError((*where, "workspace"), "an absolute path on the container is needed")
    spec = TargetSpec(
        name=name,
        workspace=workspace,
        python=_ascii(where, table, "python"),
        env_script=_ascii(where, table, "env_script"),
        credentials_file=_ascii(where, table, "credentials_file"),
        fleet=_section((*where, "fleet"), FleetSpec, data.get("fleet"), table.get("fleet")),
        run=_section((*where, "run"), RunSpec, data.get("run"), table.get("run")),
        alerts=_section((*where, "alerts"), AlertSpec, data.get("alerts"), table.get("alerts")),
    )
    _check_fleet((*where, "fleet"), spec.fleet)
    _check_run((*where, "run"), spec.run)
    hours = spec.alerts.eta_hours_over
    if hours is not None and not 0 < hours < math.inf:
        raise _MistakeError((*where, "alerts", "eta_hours_over"), "hours above 0", hours)
    ssh_config = _text(where, table, "ssh_config")
    own = (path.parent / Path(ssh_config).expanduser()).absolute() if ssh_config else None
    if own is not None and not own.is_file():
        raise _MistakeError((*where, "ssh_config"), f"{own}: no such file")
    file = path.absolute()
    return Target(
        name=name,
        ssh=_text(where, table, "ssh"),
        ssh_config=own,
        hop=_hop(where, table),
        agent_python=_ascii(where, table, "agent_python"),
        read_only=_flag(where, table, "read_only"),
        spec=spec,
        file=file if file != user_file().absolute() else None,
    )


def _check_fleet(where: Place, fleet: FleetSpec) -> None:
    if not 1 <= fleet.gpus <= 64:
        raise _MistakeError((*where, "gpus"), "1 to 64 are possible", fleet.gpus)
    if not 1024 <= fleet.base_port <= 65535 - fleet.gpus:
        text = f"1024 to {65535 - fleet.gpus} are possible"
        raise _MistakeError((*where, "base_port"), text, fleet.base_port)
    if not 0 <= fleet.drain_seconds < math.inf:
        raise _MistakeError((*where, "drain_seconds"), "seconds from 0 on", fleet.drain_seconds)
    if not 0 < fleet.start_seconds < math.inf:
        raise _MistakeError((*where, "start_seconds"), "seconds above 0", fleet.start_seconds)
    for flag, value in fleet.flags.items():
        place = (*where, "flags", flag)
        if flag.startswith("-"):
            raise _MistakeError(place, f"write {flag.lstrip('-')!r}, without dashes")
        _travels_as_json(place, value)


def _check_run(where: Place, run: RunSpec) -> None:
    if isinstance(run.concurrency, int) and not 1 <= run.concurrency <= MOST_AT_ONCE:
        text = f'"auto" or a number from 1 to {MOST_AT_ONCE:,}'
        raise _MistakeError((*where, "concurrency"), text, run.concurrency)
    if not 1 <= run.max_tokens <= _MANY:
        raise _MistakeError((*where, "max_tokens"), f"1 to {_MANY:,} are possible", run.max_tokens)
    if not 0 <= run.retries <= _MANY:
        raise _MistakeError((*where, "retries"), f"0 to {_MANY:,} are possible", run.retries)
    if run.temperature is not None and not 0 <= run.temperature < math.inf:
        raise _MistakeError((*where, "temperature"), "a number from 0 on", run.temperature)
    for name, value in run.params.items():
        _travels_as_json((*where, "params", name), value)
    for outcome, action in run.policy.items():
        if outcome not in ANSWERED:
            known = ", ".join(ANSWERED)
            text = f"the outcomes of an answer are {known}"
            raise _MistakeError((*where, "policy", outcome), text)
        if not POLICY.fullmatch(action):
            text = "keep, set-aside or retry:N (1 to 99)"
            raise _MistakeError((*where, "policy", outcome), text, action)
    if run.delete_uploaded and not run.s3.bucket:
        text = "nothing is uploaded without run.s3.bucket; name one, or take this out"
        raise _MistakeError((*where, "delete_uploaded"), text)


def _travels_as_json(place: Place, value: object) -> None:
    """Raise _MistakeError for numbers that JSON, or a reader of it, does not have."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _travels_as_json((*place, key), inner)
    elif isinstance(value, list):
        for inner in value:
            _travels_as_json(place, inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _MistakeError(place, "a finite number is needed", value)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _MistakeError(place, "such a number is too large", value)


def _hop(where: Place, table: dict[str, Any]) -> Hop:
    place = (*where, "hop")
    raw = _table(place, table.get("hop", {}))
    _known(place, raw, (*_HOPS, "sudo"))
    kinds = [kind for kind in _HOPS if kind in raw]
    if len(kinds) > 1:
        raise _MistakeError(place, f"one of {', '.join(kinds)}, not several")
    sudo = _flag(where, table, "sudo") or _flag(place, raw, "sudo")
    if not kinds:
        return Hop(sudo=sudo)
    kind: HopKind = kinds[0]
    name = raw[kind]
    if kind == "pct" and not (isinstance(name, int) and not isinstance(name, bool) and name > 0):
        raise _MistakeError((*place, kind), "the container's id, a number such as 200")
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name):
        raise _MistakeError((*place, kind), "the container's name")
    _travels((*place, kind), str(name))
    return Hop(kind=kind, name=str(name), sudo=sudo)


def _section(where: Place, kind: type[T], general: object, special: object) -> T:
    """A section of the file with the target's own keys laid over the general ones."""
    merged = dict(_table(where[2:], {} if general is None else general))
    for key, value in _table(where, {} if special is None else special).items():
        inner = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if inner else value
    fields = [f.encode_name for f in msgspec.structs.fields(kind)]
    _known(where, merged, fields)
    if "s3" in merged:
        place = (*where, "s3")
        _known(place, _table(place, merged["s3"]), S3Spec.__struct_fields__)
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        # It ends with ` - at `$.policy[...]``, the keys of a free table unnamed.
        text, _, at = str(error).replace("`", "").partition(" - at $")
        place = (*where, *re.findall(r"\.(\w+)", at))
        raise _MistakeError(place, text[0].lower() + text[1:]) from None


def _known(where: Place, table: dict[str, Any], known: Any) -> None:
    for key in table:
        if key not in known:
            raise _MistakeError((*where, key), f"unknown key{_nearest(key, known)}")


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word.replace("-", "_"), list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _table(where: Place, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _MistakeError(where, "a table is needed")
    return value


def _text(where: Place, table: dict[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise _MistakeError((*where, key), "text in quotes is needed")
    return value


def _ascii(where: Place, table: dict[str, Any], key: str) -> str:
    value = _text(where, table, key)
    _travels((*where, key), value)
    return value


def _travels(place: Place, value: str) -> None:
    # A remote shell of another locale would read other bytes.
    if not value.isascii():
        raise _MistakeError(place, "plain ASCII is needed on the way to a container")


def _flag(where: Place, table: dict[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise _MistakeError((*where, key), "true or false")
    return value
