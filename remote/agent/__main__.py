"""``python -m remote.agent --workspace W``."""

import os
import sys

from remote.agent.daemon import main

if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may sit in a hung disk's write: nothing of ours is worth waiting for it.
    os._exit(status)
