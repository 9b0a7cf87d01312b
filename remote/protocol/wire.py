"""How a message travels: JSON, a line each, a long one in pieces."""

from __future__ import annotations

import json
from functools import cache

import msgspec

from remote.protocol.messages import Message, Piece

MAX_LINE = 1 << 20
"""Longest line on the wire, newline included."""

HEARTBEAT_S = 10.0
"""Each side sends something at least this often."""

SILENCE_S = 60.0
"""After so long without a line from the other side the bridge leaves."""


_encoder = msgspec.json.Encoder()
_PIECE = MAX_LINE // 8  # escaping can make six characters of one; leave room for the envelope


@cache
def _decoder() -> msgspec.json.Decoder[Message]:
    """Made when the first line comes: going through all types takes a tenth of a console's start
    up to its first frame."""
    return msgspec.json.Decoder(Message)


def _ascii(message: Message) -> bytes:
    data = _encoder.encode(message)
    if data.isascii():
        return data
    return json.dumps(json.loads(data), separators=(",", ":")).encode("ascii")


def encode(message: Message) -> bytes:
    """The message as one or more complete lines, each at most :data:`MAX_LINE` bytes."""
    line = _ascii(message)
    if len(line) < MAX_LINE:
        return line + b"\n"
    text = line.decode("ascii")
    parts = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    key = hash(line) & 0x7FFFFFFF
    return b"".join(
        _ascii(Piece(key=key, n=n, of=len(parts), text=part)) + b"\n"
        for n, part in enumerate(parts)
    )


class Decoder:
    """Lines of one connection → messages.

    ``bad`` counts the lines that were no message; the rest of the stream is unharmed by them.
    """

    def __init__(self) -> None:
        self.bad = 0
        self._parts: list[str] = []
        self._key = -1

    def feed(self, line: bytes) -> Message | None:
        """The message of this line, or None (blank, unfinished piece, or not a message)."""
        if not line.strip():
            return None
        try:
            message = _decoder().decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.bad += 1
            return None
        if not isinstance(message, Piece):
            return message
        if message.n == 0:
            self._parts, self._key = [], message.key
        if message.key != self._key or message.n != len(self._parts):
            self.bad += 1
            self._parts, self._key = [], -1
            return None
        self._parts.append(message.text)
        if len(self._parts) < message.of:
            return None
        whole = "".join(self._parts).encode("ascii", "replace")
        self._parts, self._key = [], -1
        return self.feed(whole)
