"""``python -m remote.generate``."""

from __future__ import annotations

import sys

from remote.generate.command import main

if __name__ == "__main__":
    sys.exit(main())
