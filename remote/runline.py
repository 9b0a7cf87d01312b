"""The command line of the run, of a target's spec; :mod:`remote.generate.command` parses it.

Pure: the agent starts the run with it, the console shows it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from remote.protocol import TargetSpec


def argv(python: str, spec: TargetSpec, socket: Path | None) -> list[str]:
    """The command that runs (or resumes) the generation of a target.

    To be started in the workspace, with ``remote`` importable, in a session of its own.
    """
    run, fleet = spec.run, spec.fleet
    command = [python, "-m", "remote.generate", "--prompts", run.prompts, "--output", run.output]
    for gpu in range(fleet.gpus):
        command += ["--server", f"http://127.0.0.1:{fleet.base_port + gpu}"]
    command += ["--concurrency", str(run.concurrency), "--max-tokens", str(run.max_tokens)]
    command += ["--retries", str(run.retries), "--endpoint", run.endpoint]
    if not run.thinking:
        command.append("--no-thinking")
    if run.temperature is not None:
        command += ["--temperature", str(run.temperature)]
    if run.params:
        command += ["--request", msgspec.json.encode(run.params).decode()]
    for outcome, action in run.policy.items():
        command += ["--policy", f"{outcome}={action}"]
    if run.hedge:
        command.append("--hedge")
    if run.delete_uploaded:
        command.append("--delete-uploaded")
    if run.s3.bucket:
        command += ["--s3", f"{run.s3.bucket}/{run.s3.prefix}"]
        if run.s3.endpoint_url:
            command += ["--s3-endpoint", run.s3.endpoint_url]
    if spec.credentials_file:
        command += ["--credentials", spec.credentials_file]
    if socket is not None:
        command += ["--agent", str(socket)]
    return command
