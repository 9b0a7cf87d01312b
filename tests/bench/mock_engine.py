"""A mock engine that costs little: one process, several ports, a fixed answer after a delay.

Raw asyncio protocol, one pass over each request; on one core it answers several thousand a
second, so that it is the client that is measured. ``--slow PORT_NUMBER=FACTOR`` slows one port,
``--memoryless`` spreads the delays exponentially, so that requests which begin together end as
evenly as those of a long run.

Besides completions there are ``GET /_seen`` (first request, last answer, their number; samples of
what was in flight), ``/_reset``, and ``/_down/N`` and ``/_up/N``: port N as if its process died.
Port 0 is never down.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections import Counter


def reply(size: int) -> bytes:
    """A chat completion of about ``size`` bytes, as a whole HTTP response."""
    words = ["optimizer", "walks", "the", "gradient,", '"careful"', "é", "step", "again\n"]
    dice = random.Random(7)
    text = ("The optimizer " + " ".join(dice.choices(words, k=size // 5)))[:size]
    body = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "reasoning_content": None},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 200, "completion_tokens": size // 4, "total_tokens": 1},
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Mock:
    """All ports' shared state."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.delay, self.spread, self.memoryless = chosen.delay, chosen.spread, chosen.memoryless
        number, _, factor = chosen.slow.partition("=")
        self.slow = {int(number): float(factor)} if factor else {}
        whole = reply(chosen.size)
        head, _, body = whole.partition(b"\r\n\r\n")
        mark = body.index(b"The optimizer")
        self.before = head + b"\r\n\r\n" + body[:mark]
        self.after = body[mark + 8 :]
        self.count = 0
        self.in_flight: Counter[int] = Counter()
        self.connections: dict[int, set[asyncio.Transport]] = {}
        self.servers: dict[int, asyncio.Server] = {}
        self.opening: asyncio.Future[None] | None = None
        self.ports: list[int] = []
        self.reset()
        self.models = self.small({"data": [{"id": "m", "owned_by": chosen.engine}]})
        load = {"num_running_reqs": 0, "num_waiting_reqs": 0, "max_running_requests": 64}
        self.loads = self.small({"version": "0.5.12", "loads": [load]})

    def reset(self) -> None:
        """Nothing was seen so far."""
        self.busy: Counter[int] = Counter()
        self.seen: Counter[int] = Counter()
        self.first = self.last = 0.0
        self.dice = random.Random(1)

    async def listen(self, number: int, port: int = 0) -> None:
        """Open a port."""
        loop = asyncio.get_running_loop()
        self.connections[number] = set()
        self.servers[number] = server = await loop.create_server(
            lambda: Connection(self, number), "127.0.0.1", port, backlog=2048
        )
        self.ports[number : number + 1] = [server.sockets[0].getsockname()[1]]

    def down(self, number: int) -> None:
        """Let nobody in any more, and hang up on everybody."""
        self.servers[number].close()
        for transport in list(self.connections[number]):
            transport.abort()

    def told(self) -> dict[str, object]:
        """What was seen since the last reset."""
        span = {"first": self.first, "last": self.last, "now": time.monotonic()}
        return {**span, "answers": dict(self.seen), "busy": dict(self.busy)}

    @staticmethod
    def small(document: object) -> bytes:
        """A JSON answer."""
        body = json.dumps(document).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    def answer(self) -> bytes:
        """The next completion; its text begins with a number of its own."""
        self.count += 1
        return b"%b%08d%b" % (self.before, self.count, self.after)

    def wait(self, number: int) -> float:
        """Seconds until the answer."""
        wait: float = self.delay * self.slow.get(number, 1.0)
        if self.memoryless:
            return self.dice.expovariate(1 / wait)
        return wait * self.dice.lognormvariate(0, self.spread) if self.spread else wait


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, mock: Mock, number: int) -> None:
        self.mock, self.number = mock, number
        self.buffer = b""
        self.last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.mock.connections[self.number].add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.mock.connections[self.number].discard(self.transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            self.last = b"connection: close" in head
            if not head.startswith(b"post"):
                self.say(self.tell(head.split(b" ", 2)[1].decode()))
            elif b'"max_tokens":8' in body[-400:]:
                self.say(self.mock.answer())
            else:
                self.mock.in_flight[self.number] += 1
                self.mock.first = self.mock.first or time.monotonic()
                loop = asyncio.get_running_loop()
                loop.call_later(self.mock.wait(self.number), self.respond)

    def tell(self, path: str) -> bytes:
        """Whatever is no completion."""
        mock = self.mock
        _, what, *rest = path.split("/")
        if what == "_seen":
            return mock.small(mock.told())
        if what == "_reset":
            mock.reset()
        elif what == "_down":
            mock.down(int(rest[0]))
        elif what == "_up":
            number = int(rest[0])
            mock.opening = asyncio.ensure_future(mock.listen(number, mock.ports[number]))
        elif path.startswith("/v1/loads"):
            return mock.loads
        return mock.models

    def respond(self) -> None:
        """Answer one request, if somebody still listens."""
        mock, number = self.mock, self.number
        mock.in_flight[number] -= 1
        if not self.transport.is_closing():
            mock.seen[number] += 1
            mock.last = time.monotonic()
        self.say(mock.answer())

    def say(self, answer: bytes) -> None:
        """Write, and hang up where that was asked for."""
        if not self.transport.is_closing():
            self.transport.write(answer)
            if self.last:
                self.transport.close()


def main() -> None:
    """Listen on ports of the system's choice, print them, serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", type=int, default=8)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--slow", default="", help="NUMBER=FACTOR")
    parser.add_argument("--memoryless", action="store_true")
    parser.add_argument("--engine", default="mock", help="what /v1/models says")
    mock = Mock(parser.parse_args())
    count = parser.parse_args().ports
    gc.freeze()

    async def serve() -> None:
        for number in range(count):
            await mock.listen(number)
        print(*mock.ports, flush=True)
        while True:
            # Samples of what is in flight, for the share of slots in use.
            await asyncio.sleep(0.05)
            for number in range(count):
                mock.busy[number] += mock.in_flight[number]
            mock.busy[-1] += 1

    asyncio.run(serve())


if __name__ == "__main__":
    main()
