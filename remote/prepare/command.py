"""The command: ``stoker prepare`` and ``python -m remote.prepare``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json as jsonlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from remote.arguments import Parser, whole
from remote.prepare.errors import PrepareError, RecipeError


def main(
    recipe: Path,
    output: Path,
    *,
    report: bool = False,
    json: bool = False,
    workers: int | None = None,
    base: Path | None = None,
    after: Path | None = None,
    keep_work: bool = False,
    debug: bool = False,
    prog: str = "prepare",
) -> int:
    """Prepare a prompts file; messages go to standard error, the report to standard output.

    Args:
        recipe: the TOML file, or the name of a shipped recipe.
        output: ``prompts.jsonl``; manifest, rows and report lie beside it.
        report: the long report, and an HTML page.
        json: print the manifest as JSON and nothing else on standard output.
        workers: processes; by default as many as there are cores, eight at most.
        base: folder that the recipe's relative paths are relative to; by default its own, and
            for a shipped recipe the current one.
        after: an earlier output that the new one is to begin with.
        keep_work: keep the work folder, so that other quotas need no second reading.
        debug: show tracebacks.
        prog: what the command is called in front of an error.

    Returns:
        0 done; 1 done with a shortfall, or something failed on the way; 2 the recipe is at
        fault; 130 interrupted.
    """
    # Only now: `stoker --help` must not wait for numpy.
    from remote.prepare import build, html, manifest, spool
    from remote.prepare import recipe as recipes
    from remote.prepare.report import Progress, summary

    progress = Progress()
    try:
        loaded = recipes.load(recipe)
        _check_output(output)
        if base is None:
            base = recipe.resolve().parent if recipe.exists() else Path.cwd()
        with _terminated_like_interrupted():
            built = build.build(loaded, base, output, progress, workers=workers, after=after)
            document = manifest.describe(built, output)
            data = jsonlib.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
            spool.write_atomic(manifest.manifest_path(output), data)
            if report:
                page = output.with_name(output.name.removesuffix(".jsonl") + ".report.html")
                spool.write_atomic(page, html.page(document).encode())
        if not keep_work:
            build.remove_work(output)
    except RecipeError as error:
        return _fail(error, 2, prog=prog, debug=debug)
    except PrepareError as error:
        return _fail(error, 1, prog=prog, debug=debug)
    except OSError as error:
        name = error.filename or output
        return _fail(PrepareError(f"{name}: {error.strerror or error}"), 1, prog=prog, debug=debug)
    except KeyboardInterrupt:
        progress.say("interrupted; the same command goes on where it was")
        return 130
    if json:
        sys.stdout.write(data.decode())
    else:
        print(summary(document, full=report))
        if report:
            print(f"report: {page}")
    short = any(source["shortfall"] for source in document["sources"])
    return 1 if short or not len(built.chosen) else 0


def _fail(error: PrepareError, status: int, *, prog: str, debug: bool) -> int:
    if debug:
        raise error
    text = " ".join(str(error).split())
    print(f"{prog}: {text}", file=sys.stderr)
    return status


def _check_output(output: Path) -> None:
    if output.is_dir():
        raise RecipeError(f"{output} is a folder; name the file to write, e.g. prompts.jsonl")
    if not output.parent.is_dir():
        raise RecipeError(f"{output.parent}: no such folder to write to")
    if not os.access(output.parent, os.W_OK):
        raise RecipeError(f"{output.parent}: not writable")


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a build as Ctrl-C does: workers stopped, files whole."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check(output: Path, run: Path, *, json: bool = False, prog: str = "prepare") -> int:
    """Compare the counted prompt tokens with the ``usage`` of a run's first replies."""
    from remote.prepare import check as checks
    from remote.prepare.output import rows_path

    try:
        found = checks.compare(rows_path(output), run)
    except PrepareError as error:
        return _fail(error, 1, prog=prog, debug=False)
    if json:
        print(jsonlib.dumps({"good": found.good, **dataclasses.asdict(found)}))
    else:
        print(found.line())
    return 0 if found.good else 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("recipe", nargs="?", help="a TOML file, or the name of a shipped recipe")
    parser.add_argument("-o", "--output", type=Path, default=Path("prompts.jsonl"), metavar="FILE")
    parser.add_argument(
        "--report", action="store_true", help="the long report, and a page FILE.report.html"
    )
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")
    parser.add_argument(
        "--workers", type=whole(1, 1024), metavar="N", help="processes (default: cores, at most 8)"
    )
    parser.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="what relative paths in the recipe are relative to (default: the recipe's folder)",
    )
    parser.add_argument(
        "--after",
        type=Path,
        metavar="OLD",
        help="begin with the prompts of OLD, made with smaller quotas, so its run can be extended",
    )
    parser.add_argument(
        "--keep-work",
        action="store_true",
        help="keep FILE.work: other quotas need no second reading",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="RUN_DIR",
        help="instead: compare counted prompt tokens with the replies of a run of FILE",
    )
    parser.add_argument("--list", action="store_true", help="instead: name the shipped recipes")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(argv: Sequence[str]) -> int:
    """``python -m remote.prepare``."""
    parser = Parser(prog="prepare", description="Build a prompts file from datasets, reproducibly.")
    add_arguments(parser)
    return dispatch(parser, parser.parse_args(argv))


def dispatch(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Do what parsed arguments say."""
    if arguments.list:
        from remote.prepare.recipe import shipped

        for name, path in shipped().items():
            print(f"{name}  {path}")
        return 0
    if arguments.check is not None:
        return check(arguments.output, arguments.check, json=arguments.json, prog=parser.prog)
    if arguments.recipe is None:
        parser.error("a recipe is needed (--list names the shipped ones)")
    return main(
        Path(arguments.recipe),
        arguments.output,
        report=arguments.report,
        json=arguments.json,
        workers=arguments.workers,
        base=arguments.base,
        after=arguments.after,
        keep_work=arguments.keep_work,
        debug=arguments.debug,
        prog=parser.prog,
    )
