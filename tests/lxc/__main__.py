"""``python -m tests.lxc up|down FOLDER``: the real pair by hand."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lxc.pair import Pair, lacking


def main() -> None:
    """The program."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("up", "down"):
        sys.exit("usage: python -m tests.lxc up|down FOLDER")
    if reason := lacking():
        sys.exit(reason)
    pair = Pair(Path(sys.argv[2]).resolve())
    if sys.argv[1] == "down":
        pair.down()
        return
    pair.up()
    print(f"ssh -F {pair.layout.config} lab pct exec {pair.vmid} -- env")


if __name__ == "__main__":
    main()
