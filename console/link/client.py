"""The console's end of the one stream of messages: connect, call, subscribe, reconnect."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from console.config import Target
from console.link import backoff, deploy
from console.link import place as places
from console.link.errors import LinkError
from console.link.place import Place
from console.link.process import Process
from remote.protocol import (
    HEARTBEAT_S,
    MAX_LINE,
    READ_ONLY,
    SILENCE_S,
    STOKER_DIR,
    VERSION,
    Call,
    Decoder,
    Failure,
    Happened,
    Heartbeat,
    Hello,
    LogPart,
    Message,
    Reply,
    Request,
    Result,
    Shutdown,
    Subscribe,
    encode,
)

__all__ = ["Client", "LinkError", "LinkStatus"]

log = logging.getLogger("link")

QUIET_S = 25.0
"""A link that brings nothing for so long is lost, whatever the connection says."""
HELLO_S = 40.0
"""Time for the bridge to come up, an agent's start included."""
EXITS = {3: "no agent", 4: "the agent ended", 5: "the console was silent"}

State = Literal["connecting", "connected", "reconnecting", "read-only", "failed", "closed"]


@dataclass(frozen=True)
class LinkStatus:
    """How the link is, in one line, since when (Unix seconds)."""

    state: State
    text: str
    since: float


class _SilentError(LinkError):
    """Nothing came for too long."""


class Client:
    """One target's link. :meth:`run` keeps it up; everything else may be called meanwhile.

    ``on_message`` gets what the agent pushes, ``on_status`` every change of the link; both are
    called on the loop and must not block.
    """

    def __init__(
        self,
        target: Target,
        *,
        on_message: Callable[[Message], None],
        on_status: Callable[[LinkStatus], None],
    ) -> None:
        self.target = target
        self.status = LinkStatus("connecting", "connecting", time.time())
        self.agent: Hello | None = None
        """The agent's greeting, once there was one."""
        self.bad_lines = 0
        self._on_message = on_message
        self._on_status = on_status
        self._place: Place | None = None
        self._process: Process | None = None
        self._out = asyncio.Lock()
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Result]] = {}
        self._wanted: Subscribe | None = None
        self._heard = 0.0
        self._said = 0.0
        self._settled = asyncio.Event()
        """Set while no attempt is under way: connected, or waiting after a failure."""
        self._error: LinkError | None = None
        self._closing = asyncio.Event()
        self._awake = asyncio.Event()
        """Set to end the wait between two tries."""

    # --- what the console does ---

    async def run(self) -> None:
        """Connect, and again whenever the link is lost, until :meth:`close`."""
        attempt = 0
        try:
            while not self._closing.is_set():
                began = time.monotonic()
                self._settled.clear()
                try:
                    await self._until_closed(self._session())
                    error = LinkError(f"{self.target.name}: the link was lost", "lost")
                except LinkError as caught:
                    error = caught
                except OSError as caught:
                    error = LinkError(f"{self.target.name}: the link was lost: {caught}", "lost")
                self._error = error
                self._settled.set()
                self._fail_calls()
                mistrusted = error.kind not in ("lost", "absent") or isinstance(error, _SilentError)
                await self._let_go(everything=mistrusted or not self._host_alive)
                if self._closing.is_set():
                    break
                if self.agent is not None and time.monotonic() - began > 30:
                    attempt = 0
                wait = backoff.pause(error, attempt)
                attempt += 1
                failed = error.kind in (*backoff.STANDING, "absent") or self.agent is None
                self._tell("failed" if failed else "reconnecting", str(error))
                self._awake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0 if self._closing.is_set() else wait):
                        await self._awake.wait()
        finally:
            self._closing.set()
            self._error = LinkError(f"{self.target.name}: the link is closed", "lost")
            self._settled.set()
            self._fail_calls()
            await self._let_go(everything=True)
            self._tell("closed", "closed")

    async def _until_closed(self, session: Coroutine[Any, Any, None]) -> None:
        work = asyncio.ensure_future(session)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([work, closing], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, closing):
                task.cancel()
            await asyncio.gather(work, closing, return_exceptions=True)

    async def call(self, request: Request, timeout: float = 30) -> Result:
        """Have a request done. Raises LinkError: when it was refused, when there is no link (after
        waiting for the attempt under way), when no answer came in time, or when the link was lost
        before the answer: then its fate is unknown and the events tell."""
        mutating = not isinstance(request, READ_ONLY)
        if mutating and self.target.read_only:
            raise LinkError(f"{self.target.name} is read-only: this console only looks", "usage")
        try:
            async with asyncio.timeout(timeout):
                await self._settled.wait()
                if self._process is None or self.agent is None:
                    raise self._error or LinkError(f"{self.target.name}: no link", "lost")
                if mutating and self.status.state == "read-only" and request != Shutdown():
                    raise LinkError(self.status.text)
                number = next(self._ids)
                answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
                self._calls[number] = answer
                try:
                    await self._send(Call(id=number, request=request))
                    return await answer
                finally:
                    self._calls.pop(number, None)
        except TimeoutError:
            name = type(request).__name__
            text = f"{self.target.name}: no answer to {name} within {timeout:.0f} s"
            raise LinkError(text, "timeout") from None
        except OSError as error:
            raise LinkError(f"{self.target.name}: the link was lost: {error}", "lost") from None

    async def subscribe(self, wanted: Subscribe) -> None:
        """What is to be pushed from now on; remembered, and asked for again after a reconnect
        from where the last message left off."""
        self._wanted = wanted
        if self._process is not None and self.agent is not None and self._settled.is_set():
            with contextlib.suppress(OSError):  # a lost link asks again by itself
                await self._send(Call(id=next(self._ids), request=wanted))

    def hurry(self) -> None:
        """Try again now where it waits between two tries."""
        self._awake.set()

    async def close(self) -> None:
        """End the link; :meth:`run` returns."""
        self._closing.set()
        self._awake.set()

    # --- one session ---

    async def _session(self) -> None:
        """Connect, greet, and read until the link ends. Raises LinkError or OSError."""
        if self._place is None or not self._host_alive:
            self._tell_trying(f"connecting to {self.target.ssh or 'this machine'}")
            self._place = await places.reach(self.target)
        marker = secrets.token_hex(16)
        process = await self._place.open(self._bridge(marker))
        self._process = process
        self._heard = time.monotonic()
        lines = _lines(process, self)
        try:
            async with asyncio.timeout(HELLO_S):
                await self._greet(process, lines, marker)
        except TimeoutError:
            raise await self._place.explain_timeout(HELLO_S) from None
        # Whatever ends first ends the session: over a half-open connection reading never does.
        work = [
            asyncio.ensure_future(self._read(process, lines)),
            asyncio.ensure_future(self._beat(process)),
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    def _bridge(self, marker: str) -> list[str]:
        python = self.target.agent_python
        if not python:
            raise LinkError(
                f"agent_python is not set for {self.target.name}: name an interpreter in the "
                "container that has the agent's libraries, then "
                f"`{self.target.command('deploy')}`",
                "usage",
            )
        workspace = self.target.spec.workspace
        code = f"{workspace}/{STOKER_DIR}/code/current"
        return [
            "env",
            "LC_ALL=C.UTF-8",
            "PYTHONSAFEPATH=1",
            f"PYTHONPATH={code}",
            python,
            # By its path, not -m: a `remote` elsewhere on the interpreter's path is not ours.
            f"{code}/remote/bridge.py",
            "--workspace",
            workspace,
            "--marker",
            marker,
            "--silence",
            f"{SILENCE_S:g}",
            # Looking changes nothing: whoever may only look does not start an agent.
            *([] if self.target.read_only else ["--start"]),
        ]

    async def _greet(self, process: Process, lines: AsyncIterator[bytes], marker: str) -> None:
        """Skip to the marker, exchange hellos, subscribe."""
        async for line in lines:
            # A login script may have left a line unfinished before it.
            if line.rstrip().endswith(marker.encode()):
                break
        else:
            raise await self._not_started(process)
        own = deploy.own_version()
        hello = Hello(version=VERSION, code=own, role="console", who=who(), spec=self.target.spec)
        with contextlib.suppress(OSError):  # a bridge that is gone already has said why before
            await self._send(hello)
        decoder = Decoder()
        async for line in lines:
            message = decoder.feed(line)
            if isinstance(message, Failure):
                raise self._no_agent(message)
            if isinstance(message, Hello):
                break
        else:
            raise await self._ended(process)
        self.agent = message
        self._settle(message)
        if self._wanted is not None:
            await self._send(Call(id=next(self._ids), request=self._wanted))

    def _settle(self, agent: Hello) -> None:
        self._error = None
        own = deploy.own_version()
        if agent.version != VERSION or agent.code != own:
            self._tell(
                "read-only",
                f"the agent there is another version ({agent.code}, here {own}): read-only until "
                f"`{self.target.command('deploy')}` exchanges it; servers and run go on",
            )
        elif self.target.read_only:
            self._tell("read-only", "read-only: this console only looks")
        else:
            self._tell("connected", f"connected to {self._name}")
        self._settled.set()

    async def _read(self, process: Process, lines: AsyncIterator[bytes]) -> None:
        decoder = Decoder()
        async for line in lines:
            message = decoder.feed(line)
            self.bad_lines += decoder.bad
            decoder.bad = 0
            if message is not None:
                self._take(message)
        raise await self._ended(process)

    def _take(self, message: Message) -> None:
        match message:
            case Reply(id=number, result=result):
                if (answer := self._calls.get(number)) and not answer.done():
                    answer.set_result(result)
            case Failure(id=number, text=text, code=code):
                if (answer := self._calls.get(number)) and not answer.done():
                    answer.set_exception(LinkError(text, "usage" if code == "usage" else "refused"))
            case Heartbeat():
                pass
            case _:
                self._advance(message)
                try:
                    self._on_message(message)
                except Exception:
                    log.exception("showing a %s failed", type(message).__name__)

    def _advance(self, message: Message) -> None:
        """Move the remembered subscription's cursors past what came."""
        wanted = self._wanted
        if wanted is None:
            return
        match message:
            case Happened(event=event) if wanted.events_after is not None:
                after = max(wanted.events_after, event.id)
                self._wanted = msgspec.structs.replace(wanted, events_after=after)
            case LogPart(source=source, inode=inode, next=following) if source in wanted.logs:
                logs = {**wanted.logs, source: (inode, following)}
                self._wanted = msgspec.structs.replace(wanted, logs=logs)

    async def _beat(self, process: Process) -> None:
        """Say something every ten seconds; end a link that says nothing back."""
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            if now - self._heard > QUIET_S:
                # Half open: the connection itself is not to be trusted any more.
                raise _SilentError(f"{self.target.name}: silent for {QUIET_S:.0f} s", "lost")
            if now - self._said >= HEARTBEAT_S:
                with contextlib.suppress(OSError):
                    await self._send(Heartbeat(time=time.time()))

    async def _send(self, message: Message) -> None:
        process = self._process
        if process is None:
            raise ConnectionResetError("no link")
        async with self._out:
            self._said = time.monotonic()
            await process.write(encode(message))

    # --- how it ended ---

    def _no_agent(self, said: Failure) -> LinkError:
        """The bridge found none. A console that acts has tried to start it in vain; for one that
        only looks another console may start it at any moment."""
        if self.target.read_only and said.code == "no-agent":
            text = (
                f"no agent runs for {self.target.spec.workspace}; a console that may act starts it"
            )
            return LinkError(f"{self._name}: {text}", "absent")
        return LinkError(f"{self._name}: {said.text}", "undeployed")

    async def _not_started(self, process: Process) -> LinkError:
        """The bridge did not come up: why."""
        assert self._place is not None
        status = await process.wait()
        words = process.errors
        if "remote/bridge.py" in words and "No such file" in words:
            how = self.target.command("deploy")
            return LinkError(f"{self._name}: Stoker is not deployed there: `{how}`", "undeployed")
        done = places.Completed(status, b"", words)
        return await self._place.explain(done, "starting the bridge")

    async def _ended(self, process: Process) -> LinkError:
        assert self._place is not None
        status = await process.wait()
        why = EXITS.get(status if status is not None else -1)
        if status is not None and why is None:
            done = places.Completed(status, b"", process.errors)
            if cause := await self._place.diagnose(done):
                return LinkError(cause)
        # It did work a moment ago: whatever it was, try again.
        return LinkError(f"{self._name}: {why or 'the connection was lost'}", "lost")

    async def _let_go(self, *, everything: bool) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        if everything and self._place is not None:
            place, self._place = self._place, None
            await place.close()

    def _fail_calls(self) -> None:
        for answer in self._calls.values():
            if not answer.done():
                text = f"{self.target.name}: the link was lost before the answer: see the events"
                answer.set_exception(LinkError(text, "lost"))

    @property
    def error(self) -> LinkError | None:
        """Why there is no link."""
        return self._error

    @property
    def _host_alive(self) -> bool:
        return self._place is not None and self._place.host.alive

    @property
    def _name(self) -> str:
        return self._place.name if self._place else self.target.name

    def _tell_trying(self, text: str) -> None:
        if self.agent is None and self.status.state == "connecting":
            self._tell("connecting", text)

    def _tell(self, state: State, text: str) -> None:
        if (state, text) != (self.status.state, self.status.text):
            since = self.status.since if state == self.status.state else time.time()
            self.status = LinkStatus(state, text, since)
            self._on_status(self.status)


def who() -> str:
    """Who asks, for the journal: the user at this machine."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


async def _lines(process: Process, client: Client) -> AsyncIterator[bytes]:
    """Whole lines of a command's output; one that never ends is dropped."""
    rest = b""
    dropping = False
    while data := await process.read():
        client._heard = time.monotonic()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not dropping:
                yield line
            dropping = False
        if len(rest) > 2 * MAX_LINE:
            rest, dropping = b"", True
            client.bad_lines += 1
