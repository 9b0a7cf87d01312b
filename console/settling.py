"""Bring the agent the settings of stoker.toml that need no restart."""

from __future__ import annotations

from console.config import Target
from console.session import Session, session
from remote.protocol import Done, TakeSettings


async def settle(here: Session) -> str:
    """Over a connection; what was sent and what else differs, in one line. Raises LinkError."""
    done = await here.call(TakeSettings(spec=here.target.spec))
    return done.text if isinstance(done, Done) else ""


async def settled(target: Target) -> str:
    """The same over a connection of its own."""
    async with session(target) as here:
        return await settle(here)
