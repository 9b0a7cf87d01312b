"""``stoker init``: a first stoker.toml, to be edited."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = """\
# Stoker's targets. `stoker status` looks at one: servers and run stay as they are.
default = "ct200"

[targets.ct200]
ssh = "root@192.0.2.10"           # or a Host of ~/.ssh/config: port, key, jump hosts as there
hop = { pct = 200 }               # or { docker = "name" }, { incus = "name" }; {} for plain SSH
workspace = "/workspace"          # on the container: prompts, completions, logs, .stoker/
python = "/root/venv/bin/python"  # the interpreter there that has SGLang
agent_python = ""                 # one there with what the agent needs; "" makes one
env_script = ""                   # sourced before each server starts, e.g. for CUDA paths
credentials_file = ""             # on the container, mode 0600: AWS_*, HF_TOKEN, API keys

[fleet]
gpus = 8                          # server i on GPU i, listening on base_port + i
base_port = 30000
model = "Qwen/Qwen3.6-27B"
log_dir = "sglang_logs"

[fleet.flags]                     # SGLang's own long names without dashes
mem-fraction-static = 0.90
context-length = 8192
enable-metrics = true

[run]
prompts = "prompts.jsonl"         # relative to the workspace
output = "completions"
max_tokens = 4096
concurrency = "auto"              # per server: what it really runs, and a few more
thinking = true

# [run.policy]                    # of an answer's outcome: keep, set-aside or retry:N
# looped = "retry:2"              # another seed, twice at most; then as by default

# [run.s3]                        # sealed batches are uploaded as they close
# bucket = "my-bucket"
# prefix = "my-run/"
# endpoint_url = ""               # for MinIO, R2, Ceph

[alerts]
eta_hours_over = 48
# webhook = "https://…"           # alerts are posted there as {"text": …}; where the address is a
#                                 # secret: STOKER_WEBHOOK=… in credentials_file
"""


def write(path: Path) -> None:
    """Write the template. Raises FileExistsError: an existing file is never replaced."""
    with path.open("x", encoding="utf-8") as out:
        out.write(TEMPLATE)
