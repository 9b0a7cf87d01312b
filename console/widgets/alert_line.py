"""The worst that is wrong now, in one line with its key, on the screens without the notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.notices import Notice
from console.widgets.notices import notice_row
from console.widgets.paint import Line, Painted

if TYPE_CHECKING:
    from console.app import StokerApp

UNCHANGING = ("verdict", "outlier.", "run.none", "run.paused")
"""What is worth knowing on the home screen and calls nobody from his work elsewhere."""


def worst(found: list[Notice]) -> list[Notice]:
    """What is wrong, worst first."""
    return [
        notice
        for notice in found
        if notice.level in ("error", "warning") and not notice.code.startswith(UNCHANGING)
    ]


class AlertLine(Painted):
    """One row, none when nothing is wrong."""

    app: StokerApp

    @property
    def found(self) -> list[Notice]:
        """What is wrong now."""
        return worst(self.app.notices())

    def paint(self, width: int, height: int) -> list[Line]:
        """See :class:`Painted`."""
        found = self.found
        return [notice_row(found, width)] if found else []
