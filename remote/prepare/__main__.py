"""``python -m remote.prepare RECIPE.toml -o prompts.jsonl``."""

import sys

from remote.prepare.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
