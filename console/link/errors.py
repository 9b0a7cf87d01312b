"""What a link can't do, in one line for people."""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "unreachable", "refused", "usage", "timeout", "lost", "undeployed", "absent"
]


class LinkError(Exception):
    """One line: what, and what to do.

    ``kind``: ``unreachable`` no answer from the machine; ``refused`` it answered and a person has
    to change something; ``usage`` the same, and it is what was asked, or the configuration, that is
    wrong; ``timeout`` no answer in time; ``lost`` the link went before the answer
    came, so its fate is unknown; ``undeployed`` there is no agent yet;
    ``absent`` it is not at work, and another console may start it at any moment.
    """

    def __init__(self, text: str, kind: Kind = "refused") -> None:
        super().__init__(text)
        self.kind: Kind = kind


class AuthError(LinkError):
    """The login was refused: hosts lock out clients that try again at once."""
