"""One request between its HTTP face and the scheduler: what was asked, and how it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from console.lab.sim.answers import Plan
from console.lab.sim.tokens import tokenizer
from console.lab.sim.work import Work


@dataclass
class Sampling:
    """The sampling parameters that matter to a simulation."""

    max_new: int | None = None
    temperature: float | None = None
    top_k: int = -1
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Temperature 0, or one candidate."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(eq=False)
class Entry:
    """One open request of the tokenizer manager's table."""

    rid: str
    prompt: Sequence[int]
    """Everything that went in: prompt and what it continues."""
    plan: Plan
    work: Work
    stream: bool
    created: float
    future: asyncio.Future[str]
    matched: str | None = None
    """The stop string at which it ends."""
    thinking: bool = False

    @property
    def made(self) -> int:
        """Tokens generated."""
        return self.work.made

    @property
    def finish(self) -> dict[str, Any]:
        """``meta_info.finish_reason``."""
        how = self.future.result()
        if how == "abort" and self.work.unqueued:
            return {"type": "abort", "message": "Abort in waiting queue"}
        if how == "abort":
            why = {"message": "Aborted", "status_code": None, "err_type": None}
            return {"type": "abort", **why}
        if self.matched is not None and self.made >= self.work.target:
            return {"type": "stop", "matched": self.matched}
        if self.plan.ends and self.made >= self.plan.total:
            return {"type": "stop", "matched": tokenizer().eos}
        return {"type": "length", "length": self.made}

    def text(self) -> str:
        """The answer so far."""
        text = self.plan.text(self.made)
        if self.matched is not None and self.made >= self.work.target:
            text = text[: text.find(self.matched)]
        return text

    def ids(self) -> list[int]:
        """The tokens so far."""
        return self.plan.ids(self.made)

    def reasoning_tokens(self) -> int:
        """Tokens before the end of thinking."""
        return self.plan.thinking_tokens(self.made) if self.thinking else 0

    def stop_at(self, mark: str) -> None:
        """End at the first token that completes a stop string."""
        if not mark or self.plan.text(self.work.target).find(mark) < 0:
            return
        low, high = 0, self.work.target
        while low < high:
            middle = (low + high) // 2
            if mark in self.plan.text(middle):
                high = middle
            else:
                low = middle + 1
        self.work.target, self.matched = low, mark
