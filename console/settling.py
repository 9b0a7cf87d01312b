"""Bring the agent the settings of stoker.toml that need no restart."""

from __future__ import annotations

import asyncio

from console.config import ConfigError, Target
from console.link.errors import LinkError
from console.session import Session, session
from console.unsent import reread
from remote.protocol import Done, TakeSettings


async def settle(here: Session) -> str:
    """Over a connection; what was sent and what else differs, in one line. Raises LinkError."""
    done = await here.call(TakeSettings(spec=here.target.spec))
    return done.text if isinstance(done, Done) else ""


async def settled(target: Target) -> str:
    """The same over a connection of its own, of what the target's file says now. Raises LinkError,
    which says that it is this that failed."""
    try:
        async with session(await asyncio.to_thread(reread, target)) as here:
            return await settle(here)
    except (ConfigError, LinkError) as error:
        kind = error.kind if isinstance(error, LinkError) else "usage"
        what = "the settings of stoker.toml were not sent (another deploy sends them)"
        raise LinkError(f"{what}: {error}", kind) from None
