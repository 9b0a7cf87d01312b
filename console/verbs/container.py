"""Verbs that need the container itself and no agent: ``deploy``, ``prepare --on``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from console.config import Target
from console.link.client import LinkError
from console.link.deploy import deploy as push_agent
from console.link.deploy import own_version
from console.link.push import push_file
from console.settling import settled
from console.text import visible
from console.verbs.common import at_place, say, warn_of_slips
from remote.protocol import STOKER_DIR


async def deploy(target: Target) -> int:
    """``stoker deploy``: push the agent and start it; a no-op when it is current."""
    async with at_place(target) as place:
        say(await push_agent(target, place))
    if text := await settled(target):
        say(f"{target.name}: {text}")
    warn_of_slips(target)
    return 0


PREPARE = """
cd "$1" || exit 1; secrets=$2; code=$3; shift 3
if [ -f "$secrets" ]; then set -a; . "$secrets"; set +a; fi
export PYTHONPATH="$code" PYTHONUNBUFFERED=1
"""
"""Run in the container's workspace, with the secrets of the credentials file (``HF_TOKEN``)."""


async def prepare_on(target: Target, recipe: Path, options: list[str]) -> int:
    """``stoker prepare --on TARGET``: make the prompts where the disk and the hub's cache are.

    ``options`` are those of ``python -m remote.prepare``; paths in them are the container's.
    """
    as_json = "--json" in options  # then standard output is one document and nothing else
    show = print if as_json else say
    async with at_place(target) as place:
        deployed = await push_agent(target, place)
        print(deployed, file=sys.stderr if as_json else sys.stdout, flush=True)
        word = str(recipe)
        if await asyncio.to_thread(recipe.is_file):
            word = f"{STOKER_DIR}/recipe-{recipe.name}"
            await push_file(place, recipe, word)
        spec = target.spec
        code = f"{spec.workspace}/{STOKER_DIR}/code/{own_version()}"
        script = PREPARE + ('exec "$@"' if as_json else 'exec "$@" 2>&1')
        shell = ["sh", "-c", script, "sh", spec.workspace, spec.credentials_file, code]
        command = [target.agent_python, "-m", "remote.prepare", word, *options]
        process = await place.open([*shell, *command])
        try:
            await process.write_eof()
            rest = b""
            while data := await process.read():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    show(line.decode("utf-8", "replace"))
            if rest:
                show(rest.decode("utf-8", "replace"))
            status = await process.wait()
            if as_json and process.errors:
                print(visible(process.errors.splitlines()[-1]), file=sys.stderr)
        finally:
            await process.close()
    if status is None:
        raise LinkError("the connection was lost; the same command goes on where it was", "lost")
    return status
