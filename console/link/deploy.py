"""Bring ``remote/`` into the container and start its agent; a no-op when it is current."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import tarfile
from pathlib import Path

import remote
from console.config import Target
from console.link import place as places
from console.link.errors import LinkError
from console.link.place import Place
from console.link.remote import far

PACKAGE = Path(remote.__file__).resolve().parent
MODULES = ("msgspec", "httpx", "httpx_aiohttp", "aiohttp", "psutil")
"""What the agent and the run import."""
EXTRAS = {
    "boto3": "nothing can be uploaded to S3",
    "jsonschema_rs": "the arguments of tool calls are not held against their schemas",
}
"""What they do without, and how."""


def files(package: Path = PACKAGE) -> dict[str, bytes]:
    """Name → content of every file that is deployed."""
    return {
        f"remote/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith(".")
        and path.suffix not in (".pyc", ".pyo")
    }


def version_of(content: dict[str, bytes]) -> str:
    """What names a version: the first 16 digits of the sha256 over names and contents."""
    digest = hashlib.sha256()
    for name, data in sorted(content.items()):
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def pack(content: dict[str, bytes]) -> bytes:
    """A tar of the files, the same bytes for the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(content.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


@functools.cache
def own() -> tuple[str, dict[str, bytes]]:
    """The version that this console deploys, and its files: read once, since what runs here is
    what was there when it started."""
    content = files()
    return version_of(content), content


def own_version() -> str:
    """The version that this console would deploy."""
    return own()[0]


async def deploy(target: Target, place: Place | None = None) -> str:
    """Deploy to a target; returns one line of what was done.

    Servers and run go on: only the agent is exchanged. Raises LinkError.
    """
    if target.read_only:
        raise LinkError(f"{target.name} is read-only: nothing is deployed")
    here = place or await places.reach(target)
    try:
        return await _deploy(target, here)
    finally:
        if place is None:
            await here.close()


async def _deploy(target: Target, place: Place) -> str:
    version, content = await asyncio.to_thread(own)
    order = {"workspace": target.spec.workspace, "folder": remote.STOKER_DIR, "version": version}
    found = await far(place, {**order, "do": "probe", "modules": [*MODULES, *EXTRAS]})
    note = _lacking(target, place, found["missing"])
    agent = found["agent"]
    if agent and agent.get("code") == version and found["current"] == version:
        return f"{target.name}: current ({version}), agent pid {agent.get('pid')}{note}"
    did = []
    if version not in found["versions"]:
        raw = await asyncio.to_thread(pack, content)
        send = {**order, "do": "install", "size": len(raw)}
        await far(place, {**send, "sha256": hashlib.sha256(raw).hexdigest()}, raw, timeout=120)
        did.append(f"pushed {version} ({len(content)} files, {len(raw) / 1e6:.1f} MB)")
    switched = await far(place, {**order, "do": "switch"}, timeout=90)
    did += switched["did"]
    return f"{target.name}: {', '.join(did)}, pid {switched['pid']}{note}"


def _lacking(target: Target, place: Place, missing: list[str]) -> str:
    needed = [name for name in missing if name not in EXTRAS]
    names = " ".join(name.replace("_", "-") for name in needed)
    if needed:
        raise LinkError(
            f"{place.name}: agent_python lacks {', '.join(needed)}: "
            f"`{target.agent_python} -m pip install {names}` there"
        )
    told = [name for name in missing if name != "boto3" or target.spec.run.s3.bucket]
    return "".join(
        f"; note: agent_python lacks {name.replace('_', '-')}: {EXTRAS[name]}" for name in told
    )
