"""A mock engine that costs little: one process, several ports, a fixed answer after a delay.

Raw asyncio protocol, one pass over each request; on one core it answers several thousand a
second, so that it is the client that is measured. ``--slow PORT_NUMBER=FACTOR`` slows one port.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
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

    def __init__(self, delay: float, spread: float, size: int, slow: dict[int, float]) -> None:
        self.delay, self.spread, self.slow = delay, spread, slow
        whole = reply(size)
        head, _, body = whole.partition(b"\r\n\r\n")
        mark = body.index(b"The optimizer")
        self.before = head + b"\r\n\r\n" + body[:mark]
        self.after = body[mark + 8 :]
        self.count = 0
        self.in_flight: Counter[int] = Counter()
        self.busy: Counter[int] = Counter()
        self.dice = random.Random(1)
        self.models = self._small({"data": [{"id": "m", "owned_by": "mock"}]})

    @staticmethod
    def _small(document: object) -> bytes:
        body = json.dumps(document).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    def answer(self) -> bytes:
        """The next completion; its text begins with a number of its own."""
        self.count += 1
        return b"%b%08d%b" % (self.before, self.count, self.after)

    def wait(self, number: int) -> float:
        """Seconds until the answer."""
        wait = self.delay * self.slow.get(number, 1.0)
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
                answer = self.mock.models
                if b"/_peak" in head.split(b"\r\n", 1)[0]:
                    answer = self.mock._small(dict(self.mock.busy))
                self.say(answer)
            elif b'"max_tokens":8' in body[-400:]:
                self.say(self.mock.answer())
            else:
                self.mock.in_flight[self.number] += 1
                loop = asyncio.get_running_loop()
                loop.call_later(self.mock.wait(self.number), self.respond)

    def respond(self) -> None:
        """Answer one request."""
        self.mock.in_flight[self.number] -= 1
        self.say(self.mock.answer())

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
    chosen = parser.parse_args()
    slow = {}
    if chosen.slow:
        number, _, factor = chosen.slow.partition("=")
        slow[int(number)] = float(factor)
    mock = Mock(chosen.delay, chosen.spread, chosen.size, slow)
    gc.freeze()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ports = []
        for number in range(chosen.ports):
            server = await loop.create_server(
                lambda number=number: Connection(mock, number),  # type: ignore[misc]
                "127.0.0.1",
                0,
                backlog=2048,
            )
            ports.append(server.sockets[0].getsockname()[1])
        print(*ports, flush=True)
        while True:
            # Samples of what is in flight, for the share of slots in use.
            await asyncio.sleep(0.05)
            for number in range(chosen.ports):
                mock.busy[number] += mock.in_flight[number]
            mock.busy[-1] += 1

    asyncio.run(serve())


if __name__ == "__main__":
    main()
