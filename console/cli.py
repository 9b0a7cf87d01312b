"""The ``stoker`` command: dispatches to a verb, and tells how it ended.

Heavy imports (the screen, SSH, S3, datasets) stand inside the verbs that need them, so that
``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from console.arguments import GPUS, VERBS, parse
from remote.arguments import USAGE

UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

Handler: TypeAlias = Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """One line on what is wrong with the command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status (0, 1, 2, 3 or 130)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is shown in escapes
            stream.reconfigure(errors="backslashreplace")
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        return int(HANDLERS[options.verb](options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _output_is_gone()
        return 1
    except Exception as error:
        if options.debug:
            raise
        return _tell(options.prog, error)


def _output_is_gone() -> None:
    """Whoever read standard output has left: what is still buffered goes nowhere, silently."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_STATUS: Final = {
    "UsageError": USAGE,
    "ConfigError": USAGE,
    "VerbError": USAGE,
    "CannotVerifyError": USAGE,
    "StorageError": 1,
    "LabFailedError": 1,
    "ExportError": 1,
    "NothingDoneError": 1,
    "OSError": 1,
}
"""Exit status by kind of error: what was asked cannot be meant, or it has failed. Kinds are known
by their names: to import them would take longer than most verbs."""


def _tell(prog: str, error: Exception) -> int:
    """The one line for an error that people can mend, and its exit status."""
    from console.text import visible

    text = str(error)
    kinds = [kind.__name__ for kind in type(error).__mro__]
    code = next((_STATUS[kind] for kind in kinds if kind in _STATUS), None)
    if "LinkError" in kinds:
        code = {"usage": USAGE, "refused": 1}.get(getattr(error, "kind", ""), UNREACHABLE)
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif code is None:
        code, text = 1, f"{kinds[0]}: {error} (a mistake of ours; --debug shows where)"
    print(f"{prog}: {visible(' '.join(text.split()))}", file=sys.stderr)
    return code or 1


# --- Handlers: one line of dispatch each ---


def _settings(options: argparse.Namespace) -> Any:
    from console.config import find, load

    return load(find(options.config))


def _target(options: argparse.Namespace, *lists: str) -> Any:
    """The target; a name swallowed by a list option in front of it is given back."""
    settings = _settings(options)
    for name in lists:
        values = getattr(options, name) or []
        if options.target is None and values and values[-1] in settings.targets:
            options.target = values.pop()
            if not values:  # without a word it would mean all servers, or nothing changed
                raise UsageError(f"--{name} {options.target}: that is the target; name more")
    return settings.target(options.target)


def _gpus(options: argparse.Namespace) -> list[int] | None:
    if not options.gpu:
        return None
    if not all(gpu.isdecimal() and int(gpu) < GPUS for gpu in options.gpu):
        raise UsageError(f"--gpu {' '.join(options.gpu)}: numbers from 0 to {GPUS - 1} are needed")
    return sorted({int(gpu) for gpu in options.gpu})


def _go(verb: Awaitable[int]) -> int:
    async def whole() -> int:
        return await verb

    return asyncio.run(whole())


def _console(options: argparse.Namespace) -> int:
    from dataclasses import replace
    from difflib import get_close_matches

    from console import quiet
    from console.config import ConfigError

    quiet.begin()
    try:
        settings = _settings(options)
    except ConfigError:
        if options.target and (near := get_close_matches(options.target, VERBS, 1, 0.7)):
            text = f"{options.target}: no verb (did you mean {near[0]}?)"
            raise UsageError(f"{text}, and no configuration with a target of that name") from None
        raise
    first = settings.first(options.target)
    targets = list(settings.targets.values())
    if options.read_only:
        targets = [replace(target, read_only=True) for target in targets]
    from console.launch import run_console

    return run_console(targets, first, debug=options.debug)


def _lab(options: argparse.Namespace) -> int:
    from console.lab.command import command
    from console.verbs.fleet import flags

    options.flags = flags(options.set)
    return int(command(options))


def _status(options: argparse.Namespace) -> int:
    from console.verbs import looking

    return _go(looking.status(_target(options), as_json=options.json))


def _deploy(options: argparse.Namespace) -> int:
    from console.verbs import container

    return _go(container.deploy(_target(options)))


def _up(options: argparse.Namespace) -> int:
    from console.verbs import fleet

    target = _target(options, "gpu")
    return _go(fleet.up(target, _gpus(options), wait=not options.no_wait))


def _down(options: argparse.Namespace) -> int:
    from console.verbs import fleet

    target = _target(options, "gpu")
    return _go(fleet.down(target, _gpus(options), yes=options.yes))


def _restart(options: argparse.Namespace) -> int:
    from console.verbs import fleet
    from remote.protocol import Restart

    target = _target(options, "gpu", "set", "unset")
    request = Restart(
        spec=target.spec,
        set_flags=fleet.flags(options.set),
        unset_flags=[name.lstrip("-").replace("_", "-") for name in options.unset],
        gpus=_gpus(options),
        confirm_within_min=options.confirm_within,
        **_how(options),
    )
    return _go(fleet.swap(target, request, yes=options.yes, as_json=options.json))


def _rollback(options: argparse.Namespace) -> int:
    from console.verbs import fleet
    from remote.protocol import Rollback

    target = _target(options)
    request = Rollback(spec=target.spec, epoch=options.epoch, **_how(options))
    return _go(fleet.swap(target, request, yes=options.yes, as_json=options.json))


def _how(options: argparse.Namespace) -> dict[str, Any]:
    """How servers are to be swapped."""
    names = ("strategy", "in_flight", "at_once", "dry_run")
    return {name: getattr(options, name) for name in names}


def _confirm(options: argparse.Namespace) -> int:
    from console.verbs import fleet

    return _go(fleet.confirm(_target(options), back=options.back, yes=options.yes))


def _run_start(options: argparse.Namespace) -> int:
    from console.verbs import run

    more = {"extend": options.extend, "accept_params": options.accept_params}
    return _go(run.run_start(_target(options), options.prompts, **more))


def _run_steer(options: argparse.Namespace) -> int:
    from console.verbs import run

    do = options.verb.removeprefix("run ")
    more = {} if options.concurrency is None else {"concurrency": options.concurrency}
    return _go(run.run_control(_target(options), do, **more))


def _run_stop(options: argparse.Namespace) -> int:
    from console.verbs import run

    return _go(run.run_control(_target(options), "drain", seal=options.seal))


def _run_retry(options: argparse.Namespace) -> int:
    from console.verbs import run

    return _go(run.retry_failed(_target(options), set_aside=options.set_aside))


def _logs(options: argparse.Namespace) -> int:
    from console.verbs import looking

    return _go(
        looking.logs(
            _target(options),
            options.server,
            count=options.n,
            grep=options.grep,
            follow=options.follow,
            as_json=options.json,
        )
    )


def _prepare(options: argparse.Namespace) -> int:
    if options.on is None:
        from remote.prepare import command

        return command.dispatch(options.parser, options)
    if options.recipe is None:
        raise UsageError("--on: a recipe is needed")
    from console.verbs import container

    target = _settings(options).target(options.on)
    words = ["-o", str(options.output), "--base", str(options.base or ".")]
    for name in ("report", "json", "keep_work"):
        words += [f"--{name.replace('_', '-')}"] if getattr(options, name) else []
    for name in ("workers", "after", "check"):
        value = getattr(options, name)
        words += [f"--{name}", str(value)] if value is not None else []
    return _go(container.prepare_on(target, Path(options.recipe), words))


def _export(options: argparse.Namespace) -> int:
    from remote import export

    done = export.export(options.run_dir, options.out, set_aside=options.set_aside)
    print(f"{options.out}: {done.records:,} records")
    if done.torn:
        print("the last line of the open batch is not whole yet; it was left out")
    for name in done.elsewhere:
        print(f"left out: {name} is in S3 only", file=sys.stderr)
    return 1 if done.elsewhere else 0


def _verify(options: argparse.Namespace) -> int:
    from remote import verify

    source = verify.S3Source(options.s3_endpoint) if options.s3 else None
    report = verify.audit(options.run_dir, prompts=options.prompts, s3=source)
    if options.json:
        print(verify.as_json(report))
    else:
        print("\n".join(verify.lines(report)))
    return 1 if report.violations else 0


def _advise(options: argparse.Namespace) -> int:
    import json

    import msgspec

    from remote import advise

    if options.snapshot is not None:
        try:
            data = options.snapshot.read_bytes()
            seen = msgspec.json.decode(data, type=advise.Observed)
        except OSError as error:
            raise UsageError(f"{options.snapshot}: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{options.snapshot}: not a snapshot: {error}") from None
    else:
        from console.verbs import looking

        seen = msgspec.convert(asyncio.run(looking.observed(_target(options))), advise.Observed)
    advice = advise.advise(seen)
    if options.json:
        print(json.dumps(msgspec.to_builtins(advice)))
    else:
        print("\n".join(advise.lines(advice)))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from remote.recording import Recording, RecordingError

    try:
        recorded = Recording(options.file)
    except RecordingError as error:
        raise UsageError(str(error)) from None
    from console.launch import run_replay

    run_replay(recorded, options.file.name)
    return 0


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options)
    first = settings.first(options.target)
    try:
        from console.web import server
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("textual_serve", "aiohttp_jinja2", "jinja2")):
            raise
        raise UsageError("serve: textual-serve is not here: install stoker[serve]") from None
    port, allow = options.port, options.allow_actions
    return server.run(settings.path, first, port=port, allow=allow, debug=options.debug)


def _init(options: argparse.Namespace) -> int:
    from console import init

    try:
        init.write(options.file)
    except FileExistsError:
        raise UsageError(f"{options.file}: exists already; name another file") from None
    except OSError as error:
        raise UsageError(f"{options.file}: {error.strerror}; name another file") from None
    usual = options.file == Path("stoker.toml")
    named = "" if usual else f" --config {shlex.quote(str(options.file.absolute()))}"
    print(f"{options.file} written: edit it, then `stoker status{named}`")
    return 0


HANDLERS: Final[dict[str, Handler]] = {
    "": _console,
    "lab": _lab,
    "status": _status,
    "deploy": _deploy,
    "up": _up,
    "down": _down,
    "restart": _restart,
    "rollback": _rollback,
    "confirm": _confirm,
    "run start": _run_start,
    "run pause": _run_steer,
    "run resume": _run_steer,
    "run stop": _run_stop,
    "run retry-failed": _run_retry,
    "logs": _logs,
    "export": _export,
    "prepare": _prepare,
    "verify": _verify,
    "advise": _advise,
    "replay": _replay,
    "serve": _serve,
    "init": _init,
}

if __name__ == "__main__":
    sys.exit(main())
