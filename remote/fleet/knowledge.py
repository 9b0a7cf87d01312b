"""What is known of the SGLang and the model that the servers run, and what follows for flags."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from remote.fleet import installed
from remote.fleet.launcher import Launcher
from remote.fleet.outside import Emit, FleetError, UsageError
from remote.fleet.server import Server
from remote.protocol import FlagCatalogue, Flags, Sizes, TargetSpec
from remote.sglang import capacity, dialect
from remote.sglang import flags as sglang_flags
from remote.sglang.catalogue import Catalogue, FlagError, check
from remote.sglang.refusals import refusals

_TRUE_FOR = 30.0
"""Seconds for which the answer about the installed SGLang is taken as still true."""

_ASK_AGAIN = 300.0
"""Seconds after which a parser that gave no answer is asked again: that costs up to two minutes."""


_OF_WEIGHTS = ("quantization", "dtype", "load-format", "cpu-offload-gb", "model-path")
"""Flags that decide how much of a card the weights take."""

Memory: TypeAlias = Callable[[int], tuple[int, int] | None]
"""Used and total MiB of a card; None where nobody knows."""


class Knowledge:
    """The installed SGLang's version and flags, and the model's sizes; asked once, kept."""

    def __init__(self, launcher: Launcher, emit: Emit, card: Callable[[], str | None]) -> None:
        self._launcher, self._emit, self._card = launcher, emit, card
        self._installed: installed.Installed | None = None
        self._config: capacity.Model | None = None
        self._model_name = ""
        self._lock = asyncio.Lock()
        self._asked, self._again = ("", ""), 0.0
        self._parser_again: float | None = None
        """When to ask again for flags that its parser did not tell; None where it did."""
        self.catalogue: Catalogue | None = None
        """None until it was asked, or where it cannot be."""
        self._problem = ""
        """Why there is no catalogue."""

    @property
    def version(self) -> str | None:
        """The installed SGLang's version."""
        return self._installed.version if self._installed is not None else None

    @property
    def is_new(self) -> bool:
        """Whether it speaks the dialect of 0.5.23."""
        return dialect.is_new(self.version, self.catalogue)

    @property
    def model(self) -> capacity.Model | None:
        """The model's sizes: by its name, else by its own configuration."""
        known = capacity.known_model(self._model_name)
        return known[0] if known is not None else self._config

    async def ask(self, spec: TargetSpec) -> None:
        """Ask the servers' Python for version and flags, unless that was done a moment ago.

        Raises nothing: where it cannot be asked, flags go unchecked and an event says so.
        """
        async with self._lock:
            asked = (spec.python, spec.fleet.model)
            if not spec.python:
                self._problem = "this target names no `python` that has SGLang"
            if not spec.python or (asked == self._asked and time.monotonic() < self._again):
                return
            if spec.python != self._asked[0]:
                self._installed = self.catalogue = None  # what another Python has says nothing
            self._asked, self._again = asked, time.monotonic() + _TRUE_FOR
            self._model_name = spec.fleet.model
            self._config = await asyncio.to_thread(_read_config, spec.fleet.model)
            try:
                env = await self._launcher.environment(spec)
            except FleetError as error:
                self._problem = str(error)
                return  # a start will say it
            found = await installed.find(spec.python, env)
            if found is None:
                self._problem = f"{spec.python} cannot be asked: is it a Python?"
                return
            if self._installed == found:
                if self._parser_again is None or time.monotonic() < self._parser_again:
                    return
            else:
                self._installed, self.catalogue = found, None
            self._parser_again = None
            if found.version is None:
                self._problem = f"{spec.python} has no SGLang"
                return
            try:
                await self._ask_flags(spec.python, found, env)
            except FlagError as error:
                self._problem = str(error)
                self._emit("fleet.flags", f"{error}; flags go unchecked", level="warning")

    async def _ask_flags(
        self, python: str, found: installed.Installed, env: dict[str, str]
    ) -> None:
        self._parser_again = time.monotonic() + _ASK_AGAIN
        cache = self._launcher.workspace.stoker
        self.catalogue = await installed.flags(python, env, found, cache)
        if self.catalogue.source == "parser":
            self._parser_again = None

    async def flags(self, spec: TargetSpec) -> FlagCatalogue:
        """All flags of the installed SGLang. Raises :class:`FleetError` where none are known."""
        await self.ask(spec)
        known = self.catalogue
        if known is None:
            raise FleetError(f"SGLang's flags are not known here: {self._problem}")
        return FlagCatalogue(known.flags, known.version, known.source)

    def checked(self, flags: Flags) -> tuple[Flags, list[str]]:
        """The flags as the installed SGLang takes them, and a line for each that was renamed.

        Raises :class:`FleetError` for flags that it refuses, or that are known to fail here.
        """
        said: list[str] = []
        try:
            sglang_flags.refuse_own(flags)
            if self.catalogue is not None:
                flags, said = dialect.translate(flags, self.catalogue)
                flags = check(self.catalogue, flags)
            else:
                flags = {name: sglang_flags.typed(value) for name, value in flags.items()}
        except FlagError as error:
            raise UsageError(str(error)) from error
        hybrid = self.model.hybrid if self.model is not None else None
        if refused := refusals(flags, self.is_new, card=self._card(), hybrid=hybrid):
            raise UsageError("; ".join(refused))
        return flags, said

    def changed(
        self, old: Flags, set_flags: Flags, unset_flags: list[str]
    ) -> tuple[Flags, list[str]]:
        """The old flags with some set and some removed, checked like :meth:`checked`.

        Old flags may be of another release: their names are brought up to date too.
        """
        try:
            sglang_flags.refuse_own(set_flags)
            if self.catalogue is not None:
                old, _ = dialect.translate(old, self.catalogue)
                set_flags, said = dialect.translate(set_flags, self.catalogue)
                unset, _ = dialect.translate(dict.fromkeys(unset_flags, True), self.catalogue)
                unset_flags = list(unset)
            else:
                said = []
            flags = sglang_flags.changed(old, set_flags, unset_flags)
        except FlagError as error:
            raise UsageError(str(error)) from error
        flags, _ = self.checked(flags)
        return flags, said

    def predict(
        self, flags: Flags, servers: Iterable[Server], memory: Memory
    ) -> capacity.Prediction | None:
        """Slots and memory under these flags, from the numbers that some server's start has
        printed (also of one that was not started here); None until one has."""
        known = self._measured(servers, memory)
        if known is None:
            return None
        card, model, _ = known
        return capacity.predict(flags, self.is_new, card, model)

    def shortage(self, flags: Flags, servers: Iterable[Server], memory: Memory) -> str:
        """Why no server would start with these flags for want of memory, in one line; empty where
        it would, and where that is not known (other weights than any start has loaded)."""
        known = self._measured(servers, memory)
        if known is None:
            return ""
        card, model, begun = known
        if any(flags.get(name) != begun.get(name) for name in _OF_WEIGHTS):
            return ""
        return capacity.shortage(flags, self.is_new, card, model)

    def sizes(self, server: Server, memory: Memory) -> Sizes | None:
        """What this server's start has shown of its card and its model."""
        known = self._measured([server], memory)
        return None if known is None else capacity.sizes(*known[:2])

    def _measured(
        self, servers: Iterable[Server], memory: Memory
    ) -> tuple[capacity.Card, capacity.Model, Flags] | None:
        """Card and model by what some server's start has printed, and the flags of that start."""
        for server in servers:
            facts, begun = server.reader.facts, server.launch or server.foreign
            if begun is None or facts.avail_before is None or facts.avail_after is None:
                continue
            known = memory(server.gpu)
            total = known[1] / 1024 if known is not None else facts.avail_before + capacity.RESERVED
            card = capacity.Card(total, facts.avail_before, facts.avail_after)
            model = capacity.learn(facts, begun.flags, self.is_new, self.model)
            if model is None:
                return None
            card = capacity.learn_slack(facts, begun.flags, self.is_new, card, model)
            return card, model, begun.flags
        return None


def _read_config(model: str) -> capacity.Model | None:
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return capacity.read_config(config) if isinstance(config, dict) else None
