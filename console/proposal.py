"""A restart that is thought about and not done yet: the edits, the way, what the agent said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from console import flags as flag_rules
from console import mixed, model
from console.actions import BY_NAME, command_line, danger
from console.feed import PLAN_S, FeedError
from console.notices import proposed
from console.watch import Watch
from remote.protocol import Flags, FlagValue, InFlight, Plan, Restart, Strategy

STRATEGIES: Final[tuple[Strategy, ...]] = ("rolling", "canary", "all")
MODES: Final[tuple[InFlight, ...]] = ("continue", "drain", "redo")
WITHIN: Final[tuple[float | None, ...]] = (None, 5, 10, 30, 60)
"""Minutes for a confirmation; None asks for none."""

Field: TypeAlias = Literal["strategy", "in_flight", "at_once", "within"]


@dataclass(frozen=True)
class How:
    """The way of a restart."""

    strategy: Strategy = "rolling"
    in_flight: InFlight = "continue"
    at_once: int = 1
    within: float | None = None
    """Minutes in which somebody has to confirm the new flags."""

    def fields(self, servers: int) -> list[Field]:
        """What can be chosen for so many servers."""
        if servers < 2:
            return ["in_flight", "within"]
        rest: list[Field] = ["at_once", "within"] if self.strategy != "all" else ["within"]
        return ["strategy", "in_flight", *rest]

    def turned(self, field: Field, by: int, servers: int) -> How:
        """The same with the next value of one field."""

        def turn(values: Sequence[object], now: object) -> object:
            at = values.index(now) if now in values else 0
            return values[(at + by) % len(values)]

        match field:
            case "strategy":
                return replace(self, strategy=turn(STRATEGIES, self.strategy))  # type: ignore[arg-type]
            case "in_flight":
                return replace(self, in_flight=turn(MODES, self.in_flight))  # type: ignore[arg-type]
            case "at_once":
                counts = list(range(1, max(2, servers)))
                return replace(self, at_once=turn(counts, self.at_once))  # type: ignore[arg-type]
            case "within":
                return replace(self, within=turn(WITHIN, self.within))  # type: ignore[arg-type]


class Proposal:
    """Of one target: of all its servers, or of the GPU that is chosen there.

    ``edits`` are flags already edited; without them those that were left unsent the last time.
    """

    def __init__(self, watch: Watch, edits: dict[str, FlagValue | None] | None = None) -> None:
        self.target = watch
        self.gpu = watch.focus_gpu
        self.before: Flags = model.current_flags(watch.state, self.gpu)
        self.edits: dict[str, FlagValue | None] = dict(watch.draft if edits is None else edits)
        self._offered: dict[str, FlagValue | None] = {}
        """Edits it began with by itself."""
        if self.gpu is None and not self.edits:
            self._offered = mixed.finishing(watch.state, self.before)
            self.edits = dict(self._offered)
        self.how = How()
        self.plans: dict[str, Plan] = {}
        """What the agent said of each strategy."""

    @property
    def after(self) -> Flags:
        """The flags as edited."""
        return flag_rules.apply(self.before, self.edits)

    @property
    def changes(self) -> list[model.FlagChange]:
        """What the edits change of what runs."""
        return model.flag_changes(self.before, self.after)

    @property
    def plan(self) -> Plan | None:
        """What the agent said of the chosen strategy."""
        return self.plans.get(self.how.strategy)

    @property
    def gpus(self) -> list[int] | None:
        """The servers meant; None for all."""
        return None if self.gpu is None else [self.gpu]

    @property
    def scope(self) -> list[int]:
        """The same, as numbers."""
        return self.gpus or self.target.state.numbers

    @property
    def restarts(self) -> list[int]:
        """Those of them that the plan restarts: others may have the flags already."""
        plan = self.plan or next(iter(self.plans.values()), None)
        return plan.swap.gpus if plan is not None and plan.swap is not None else self.scope

    @property
    def asks_word(self) -> bool:
        """Whether a word has to be typed."""
        numbers = self.target.state.numbers
        return danger(BY_NAME["restart"], len(self.scope), len(numbers)) == "word"

    @property
    def fields(self) -> list[Field]:
        """What of the way can be chosen."""
        return self.how.fields(len(self.restarts))

    def edit(self, name: str, value: FlagValue | None) -> None:
        """Take one edit in, or back where it says what runs; what was planned is void."""
        if model.flag_text(value) == model.flag_text(self.before.get(name)):
            self.edits.pop(name, None)
        else:
            self.edits[name] = value
        self.plans.clear()

    def take_advice(self) -> None:
        """Edit what the verdict proposes."""
        self.edits |= self.advised()
        self.plans.clear()

    def advised(self) -> dict[str, FlagValue | None]:
        """What the verdict proposes and is not edited so yet."""
        change = proposed(self.target.state).items()
        wanted = {name: None if value is False else value for name, value in change}
        left = {n: v for n, v in wanted.items() if self.edits.get(n, self) != v}
        return {n: v for n, v in left.items() if self.before.get(n) != v}

    def keep(self) -> bool:
        """Leave edits of the whole fleet for the next time; whether there were any of one's own."""
        if self.gpu is not None:
            return False
        self.target.draft = dict(self.edits) if self.edits != self._offered else {}
        return bool(self.target.draft)

    # --- as words and requests ---

    def shell_line(self) -> str:
        """The command line that does the same."""
        request = self.request(dry_run=False)
        return command_line(
            BY_NAME["restart"],
            self.target.name,
            gpus=self.gpus,
            set_flags=request.set_flags if request is not None else {},
            unset_flags=request.unset_flags if request is not None else (),
            more=self._options(),
            file=self.target.file,
        )

    def _options(self) -> Sequence[str]:
        """The way of the restart as options of the command line."""
        how = self.how
        words = ["--strategy", how.strategy] if len(self.scope) > 1 else []
        words += ["--in-flight", how.in_flight]
        if how.at_once > 1 and "at_once" in self.fields:
            words += ["--at-once", str(how.at_once)]
        if how.within is not None:
            words += ["--confirm-within", f"{how.within:g}"]
        return words

    def request(self, *, dry_run: bool, how: How | None = None) -> Restart | None:
        """What is asked of the agent; None while nothing is known of the target."""
        spec = self.target.state.target
        if spec is None:
            return None
        how = how or self.how
        shown = self.plans.get(how.strategy)
        return Restart(
            spec=spec,
            set_flags={n: v for n, v in self.edits.items() if v is not None},
            unset_flags=[n for n, v in self.edits.items() if v is None and n in self.before],
            strategy=how.strategy,
            gpus=self.gpus,
            in_flight=how.in_flight,
            at_once=how.at_once if how.strategy != "all" else 1,
            confirm_within_min=how.within,
            take_over=[] if dry_run or shown is None else shown.take_over,
            dry_run=dry_run,
        )

    async def ask(self, strategy: Strategy) -> str:
        """Have the agent plan one strategy, nothing done; why it refused, or nothing. A plan of
        flags that were edited again by then is not kept."""
        edits = dict(self.edits)
        request = self.request(dry_run=True, how=replace(self.how, strategy=strategy))
        if request is None:
            return "nothing is known of the target yet"
        try:
            found = await self.target.call(request, PLAN_S)
        except FeedError as error:
            return str(error)
        if isinstance(found, Plan) and edits == self.edits:
            self.plans[strategy] = found
        return ""
