"""The ``stoker.toml`` of a lab."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from console.lab import host_files, s3
from console.lab.container import Container
from console.lab.options import JOB, STORY, Options

TOKENS = 2711
"""Mean length of an answer."""

EXPECTED = 900.0
"""Tokens a second and GPU, at a real card's speed, that tell a fleet held back (some 680) from
one that is not (some 1,200): the lab's alert stands while the job would take longer than so."""

RENAMED = {"0.5.23": {"mamba-scheduler-strategy": "mamba-radix-cache-strategy"}}
"""Flags that a version of SGLang calls otherwise (``server_args.py`` of 0.5.12 and 0.5.23)."""


def text(
    options: Options, inside: Container, *, python: Path, base_port: int, s3_port: int | None
) -> str:
    """The whole file, for servers from ``base_port`` on that ``python`` runs in the container."""
    flags = {**STORY, **options.flags}
    for old, new in RENAMED.get(options.sglang, {}).items():
        if old in flags:
            flags[new] = flags.pop(old)
    lines = [
        "# The lab: a stand-in Proxmox host and container, simulated GPUs.",
        'default = "ct200"',
        "",
        "[targets.ct200]",
        f"ssh = {_text(host_files.ALIAS)}",
        'ssh_config = "ssh/config"',
        f"hop = {{ pct = {inside.vmid} }}",
        f"workspace = {_text(inside.workspace)}",
        f"python = {_text(python)}",
        f"agent_python = {_text(sys.executable)}",
        f"credentials_file = {_text(inside.root / 'secrets.env')}",
        "",
        "[fleet]",
        f"gpus = {options.gpus}",
        f"base_port = {base_port}",
        f"model = {_text(inside.folder / 'model')}",
        "",
        "[fleet.flags]",
        *(f"{name} = {_value(value)}" for name, value in flags.items()),
        "",
        "[run]",
        'prompts = "prompts.jsonl"',
        'output = "completions"',
        "max_tokens = 4096",
    ]
    if s3_port is not None:
        lines += ["", "[run.s3]", f"bucket = {_text(s3.BUCKET)}", 'prefix = "lab/"']
        lines.append(f'endpoint_url = "http://127.0.0.1:{s3_port}"')
    per_hour = EXPECTED * options.gpus * options.speed * 3600
    hours = (options.count or JOB) * TOKENS / per_hour
    lines += ["", "[alerts]", f"eta_hours_over = {hours:.2g}"]
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    """A basic string of TOML: JSON's escapes are TOML's, too."""
    return json.dumps(str(value), ensure_ascii=False)


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
