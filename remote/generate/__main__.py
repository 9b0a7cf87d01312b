"""``python -m remote.generate``."""

from __future__ import annotations

import sys

# httpx brings its own command line along wherever click and rich are installed, and does without
# where that cannot be imported (httpx/__init__.py, 0.28). It costs more than all the rest of it.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

from remote.generate.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
