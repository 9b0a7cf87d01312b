"""When Python looks for garbage, in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import gc, time, weakref
from console import quiet

class Ring:
    def __init__(self):
        self.me = self

untouched = gc.get_threshold()
plain = quiet.Quiet()
plain.settle()
assert gc.get_threshold() == untouched and gc.get_freeze_count() == 0

quiet.begin()
assert not gc.isenabled()
one = quiet.Quiet()
one.settle()
assert gc.isenabled() and gc.get_freeze_count() > 1_000
gone = weakref.ref(Ring())
for _ in range(200_000):
    Ring()
before = gc.get_stats()[2]["collections"]
kept = [Ring() for _ in range(300_000)]  # what stays is not looked through again and again
assert gc.get_stats()[2]["collections"] == before
assert gone() is None, "young rings go as ever"
old = weakref.ref(kept[0])
gc.collect(1)
kept.clear()
one.tidy(touched=time.monotonic() - 10)
assert old() is not None, "not so soon"
one._last -= 200
one.tidy(touched=time.monotonic())
assert old() is not None, "somebody types"
one.tidy(touched=time.monotonic() - 10)
assert old() is None
print("well")
"""


def test_everything_is_looked_through_only_in_a_pause() -> None:
    """And where it was not asked for, Python goes on as it always does."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stdout == "well\n", run.stderr
