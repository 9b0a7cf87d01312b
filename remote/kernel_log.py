"""What the driver tells the kernel log of its cards: Xid lines, and which card they are about.

The kernel log is the host's. In a container it can often not be read; then nothing is known, and
that is no trouble. The numbers are those of NVIDIA's Xid catalogue (docs.nvidia.com/deploy/
xid-errors), which says of each whether restarting the program is enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

PATH = "/dev/kmsg"
ENVIRON = "STOKER_KERNEL_LOG"
"""Names another file to read: the lab's hardware has a kernel log of its own."""

LATELY_S = 600.0
"""What was told so long before the first look can still explain a death; it is no news."""

_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)[^)]*\): (\d+)(?:,\s*)?(.*)"
)
_RECORD = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)")
_PRINTED = re.compile(r"(?:<\d+>)?\[\s*(\d+)\.(\d+)\] ?(.*)")
_DEVICE = os.makedev(1, 11)
_READ_ALL, _SIZE = 3, 10  # syslog(2)

BENIGN = {45, 63, 92}
"""Told of what was ended or mended already: no cause of anything."""
RESET = {48, 62, 64, 95, 109, 119, 120, 140}
REBOOT = {79}


@dataclass(frozen=True)
class Xid:
    """One report of the driver."""

    bus: str
    """PCI address as in :func:`address`."""
    number: int
    text: str
    at: float
    """Unix seconds, to a second or so; time asleep is not counted by the kernel's clock."""

    @property
    def is_cause(self) -> bool:
        """Whether a server may have died of it."""
        return self.number not in BENIGN

    @property
    def again(self) -> bool:
        """Whether a server may be started on that card as it is."""
        return self.number not in RESET | REBOOT

    @property
    def words(self) -> str:
        """The report in one line, with what is to be done."""
        cure = ""
        if self.number in REBOOT:
            cure = ": the host must be rebooted"
        elif self.number in RESET:
            cure = ": the card must be reset (`nvidia-smi --gpu-reset`), or the host rebooted"
        said = f" ({self.text})" if self.text else ""
        return f"Xid {self.number}{said}{cure}"


def address(bus: str) -> str:
    """A PCI address as one spelling: ``00000000:41:00.0`` and ``0000:41:00`` → ``0000:41:00``."""
    parts = bus.lower().split(":")
    if len(parts) != 3:
        return bus.lower()
    with contextlib.suppress(ValueError):
        parts[0] = f"{int(parts[0], 16):04x}"
    return ":".join([*parts[:2], parts[2].split(".")[0]])


def parse(line: str, at: float) -> Xid | None:
    """The report in one kernel message; None for any other message."""
    found = _LINE.search(line)
    if found is None:
        return None
    text = "".join(c if c.isprintable() else " " for c in found[3])
    # "pid='<unknown>', name=<unknown>, " says nothing to an operator; the rest does.
    text = re.sub(r"^(?:(?:pid|name)=[^,]*,\s*)+", "", text).strip()
    return Xid(address(found[1]), int(found[2]), text[:160].rstrip("."), at)


class KernelLog:
    """The kernel log from now on, where it can be read; else nothing, for ever."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path or os.environ.get(ENVIRON) or PATH
        self._file: int | None = None
        self._rest = b""
        self._by_call = False
        self._stamp = 0.0
        """The kernel's time of the newest message seen by :func:`_printed`."""
        self._try_open()
        if self._file is None and self._path == PATH:
            self._by_call = _printed() is not None
        began = time.time()
        self.earlier = [xid for xid in self.read() if began - xid.at < LATELY_S]
        """Those of before the first look."""

    @property
    def can_be_read(self) -> bool:
        """Whether anything will ever be seen."""
        return self._file is not None or self._by_call

    def read(self) -> list[Xid]:
        """What has come since. Never waits; raises nothing."""
        if self._file is None and self._path != PATH:
            self._try_open()  # one that is named may be yet to come
        if self._file is not None:
            return list(self._records(self._file))
        return list(self._lines()) if self._by_call else []

    def _try_open(self) -> None:
        with contextlib.suppress(OSError):
            self._file = _open(self._path)

    def _records(self, file: int) -> Iterator[Xid]:
        """``/dev/kmsg`` gives one record a read; a plain file may give half of one."""
        while True:
            try:
                data = os.read(file, 65536)
            except BrokenPipeError:
                continue  # records were overwritten unseen: it goes on behind them
            except OSError:
                return  # nothing new (EAGAIN), or gone for good
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                found = _RECORD.match(line.decode("utf-8", "replace"))
                if found is not None:
                    at = _unix(int(found[1]) / 1e6)
                    if (xid := parse(found[2], at)) is not None:
                        yield xid

    def _lines(self) -> Iterator[Xid]:
        for line in (_printed() or b"").decode("utf-8", "replace").splitlines():
            found = _PRINTED.match(line)
            if found is None:
                continue
            stamp = float(f"{found[1]}.{found[2]}")
            if stamp > self._stamp:
                self._stamp = stamp
                if (xid := parse(found[3], _unix(stamp))) is not None:
                    yield xid

    def close(self) -> None:
        """Let go of the file for good."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._path = PATH
        self._by_call = False


_TELLING = re.compile(
    r"(?i)NVRM|\bXid\b|nvidia|out of memory|oom[-_ ]?kill|segfault|general protection|pcieport|AER:"
    r"|machine check|hung_task|blocked for more than|I/O error|EXT4-fs error|XFS .*error"
)
"""Messages that may explain what happened to a server."""


def lately(most: int = 400, path: str | None = None) -> tuple[list[str], str]:
    """The newest messages of cards, memory and faults, each with its time (UTC); and why there are
    none, where the kernel log cannot be read. Raises nothing."""
    path = path or os.environ.get(ENVIRON) or PATH
    try:
        file = _open(path)
    except OSError as error:
        printed = _printed() if path == PATH else None
        if printed is None:
            why = error.strerror or str(error)
            return [], f"{path}: {why}; read it on the host: dmesg -T | grep -iE 'NVRM|Xid|oom'"
        rows = map(_PRINTED.match, printed.decode("utf-8", "replace").splitlines())
        found = [(_unix(float(f"{row[1]}.{row[2]}")), row[3]) for row in rows if row]
    else:
        try:
            rows = map(_RECORD.match, _all(file).decode("utf-8", "replace").splitlines())
            found = [(_unix(int(row[1]) / 1e6), row[2]) for row in rows if row]
        finally:
            os.close(file)
    told = [(at, text) for at, text in found if _TELLING.search(text)][-most:]
    when = ((time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), text) for at, text in told)
    return [f"{at} {''.join(c if c.isprintable() else ' ' for c in text)}" for at, text in when], ""


def _all(file: int) -> bytes:
    """What a kernel log holds, 32 MiB of it at most."""
    parts: list[bytes] = []
    for _ in range(200_000):
        try:
            data = os.read(file, 65536)
        except BrokenPipeError:
            continue  # records were overwritten unseen
        except OSError:
            break
        if not data:
            break
        parts.append(data)
        if len(parts) % 1024 == 0 and sum(map(len, parts)) > 32 << 20:
            break
    return b"".join(parts)


def _open(path: str) -> int:
    """Raises OSError, also where an old container has its console under the device's name."""
    if path == PATH and os.stat(path).st_rdev != _DEVICE:  # noqa: PTH116 -- not a Path
        raise OSError(f"{path} is not the kernel's log")
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _unix(stamp: float) -> float:
    """The kernel's seconds since boot as Unix seconds."""
    return time.time() - max(time.clock_gettime(time.CLOCK_MONOTONIC) - stamp, 0.0)


def _printed() -> bytes | None:
    """The whole kernel log by syslog(2), as dmesg may read it where the device may not be opened;
    None where that is not allowed."""
    try:
        call = ctypes.CDLL(None).klogctl
    except (OSError, AttributeError):
        return None
    size = call(_SIZE, None, 0)
    if size <= 0:
        return None
    buffer = ctypes.create_string_buffer(size)
    length = call(_READ_ALL, buffer, size)
    return buffer.raw[:length] if length >= 0 else None
