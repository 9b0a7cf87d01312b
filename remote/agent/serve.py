"""The agent's socket: connections, calls, and what is pushed to each subscriber.

Nothing is queued for a subscriber but the replies it asked for. Everything else is pulled at the
moment the connection can take it: the newest snapshot as a difference to the last one sent,
events behind a cursor, log lines behind a cursor, the newest readings. So a slow subscriber
misses pictures in between and is told how many lines or events it missed, memory stays bounded,
and nothing else waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from remote.agent import diff, logs
from remote.agent.diff import Picture
from remote.protocol import (
    HEARTBEAT_S,
    MAX_LINE,
    VERSION,
    Call,
    Decoder,
    Done,
    Event,
    Failure,
    Happened,
    Heartbeat,
    Hello,
    LogPart,
    Message,
    Reading,
    Reply,
    Request,
    Result,
    Skipped,
    Subscribe,
    encode,
)

log = logging.getLogger("agent.serve")

PICTURE_S = 1.0
LOGS_S = 0.4
READINGS_S = 3.0
BUFFER = 256 * 1024
"""Bytes that may wait in a connection before nothing more is composed for it."""
EVENTS_AT_ONCE = 200
EVENTS_BEHIND = 1000
"""A subscriber further behind is brought here, and told how many events it missed."""
CALLS_OPEN = 64
"""Calls of one connection that may be open; more are not read before some are answered."""


class RequestError(Exception):
    """A request that is not done: one line that says what and what to do.

    ``code`` says of what kind it is, as :class:`remote.protocol.Failure` has it.
    """

    def __init__(self, text: str, code: str = "refused") -> None:
        super().__init__(text)
        self.code = code


class Source(Protocol):
    """What a connection shows of the agent."""

    code: str

    def picture(self) -> Picture: ...
    def readings(self) -> list[Reading]: ...
    def log_path(self, source: str) -> Path | None: ...
    def hello(self, hello: Hello) -> None: ...
    def came(self, role: str) -> None: ...
    def left(self, role: str) -> None: ...
    async def answer(self, request: Request, who: str) -> Result: ...
    async def events(self, after: int, limit: int) -> list[Event]: ...
    @property
    def first_event(self) -> int: ...
    @property
    def last_event(self) -> int: ...


class _Asked(msgspec.Struct, tag="call"):
    """A call, whatever it asks for."""

    id: int


class Connection:
    """One console, or the run."""

    def __init__(
        self, agent: Source, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._agent = agent
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._replies: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._open_calls = asyncio.Semaphore(CALLS_OPEN)
        self._calls: set[asyncio.Task[None]] = set()
        self._wanted: Subscribe | None = None
        self._sent: Picture | None = None
        self._seq = 0
        self._event_cursor: int | None = None
        self._cursors: dict[str, tuple[int, int]] = {}
        self._alive: dict[str, bool] = {}
        self.role = "console"
        self.who = ""
        self.greeted = False
        self._came = ""

    async def serve(self) -> None:
        """Until the other side goes."""
        transport = self._writer.transport
        transport.set_write_buffer_limits(high=BUFFER)
        self._reply(Hello(version=VERSION, code=self._agent.code, role="agent", pid=os.getpid()))
        pusher = asyncio.create_task(self._push())
        try:
            await self._read()
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            log.info("connection of %s ended: %s", self.who or self.role, error)
        finally:
            for task in (pusher, *self._calls):
                task.cancel()
            await asyncio.gather(pusher, *self._calls, return_exceptions=True)
            transport.abort()
            if self.greeted:
                self._agent.left(self._came)

    # --- in ---

    async def _read(self) -> None:
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as error:
                await self._reader.readexactly(error.consumed)
                self._decoder.bad += 1
                continue
            except asyncio.IncompleteReadError:
                return
            message = self._decoder.feed(line)
            match message:
                case Hello():
                    if not self.greeted:
                        self._came = message.role
                        self._agent.came(message.role)
                    self.role, self.who, self.greeted = message.role, message.who, True
                    self._agent.hello(message)
                case Call():
                    await self._open_calls.acquire()
                    task = asyncio.create_task(self._call(message))
                    self._calls.add(task)
                    task.add_done_callback(self._calls.discard)
                case None:
                    self._refuse(line)
                case _:
                    pass  # heartbeats

    def _refuse(self, line: bytes) -> None:
        """Answer a request that only another version knows; nothing to what is none at all."""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            asked = msgspec.json.decode(line, type=_Asked)
            text = "the agent there is another version and does not know this request"
            self._reply(Failure(id=asked.id, text=text, code="protocol"))

    async def _call(self, call: Call) -> None:
        try:
            if not self.greeted:
                raise RequestError("say hello first", "protocol")
            if isinstance(call.request, Subscribe):
                self._subscribe(call.request)
                result: Result = Done()
            else:
                result = await self._agent.answer(call.request, self.who)
            self._reply(Reply(id=call.id, result=result))
        except RequestError as refused:
            self._reply(Failure(id=call.id, text=str(refused), code=refused.code))
        except Exception as error:
            log.exception("request %s failed", type(call.request).__name__)
            text = f"the agent failed on this: {type(error).__name__}: {error}; see agent.log"
            self._reply(Failure(id=call.id, text=text, code="internal"))
        finally:
            self._open_calls.release()

    def _subscribe(self, wanted: Subscribe) -> None:
        self._wanted = wanted
        self._sent = None
        self._event_cursor = wanted.events_after
        self._cursors = dict(wanted.logs)
        self._alive = {}
        self._wake.set()

    def _reply(self, message: Message) -> None:
        self._replies.append(message)
        self._wake.set()

    # --- out ---

    async def _push(self) -> None:
        next_picture = next_logs = next_readings = 0.0
        last_sent = time.monotonic()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOGS_S / 2):
                        await self._wake.wait()
                self._wake.clear()
                while self._replies:
                    await self._send(self._replies.popleft())
                    last_sent = time.monotonic()
                now = time.monotonic()
                wanted = self._wanted
                if wanted is None:
                    sent = False
                else:
                    sent = await self._push_events()
                    if wanted.snapshots and now >= next_picture:
                        next_picture = now + PICTURE_S
                        await self._push_picture()
                        sent = True
                    if wanted.readings:
                        due = now >= next_readings
                        next_readings = now + READINGS_S if due else next_readings
                        sent |= await self._push_readings(every=due)
                    if self._cursors and now >= next_logs:
                        next_logs = now + LOGS_S
                        sent |= await self._push_logs()
                if sent:
                    last_sent = now
                elif now - last_sent >= HEARTBEAT_S:
                    last_sent = now
                    await self._send(Heartbeat(time=time.time()))
        except OSError:
            self._writer.transport.abort()  # ends the reading side, and so the connection

    async def _send(self, message: Message) -> None:
        self._writer.write(encode(message))
        await self._writer.drain()

    async def _push_picture(self) -> None:
        picture = self._agent.picture()
        self._seq += 1
        await self._send(diff.changes(self._sent, picture, round(time.time(), 3), self._seq))
        self._sent = picture

    async def _push_events(self) -> bool:
        cursor = self._event_cursor
        last = self._agent.last_event
        if cursor is None or cursor >= last:
            return False
        events = await self._agent.events(cursor, EVENTS_BEHIND)
        if events and (missed := events[0].id - max(cursor + 1, self._agent.first_event)) > 0:
            await self._send(Skipped(what="events", count=missed))
        for event in events[:EVENTS_AT_ONCE]:
            await self._send(Happened(event=event))
            self._event_cursor = event.id
        if not events:
            self._event_cursor = last
        if len(events) > EVENTS_AT_ONCE:
            self._wake.set()
        return True

    async def _push_readings(self, *, every: bool) -> bool:
        """All readings, or only those of servers that came or went since."""
        sent = False
        for reading in self._agent.readings():
            if every or self._alive.get(reading.url) != reading.alive:
                self._alive[reading.url] = reading.alive
                await self._send(reading)
                sent = True
        return sent

    async def _push_logs(self) -> bool:
        cursors = self._cursors
        paths = {source: self._agent.log_path(source) for source in cursors}
        parts = await asyncio.to_thread(_collect, paths, cursors)
        if self._cursors is not cursors:
            return False  # subscribed anew meanwhile
        for part in parts:
            cursors[part.source] = (part.inode, part.next)
            await self._send(part)
        return bool(parts)


def _collect(paths: dict[str, Path | None], cursors: dict[str, tuple[int, int]]) -> list[LogPart]:
    parts = []
    for source, path in paths.items():
        if path is not None:
            with contextlib.suppress(OSError):
                part = logs.follow(source, path, *cursors[source])
                if part is not None:
                    parts.append(part)
    return parts


class Server:
    """Listens on the socket; the folder around it must be the user's own and closed to others."""

    def __init__(self, agent: Source, path: Path) -> None:
        self._agent = agent
        self.path = path
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._inode = 0

    async def open(self) -> None:
        """Bind, replacing what a dead agent left. May be called again when the socket's name is
        gone: connections that are open stay. Raises OSError with one line."""
        if self._server is not None:
            self._server.close()
        _private(self.path.parent)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, fresh, limit=2 * MAX_LINE)
        fresh.chmod(0o600)
        self._inode = fresh.stat().st_ino
        fresh.replace(self.path)

    @property
    def there(self) -> bool:
        """Whether the socket's name still leads to us; logins and cleaners remove such files."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await Connection(self._agent, reader, writer).serve()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self.there:
            self.path.unlink(missing_ok=True)


def _private(folder: Path) -> None:
    """Make the folder, or check that nobody else can put a socket there. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        raise OSError(f"{folder} belongs to someone else: remove it, then start the agent again")
    if state.st_mode & 0o077:
        raise OSError(f"{folder} is open to others: chmod 700 it, then start the agent again")
