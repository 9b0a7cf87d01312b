"""How long a console waits before it tries again."""

from __future__ import annotations

import random

from console.link.errors import AuthError, LinkError

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
AUTH_BACKOFF_S = 10.0
"""Hosts lock out clients that repeat failed logins; see OpenSSH's PerSourcePenalties."""
REFUSED_BACKOFF_S = 30.0
"""Where a person has to change something, the way is tried again only now and then."""
ABSENT_S = (1.0, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Where somebody else may bring the agent back: soon, then ever more seldom."""
STANDING = ("refused", "usage", "undeployed")
"""Kinds of errors that stay until a person has changed something."""


def pause(error: LinkError, attempt: int) -> float:
    """Seconds until the next try, jittered so that consoles do not come back in step."""
    if isinstance(error, AuthError):
        base = AUTH_BACKOFF_S * (1 + min(attempt, 5))
        return base * random.uniform(1.0, 1.3)
    if error.kind in STANDING:
        return REFUSED_BACKOFF_S * random.uniform(0.8, 1.2)
    waits = ABSENT_S if error.kind == "absent" else BACKOFF_S
    return waits[min(attempt, len(waits) - 1)] * random.uniform(0.5, 1.5)
