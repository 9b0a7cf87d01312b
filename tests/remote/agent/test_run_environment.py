"""What the run is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.agent.launching import environ
from remote.protocol import TargetSpec


async def test_the_run_looks_where_the_servers_keep_their_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's sampling is read from there; nothing else of the servers' script is its."""
    script, secrets = tmp_path / "env.sh", tmp_path / "secrets.env"
    script.write_text("export HF_HOME=/models/cache CUDA_HOME=/usr/local/cuda\n")
    secrets.write_text("AWS_ACCESS_KEY_ID=k\n")
    secrets.chmod(0o600)
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    spec = TargetSpec("t", str(tmp_path), env_script=str(script), credentials_file=str(secrets))
    env = await environ(spec)
    assert env["HF_HOME"] == "/models/cache" and env["AWS_ACCESS_KEY_ID"] == "k"
    assert "CUDA_HOME" not in env
    gone = TargetSpec("t", str(tmp_path), env_script=str(tmp_path / "gone.sh"))
    assert "HF_HOME" not in await environ(gone)
