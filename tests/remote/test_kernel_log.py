"""Xid reports in the kernel log: read as they come, understood, and nothing where it is closed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote import kernel_log
from remote.kernel_log import KernelLog, Xid, address, parse

BUS = "NVRM: Xid (PCI:0000:41:00)"
FAULT = "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted @ 0x7f_c9e00000"
LINES = [
    (
        f"{BUS}: 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        Xid("0000:41:00", 79, "GPU has fallen off the bus", 5.0),
    ),
    (
        f"NVRM: Xid (PCI:0000:C1:00): 31, pid=71240, name=python3, {FAULT}",
        Xid("0000:c1:00", 31, FAULT, 5.0),
    ),
    (
        "NVRM: Xid (0000:0a:00): 13, Graphics Exception",
        Xid("0000:0a:00", 13, "Graphics Exception", 5.0),
    ),
    (
        "NVRM: Xid (PCI:0000:41:00): 45, pid=5, name=x, Ch 00000010",
        Xid("0000:41:00", 45, "Ch 00000010", 5.0),
    ),
    ("NVRM: Xid (PCI:0000:41:00): 119", Xid("0000:41:00", 119, "", 5.0)),
    ("NVRM: GPU at PCI:0000:41:00: GPU-5d1b", None),
    ("nvidia 0000:41:00.0: enabling device", None),
    ("NVRM: Xid (PCI:zz): 79, x", None),
]


def stamp() -> int:
    """Now, as the kernel stamps a record, in microseconds."""
    return int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)


def record(text: str, ago: float = 0.0) -> bytes:
    return f"4,881,{stamp() - int(ago * 1e6)},-;{text}\n".encode()


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_lines_of_the_driver(line: str, wanted: Xid | None) -> None:
    assert parse(line, 5.0) == wanted


@given(st.text())
def test_any_text_is_a_report_or_nothing(text: str) -> None:
    for line in (text, f"NVRM: Xid (PCI:0000:41:00): 79, {text}"):
        found = parse(line, 0.0)
        assert found is None or found.words.isprintable()


def test_addresses_have_one_spelling() -> None:
    assert address("00000000:C1:00.0") == address("0000:c1:00") == "0000:c1:00"
    assert address("0001:c1:00.0") == "0001:c1:00"
    assert address("[N/A]") == "[n/a]"


def test_what_is_to_be_done() -> None:
    def report(number: int) -> Xid:
        return Xid("0000:41:00", number, "x", 0.0)

    assert report(79).words == "Xid 79 (x): the host must be rebooted"
    assert not report(79).again
    assert "must be reset" in report(48).words
    assert report(31).words == "Xid 31 (x)"
    assert report(31).again
    assert not report(45).is_cause


def test_reports_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(
        record(LINES[0][0], ago=3600) + record(LINES[1][0], ago=30) + record("something else")
    )
    log = KernelLog(str(path))
    assert log.can_be_read
    assert [xid.number for xid in log.earlier] == [31]
    assert abs(time.time() - 30 - log.earlier[0].at) < 2
    assert log.read() == []
    whole = record(LINES[2][0]) + b" SUBSYSTEM=pci\n\xff\xfe\n" + record(LINES[3][0])
    with path.open("ab", buffering=0) as file:
        file.write(whole[:-20])
        assert [xid.number for xid in log.read()] == [13]
        file.write(whole[-20:])
    (found,) = log.read()
    assert (found.number, found.bus) == (45, "0000:41:00")
    log.close()
    assert log.read() == []


def test_a_log_that_is_named_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    log = KernelLog(str(path))
    assert log.read() == []
    path.write_bytes(record(LINES[0][0]))
    assert [xid.number for xid in log.read()] == [79]


def test_a_pipe_with_nothing_in_it_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = KernelLog(str(path))
    began = time.monotonic()
    assert log.read() == []
    assert time.monotonic() - began < 1
    log.close()


def test_a_log_that_is_closed_to_us_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert not log.can_be_read
    assert log.read() == log.earlier == []
    # The device may not be opened, and neither may the system call.
    monkeypatch.setattr(kernel_log, "PATH", str(tmp_path / "none"))
    monkeypatch.setattr(kernel_log, "_printed", lambda: None)
    assert not KernelLog().can_be_read


def test_what_dmesg_reads_is_read_where_the_device_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = stamp() / 1e6
    text = f"<4>[{now - 60:12.6f}] {LINES[0][0]}\n<6>[{now - 50:12.6f}] usb\n"
    monkeypatch.setattr(kernel_log, "PATH", str(tmp_path / "none"))
    monkeypatch.setattr(kernel_log, "_printed", lambda: text.encode())
    log = KernelLog()
    assert [xid.number for xid in log.earlier] == [79]
    assert log.read() == []
    text += f"[{now - 1:12.6f}] {LINES[1][0]}\n"
    assert [xid.number for xid in log.read()] == [31]
    assert log.read() == []
