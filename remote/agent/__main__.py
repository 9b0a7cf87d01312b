"""``python -m remote.agent --workspace W``."""

import os
import sys
from pathlib import Path


def settle() -> None:
    """Start over from the folder that ``current`` points to now.

    A deploy changes that link under a living agent, which would then load the rest of its modules
    from another version.
    """
    code = Path(__file__).resolve().parents[2]
    if Path(os.environ.get("PYTHONPATH", "")).name == "current":
        os.environ["PYTHONPATH"] = str(code)
        os.execv(sys.executable, [sys.executable, "-m", "remote.agent", *sys.argv[1:]])


if __name__ == "__main__":
    settle()
    from remote.agent.daemon import main

    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may sit in a hung disk's write: nothing of ours is worth waiting for it.
    os._exit(status)
