"""What the fleet needs of others, and the one error it raises to them."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

Dispatch: TypeAlias = Literal["run", "pause", "abort", "redo"]


class FleetError(Exception):
    """It was not done; one line that says why and what to do."""

    code = "refused"
    """Of what kind it is, as :class:`remote.protocol.Failure` has it."""


class UsageError(FleetError):
    """What was asked for can never be done: flags that SGLang does not take, a number that is
    none."""

    code = "usage"


class InVainError(FleetError):
    """The same, and another try would end the same way."""


class RunSide(Protocol):
    """The run, as the fleet may steer it: one server at a time, by GPU."""

    def dispatch(self, gpu: int, do: Dispatch) -> None:
        """``run``; ``pause``: nothing new to this server; ``abort``: break off what it has, to be
        continued elsewhere; ``redo``: break off, to be generated again."""

    def in_flight(self, gpu: int) -> int | None:
        """Requests that the run has open on this server, those among them whose interrupted
        answer is not on disk yet; None where no run is alive."""

    async def refresh(self) -> None:
        """Take in the run's newest account of itself."""

    def unable(self) -> str:
        """Why interrupted answers could not be continued; empty where they can."""

    def tokens(self) -> tuple[int, int]:
        """Output tokens of interrupted answers that the run's process has kept and lost."""

    def server(
        self, gpu: int, *, max_running: int | None, epoch: int | None, process: str, tried: bool
    ) -> None:
        """A server process got ready: what it admits at once, its identity, and whether a real
        completion has come from it."""


class Report(Protocol):
    """What the driver told of a card."""

    @property
    def words(self) -> str:
        """In one line, with what is to be done."""

    @property
    def again(self) -> bool:
        """Whether a server may be started on that card as it is."""


class Emit(Protocol):
    """Puts an event into the journal."""

    def __call__(
        self,
        kind: str,
        text: str,
        *,
        gpu: int | None = None,
        level: Literal["info", "warning", "error"] = "info",
        who: str = "",
    ) -> object: ...
