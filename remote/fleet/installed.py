"""The SGLang that the servers' Python has: its version and its flags, asked in a subprocess."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from remote.fleet.environment import output
from remote.fleet.holder import AGENTS_OWN
from remote.sglang import catalogue as sglang_catalogue
from remote.sglang import source
from remote.sglang.catalogue import Catalogue, FlagError

SECONDS = 120.0
"""Importing SGLang takes 5-20 s on a cold disk cache."""

_WHERE = (
    "import sys, sysconfig\n"
    "from importlib import metadata\n"
    "try:\n"
    "    d = metadata.distribution('sglang')\n"
    "    print(d.version); print(d.locate_file(''))\n"
    "except metadata.PackageNotFoundError:\n"
    "    print('-'); print(sysconfig.get_path('purelib'))\n"
)
_SCRIPT = Path(sglang_catalogue.__file__).with_name("introspect.py")


class Installed(Struct, frozen=True):
    """One installed SGLang."""

    version: str | None
    """None where the Python has no distribution of that name."""
    folder: str
    """Where its packages lie."""
    key: str
    """Changes with Python, version and the folder's contents."""


async def run(argv: list[str], env: dict[str, str], seconds: float) -> tuple[int, bytes, bytes]:
    """Run the servers' Python as they do, with no card in sight. See :func:`output`."""
    kept = {k: v for k, v in env.items() if k not in AGENTS_OWN or k == "PYTHONPATH"}
    return await output(argv, {**kept, "CUDA_VISIBLE_DEVICES": ""}, seconds)


async def find(python: str, env: dict[str, str]) -> Installed | None:
    """Which SGLang this Python would run, without importing it; None where it cannot be asked."""
    try:
        code, out, _ = await run([python, "-c", _WHERE], env, 30.0)
    except (OSError, TimeoutError):
        return None
    lines = out.decode("utf-8", "replace").splitlines()
    if code != 0 or len(lines) < 2:
        return None
    version, folder = (None if lines[0] == "-" else lines[0]), lines[1]

    def modified() -> int:
        try:
            return os.stat(folder).st_mtime_ns  # noqa: PTH116 -- one call in a thread
        except OSError:
            return 0

    seen = f"{python}\0{version}\0{folder}\0{await asyncio.to_thread(modified)}"
    return Installed(version, folder, hashlib.sha256(seen.encode()).hexdigest()[:16])


async def flags(python: str, env: dict[str, str], which: Installed, cache: Path) -> Catalogue:
    """The flags of this SGLang: as kept in the cache folder, from its parser, or from its source.

    Only the parser's answer is kept. Raises :class:`FlagError` where neither can be read.
    """
    kept = cache / f"flags-{which.key}.json"
    with contextlib.suppress(OSError, FlagError):
        return sglang_catalogue.load(await asyncio.to_thread(kept.read_bytes))
    try:
        found = await _ask_parser(python, env)
    except FlagError as error:
        try:
            return await asyncio.to_thread(source.read, Path(which.folder), which.version)
        except FlagError as second:
            raise FlagError(f"{error}; {second}") from second
    with contextlib.suppress(OSError):
        await asyncio.to_thread(_keep, kept, found)
    return found


async def _ask_parser(python: str, env: dict[str, str]) -> Catalogue:
    script = await asyncio.to_thread(_SCRIPT.read_text, "utf-8")
    try:
        code, out, err = await run([python, "-c", script], env, SECONDS)
    except (OSError, TimeoutError) as error:
        why = "it took too long" if isinstance(error, TimeoutError) else error.strerror
        raise FlagError(f"SGLang's parser could not be asked: {why}") from error
    if code != 0:
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise FlagError(f"SGLang's parser could not be asked: {''.join(last)[:200]}")
    return sglang_catalogue.load(out.strip().rpartition(b"\n")[2])


def _keep(path: Path, found: Catalogue) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(found))
    temporary.replace(path)
    for earlier in set(path.parent.glob("flags-*.json")) - {path}:
        earlier.unlink(missing_ok=True)
