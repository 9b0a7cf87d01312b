"""What tests of a run's directory share."""

from __future__ import annotations

from pathlib import Path

from remote.generate import layout
from remote.generate.ledger import Ledger
from remote.generate.recovery import recover
from tests.remote.generate.crash import Quick
from tests.remote.generate.test_crash import record

TOTAL = 40


def settle(folder: Path, *, adopted: bool = False, total: int = TOTAL) -> list[str]:
    """Recover and let the writer settle; the notes."""
    recovered = recover(folder, total, adopted=adopted, disk=Quick())
    ledger = Ledger(folder, recovered.books, Quick())
    ledger.flush()
    ledger.close()
    return recovered.notes


def write(folder: Path, *indices: int) -> None:
    """Have these prompts completed in a directory."""
    recovered = recover(folder, TOTAL, adopted=False, disk=Quick())
    ledger = Ledger(folder, recovered.books, Quick())
    ledger.add(record(i) for i in indices)
    ledger.flush()
    ledger.close()


def done_indices(folder: Path) -> list[int]:
    """Lines of ``.done_indices``."""
    return [int(word) for word in (folder / layout.DONE).read_text().split()]
