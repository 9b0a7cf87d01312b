"""The ``stoker`` command: parses, dispatches, nothing else.

Heavy imports (the screen, SSH, S3, datasets) stand inside the verbs that need them, so that
``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from console import __version__

USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130

Handler = Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """One line on what is wrong with the command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status (0, 1, 2, 3 or 130)."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = parse(words)
    try:
        return int(options.handler(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        if options.debug:
            raise
        return _failed(error)


def _failed(error: Exception) -> int:
    """The one line for an error that people can mend, and its exit status."""
    from console.config import ConfigError
    from console.text import visible

    kinds = {kind.__name__ for kind in type(error).__mro__}
    code, text = 1, str(error)
    if isinstance(error, UsageError | ConfigError) or kinds & {"VerbError", "CannotVerifyError"}:
        code = USAGE
    elif "LinkError" in kinds:
        code = 1 if getattr(error, "kind", "") == "refused" else UNREACHABLE
    elif not kinds & {"OSError", "ExportError"}:
        text = f"{type(error).__name__}: {error} (a mistake of ours; --debug shows where)"
    print(f"stoker: {visible(' '.join(text.split()))}", file=sys.stderr)
    return code


def parse(words: list[str]) -> argparse.Namespace:
    """Options with ``handler`` set; argparse leaves with status 2 on a mistake."""
    position = _first_word(words)
    if position is None and not {"-h", "--help", "--version"} & set(words):
        return _console_parser().parse_args(words)  # the verbs' parsers take their time to make
    if position is not None:
        from console.config import VERBS

        if words[position] not in VERBS:
            return _console_parser().parse_args(words)
    parser, verbs = _parser()
    if position is None:
        return parser.parse_args(words)
    if words[position] not in verbs:
        return _console_parser().parse_args(words)
    if words[position] == "prepare":
        return _prepare_parser().parse_args([*words[:position], *words[position + 1 :]])
    # Options may stand before the verb, too: `stoker --config FILE status`.
    return parser.parse_args([words[position], *words[:position], *words[position + 1 :]])


def _first_word(words: list[str]) -> int | None:
    """Where the first word stands that is neither an option nor the value of --config."""
    for position, word in enumerate(words):
        if not word.startswith("-") and (position == 0 or words[position - 1] != "--config"):
            return position
    return None


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", metavar="FILE", help="stoker.toml to use")
    common.add_argument("--json", action="store_true", help="one JSON document on standard output")
    common.add_argument("--yes", action="store_true", help="do not ask")
    common.add_argument("--debug", action="store_true", help="show tracebacks")
    return common


def _console_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stoker", parents=[_common()], usage="stoker [TARGET]")
    parser.add_argument("target", nargs="?", metavar="TARGET")
    parser.add_argument("--read-only", action="store_true", help="look, change nothing")
    parser.set_defaults(handler=_console)
    return parser


def _prepare_parser() -> argparse.ArgumentParser:
    from remote.prepare import command

    text = "Prompts from datasets, by a recipe: mixed, deduplicated, checked against the context."
    parser = argparse.ArgumentParser(prog="stoker prepare", description=text)
    command.add_arguments(parser)
    parser.add_argument("--config", metavar="FILE", help="stoker.toml to use with --on")
    parser.add_argument(
        "--on", metavar="TARGET", help="in the container; FILE and paths are its workspace's"
    )
    parser.set_defaults(handler=_prepare, parser=parser)
    return parser


def _parser() -> tuple[argparse.ArgumentParser, set[str]]:
    parser = argparse.ArgumentParser(
        prog="stoker",
        usage="stoker [TARGET] | stoker VERB …",
        description="The console for long LLM batch runs. `stoker lab` shows it, on nothing but "
        "this machine; `stoker [TARGET]` opens it on a target of stoker.toml.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    names: set[str] = set()

    def verb(name: str, handler: Handler, text: str, *, target: bool = True) -> Any:
        names.add(name)
        one = verbs.add_parser(name, help=text, description=text, parents=[_common()])
        one.set_defaults(handler=handler)
        if target:
            one.add_argument("target", nargs="?", metavar="TARGET", help="of stoker.toml")
        return one

    _add_lab(verb("lab", _lab, "the embedded lab and the console on it; no GPU", target=False))
    verb("status", _status, "one look: progress, throughput, batch files")
    verb("deploy", _deploy, "push the agent, start it; a no-op when it is current")
    up = verb("up", _up, "start servers")
    up.add_argument("--gpu", nargs="+", action="extend", metavar="I")
    up.add_argument("--no-wait", action="store_true", help="return once the starts are under way")
    down = verb(
        "down", _down, "stop servers; the run goes on elsewhere with what they had under way"
    )
    down.add_argument("--gpu", nargs="+", action="extend", metavar="I")
    restart = verb("restart", _restart, "restart servers with changed flags, losing nothing")
    restart.add_argument("--set", nargs="+", action="extend", metavar="FLAG=VALUE", default=[])
    restart.add_argument("--unset", nargs="+", action="extend", metavar="FLAG", default=[])
    restart.add_argument("--strategy", choices=["rolling", "all", "canary"], default="rolling")
    _add_interruption(restart)
    restart.add_argument(
        "--confirm-within",
        type=float,
        metavar="MIN",
        help="the old flags come back unless the new ones are confirmed and no worse",
    )
    restart.add_argument("--gpu", nargs="+", action="extend", metavar="I")
    restart.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")
    rollback = verb("rollback", _rollback, "back to the previous config epoch")
    rollback.add_argument("--epoch", type=int, metavar="ID", help="to this one instead")
    rollback.add_argument("--strategy", choices=["rolling", "all"], default="rolling")
    rollback.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")
    _add_interruption(rollback)
    confirm = verb("confirm", _confirm, "keep the new flags of the swap under way")
    confirm.add_argument("--back", action="store_true", help="take them back instead")
    _add_run(verb("run", _run, "start, pause, resume or stop the generation", target=False))
    logs = verb("logs", _logs, "lines of a server's log", target=False)
    logs.add_argument("server", metavar="SERVER", help="a GPU's number, `run` or `agent`")
    logs.add_argument("target", nargs="?", metavar="TARGET")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", type=int, default=200, metavar="N", help="last lines (200)")
    logs.add_argument("--grep", default="", metavar="RE", help="only lines that match")
    export = verb("export", _export, "a run as one Parquet file", target=False)
    export.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    export.add_argument("out", type=Path, metavar="OUT.parquet")
    export.add_argument("--set-aside", action="store_true", help="those set aside, too")
    verb("prepare", _prepare, "prompts from datasets, by a recipe", target=False)
    verify = verb("verify", _verify, "audit a run directory", target=False)
    verify.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    verify.add_argument("--prompts", type=Path, metavar="FILE")
    verify.add_argument("--s3", action="store_true", help="also compare what was uploaded")
    verify.add_argument("--s3-endpoint", default="", metavar="URL")
    advise = verb("advise", _advise, "what holds the run back, and what to change")
    advise.add_argument("--from", dest="snapshot", type=Path, metavar="SNAPSHOT.json")
    replay = verb("replay", _replay, "a recorded run in the same screens", target=False)
    replay.add_argument("file", type=Path, metavar="FILE", help="a journal.db of Stoker's")
    serve = verb("serve", _serve, "the console in a browser on this machine")
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="(8000; 0: any)")
    serve.add_argument(
        "--allow-actions", action="store_true", help="it may change things, not only look"
    )
    init = verb("init", _init, "write a first stoker.toml, to be edited", target=False)
    init.add_argument("file", nargs="?", type=Path, default=Path("stoker.toml"), metavar="FILE")
    return parser, names


def _add_interruption(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--in-flight",
        choices=["continue", "drain", "redo"],
        default="continue",
        help="answers under way: broken off and continued; left to end; or generated again",
    )
    verb.add_argument(
        "--at-once",
        type=int,
        default=1,
        metavar="K",
        help="servers out of service together in a rolling swap (1)",
    )


def _add_lab(lab: argparse.ArgumentParser) -> None:
    lab.add_argument("--headless", action="store_true", help="no screen: run the job to its end")
    lab.add_argument("--serve", action="store_true", help="only serve until interrupted")
    lab.add_argument("--gpus", type=int, default=8, metavar="N", help="(8)")
    lab.add_argument("--prompts", type=Path, metavar="FILE", help="JSONL of prompts")
    lab.add_argument("--count", type=int, metavar="N", help="so many prompts")
    lab.add_argument("--speed", type=float, default=20.0, metavar="X", help="times real (20)")
    lab.add_argument("--sglang", choices=["0.5.12", "0.5.23"], default="0.5.12")
    lab.add_argument("--set", nargs="+", action="extend", metavar="FLAG=VALUE", default=[])
    lab.add_argument("--dir", type=Path, metavar="DIR", help="keep everything there")


def _requests(word: str) -> int | str:
    """``auto``, or a number from 1 on. Raises ArgumentTypeError."""
    if word == "auto":
        return word
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r}: a number from 1 on, or auto")
    return int(word)


def _add_run(run: argparse.ArgumentParser) -> None:
    do = run.add_subparsers(title="what", metavar="start|pause|resume|stop|retry-failed")
    do.required = True
    for name, text in (
        ("start", "start the generation, or resume it where it stopped"),
        ("pause", "send nothing new; what is in flight ends"),
        ("resume", "lift a pause"),
        ("stop", "let what is in flight end, then leave"),
        ("retry-failed", "give prompts that were given up on another life"),
    ):
        one = do.add_parser(name, help=text, description=text, parents=[_common()])
        one.add_argument("target", nargs="?", metavar="TARGET")
        one.set_defaults(do=name)
        if name == "start":
            one.add_argument("--prompts", type=Path, metavar="FILE", help="bring this file there")
            one.add_argument("--extend", action="store_true", help="the prompts file grew")
            one.add_argument("--accept-params", action="store_true")
        if name in ("pause", "resume"):
            one.add_argument(
                "--concurrency",
                type=_requests,
                metavar="N|auto",
                help="requests in flight on each server, from now on",
            )
        if name == "stop":
            one.add_argument("--seal", action="store_true", help="seal the open batch short")
        if name == "retry-failed":
            one.add_argument("--set-aside", action="store_true", help="those set aside, too")


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
    try:
        return sorted({int(gpu) for gpu in options.gpu})
    except ValueError:
        raise UsageError(f"--gpu {' '.join(options.gpu)}: numbers from 0 on are needed") from None


def _go(verb: Awaitable[int]) -> int:
    async def whole() -> int:
        return await verb

    return asyncio.run(whole())


def _console(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from console import quiet

    quiet.begin()
    settings = _settings(options)
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

    target = _target(options, "gpu", "set", "unset")
    return _go(
        fleet.restart(
            target,
            fleet.flags(options.set),
            [name.lstrip("-").replace("_", "-") for name in options.unset],
            options.strategy,
            _gpus(options),
            in_flight=options.in_flight,
            at_once=options.at_once,
            confirm_within=options.confirm_within,
            dry_run=options.dry_run,
            yes=options.yes,
            as_json=options.json,
        )
    )


def _rollback(options: argparse.Namespace) -> int:
    from console.verbs import fleet

    target = _target(options)
    return _go(
        fleet.rollback(
            target,
            options.epoch,
            options.strategy,
            in_flight=options.in_flight,
            at_once=options.at_once,
            dry_run=options.dry_run,
            yes=options.yes,
            as_json=options.json,
        )
    )


def _confirm(options: argparse.Namespace) -> int:
    from console.verbs import fleet

    return _go(fleet.confirm(_target(options), back=options.back, yes=options.yes))


def _run(options: argparse.Namespace) -> int:
    from console.verbs import run

    target = _target(options)
    if options.do == "start":
        start = run.run_start(
            target,
            options.prompts,
            extend=options.extend,
            accept_params=options.accept_params,
        )
        return _go(start)
    if options.do == "retry-failed":
        return _go(run.retry_failed(target, set_aside=options.set_aside))
    do = "drain" if options.do == "stop" else options.do
    more = {k: v for k in ("seal", "concurrency") if (v := getattr(options, k, None)) is not None}
    return _go(run.run_control(target, do, **more))


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
    print(msgspec.json.encode(advice).decode() if options.json else "\n".join(advise.lines(advice)))
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
    print(f"{options.file} written: edit it, then `stoker status`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
