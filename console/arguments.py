"""The command line as words: which verbs there are, and what each takes.

Nothing heavy is imported here, and only the parser of the verb that is asked for is made, so that
``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from console import __version__
from remote.arguments import Parser, number, whole

Add: TypeAlias = Callable[[Parser], None]

GPUS: Final = 64
"""Most GPUs of a target."""
WEEK_MIN: Final = 7 * 24 * 60.0
LINES: Final = 10_000
"""Most lines of a log at once."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Options with ``verb`` (empty for the console itself) and ``prog`` set; leaves with status 2
    and one line on a mistake. Options may stand before the verb, too."""
    words = list(words)
    position = _first_word(words)
    if position is None:
        asked = {"-h", "--help", "--version"} & set(words)
        return (_all() if asked else _console()).parse_args(words)
    name, rest = words[position], [*words[:position], *words[position + 1 :]]
    if name == "run":
        position = _first_word(rest)
        if position is None or f"run {rest[position]}" not in VERBS:
            return _runs().parse_args(rest)
        name, rest = f"run {rest[position]}", [*rest[:position], *rest[position + 1 :]]
    if name not in VERBS:
        return _console().parse_args(words)
    return _parser(name).parse_args(rest)


def _first_word(words: list[str]) -> int | None:
    """Where the first word stands that is neither an option nor the value of --config."""
    for position, word in enumerate(words):
        if not word.startswith("-") and (position == 0 or words[position - 1] != "--config"):
            return position
    return None


@dataclass(frozen=True)
class Verb:
    """A verb: what it does in a line, and what it takes beyond :func:`_common`."""

    text: str
    add: Add = lambda parser: None
    target: bool = True
    """Whether it takes a target, as its last word."""


# --- Parsers ---


def _parser(name: str) -> Parser:
    verb = VERBS[name]
    prog = f"stoker {name}"
    parser = Parser(prog=prog, description=f"{verb.text[0].upper()}{verb.text[1:]}.")
    verb.add(parser)
    if verb.target:
        parser.add_argument("target", nargs="?", metavar="TARGET", help="of stoker.toml")
    if name != "prepare":
        _common(parser)
    parser.set_defaults(verb=name, prog=prog, parser=parser)
    return parser


def _common(parser: Parser) -> None:
    parser.add_argument("--config", metavar="FILE", help="stoker.toml to use")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def _console() -> Parser:
    parser = Parser(prog="stoker", usage="stoker [TARGET]")
    parser.add_argument("target", nargs="?", metavar="TARGET")
    parser.add_argument("--read-only", action="store_true", help="look, change nothing")
    _common(parser)
    parser.set_defaults(verb="", prog="stoker")
    return parser


def _all() -> Parser:
    parser = Parser(
        prog="stoker",
        usage="stoker [TARGET] | stoker VERB …",
        description="The console for long LLM batch runs. `stoker lab` shows it, on nothing but "
        "this machine; `stoker [TARGET]` opens it on a target of stoker.toml.",
        epilog="`stoker VERB --help` shows what a verb takes; --config FILE names another "
        "stoker.toml, for the console too, and --read-only opens that only to look.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for name, verb in VERBS.items():
        verbs.add_parser(name, help=verb.text)
    return parser


def _runs() -> Parser:
    """What ``stoker run`` alone, or with a word that it does not know, is told."""
    parser = Parser(prog="stoker run", description="Start, pause, resume or stop the generation.")
    names = {name.removeprefix("run "): verb for name, verb in VERBS.items() if name[:4] == "run "}
    metavar = "|".join(names)
    what = parser.add_subparsers(title="what", metavar=metavar, dest=metavar, required=True)
    for name, verb in names.items():
        what.add_parser(name, help=verb.text)
    return parser


# --- What each verb takes ---


def _gpu(parser: Parser) -> None:
    parser.add_argument("--gpu", nargs="+", action="extend", metavar="I")


def _flags(parser: Parser) -> None:
    parser.add_argument("--set", nargs="+", action="extend", metavar="FLAG=VALUE", default=[])


def _up(parser: Parser) -> None:
    _gpu(parser)
    parser.add_argument(
        "--no-wait", action="store_true", help="return once the starts are under way"
    )


def _swap(parser: Parser, *strategies: str) -> None:
    parser.add_argument("--strategy", choices=strategies, default="rolling")
    parser.add_argument(
        "--in-flight",
        choices=["continue", "drain", "redo"],
        default="continue",
        help="answers under way: broken off and continued; left to end; or generated again",
    )
    parser.add_argument(
        "--at-once",
        type=whole(1, GPUS),
        default=1,
        metavar="K",
        help="servers out of service together in a rolling swap (1)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")


def _restart(parser: Parser) -> None:
    _flags(parser)
    parser.add_argument("--unset", nargs="+", action="extend", metavar="FLAG", default=[])
    _swap(parser, "rolling", "all", "canary")
    parser.add_argument(
        "--confirm-within",
        type=number(0, WEEK_MIN, above=True),
        metavar="MIN",
        help="the old flags come back unless the new ones are confirmed and no worse",
    )
    _gpu(parser)


def _rollback(parser: Parser) -> None:
    parser.add_argument("--epoch", type=whole(1, 10**9), metavar="ID", help="to this one instead")
    _swap(parser, "rolling", "all")


def _confirm(parser: Parser) -> None:
    parser.add_argument("--back", action="store_true", help="take them back instead")


def _run_start(parser: Parser) -> None:
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="bring this file there")
    parser.add_argument("--extend", action="store_true", help="the prompts file grew")
    parser.add_argument("--accept-params", action="store_true", help="go on with other parameters")


def _requests(word: str) -> int | str:
    """``auto``, or a number from 1 on. Raises ArgumentTypeError."""
    from remote.protocol import MOST_AT_ONCE

    try:
        return word if word == "auto" else whole(1, MOST_AT_ONCE)(word)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from None


def _run_steer(parser: Parser) -> None:
    parser.add_argument(
        "--concurrency",
        type=_requests,
        metavar="N|auto",
        help="requests in flight on each server, from now on",
    )


def _run_stop(parser: Parser) -> None:
    parser.add_argument("--seal", action="store_true", help="seal the open batch short")


def _aside(parser: Parser) -> None:
    parser.add_argument("--set-aside", action="store_true", help="those set aside, too")


def _logs(parser: Parser) -> None:
    parser.add_argument("server", metavar="SERVER", help="a GPU's number, `run` or `agent`")
    parser.add_argument("-f", "--follow", action="store_true")
    parser.add_argument(
        "-n", type=whole(0, LINES), default=200, metavar="N", help="last lines (200)"
    )
    parser.add_argument("--grep", default="", metavar="RE", help="only lines that match")


def _export(parser: Parser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("out", type=Path, metavar="OUT.parquet")
    _aside(parser)


def _prepare(parser: Parser) -> None:
    from remote.prepare import command

    command.add_arguments(parser)
    parser.add_argument("--config", metavar="FILE", help="stoker.toml to use with --on")
    parser.add_argument(
        "--on", metavar="TARGET", help="in the container; FILE and paths are its workspace's"
    )


def _verify(parser: Parser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--prompts", type=Path, metavar="FILE")
    parser.add_argument("--s3", action="store_true", help="also compare what was uploaded")
    parser.add_argument("--s3-endpoint", default="", metavar="URL")


def _advise(parser: Parser) -> None:
    parser.add_argument("--from", dest="snapshot", type=Path, metavar="SNAPSHOT.json")


def _replay(parser: Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a journal.db, or its folder")


def _serve(parser: Parser) -> None:
    parser.add_argument(
        "--port", type=whole(0, 65535), default=8000, metavar="N", help="(8000; 0: any)"
    )
    parser.add_argument(
        "--allow-actions", action="store_true", help="it may change things, not only look"
    )


def _init(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", type=Path, default=Path("stoker.toml"), metavar="FILE")


def _lab(parser: Parser) -> None:
    parser.add_argument("--headless", action="store_true", help="no screen: run the job to its end")
    parser.add_argument("--serve", action="store_true", help="only serve until interrupted")
    parser.add_argument("--gpus", type=whole(1, GPUS), default=8, metavar="N", help="(8)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSONL of prompts")
    parser.add_argument("--count", type=whole(1, 10**9), metavar="N", help="so many prompts")
    parser.add_argument(
        "--speed",
        type=number(0, 1e6, above=True),
        default=20.0,
        metavar="X",
        help="times real (20)",
    )
    parser.add_argument("--sglang", choices=["0.5.12", "0.5.23"], default="0.5.12")
    _flags(parser)
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep everything there")


VERBS: Final[dict[str, Verb]] = {
    "lab": Verb("the embedded lab and the console on it; no GPU", _lab, target=False),
    "status": Verb("one look: progress, throughput, batch files"),
    "deploy": Verb("push the agent, start it; a no-op when it is current"),
    "up": Verb("start servers", _up),
    "down": Verb("stop servers; the run goes on elsewhere with what they had under way", _gpu),
    "restart": Verb("restart servers with changed flags, losing nothing", _restart),
    "rollback": Verb("back to the previous config epoch", _rollback),
    "confirm": Verb("keep the new flags of the swap under way", _confirm),
    "run start": Verb("start the generation, or resume it where it stopped", _run_start),
    "run pause": Verb("send nothing new; what is in flight ends", _run_steer),
    "run resume": Verb("lift a pause", _run_steer),
    "run stop": Verb("let what is in flight end, then leave", _run_stop),
    "run retry-failed": Verb("give prompts that were given up on another life", _aside),
    "logs": Verb("lines of a server's log", _logs),
    "export": Verb("a run as one Parquet file", _export, target=False),
    "prepare": Verb("prompts from datasets, by a recipe", _prepare, target=False),
    "verify": Verb("audit a run directory", _verify, target=False),
    "advise": Verb("what holds the run back, and what to change", _advise),
    "replay": Verb("a recorded run in the same screens", _replay, target=False),
    "serve": Verb("the console in a browser on this machine", _serve),
    "init": Verb("write a first stoker.toml, to be edited", _init, target=False),
}
