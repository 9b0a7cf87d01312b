"""The import arrows of the house, and what a start may cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_import_arrows() -> None:
    """The contracts in ``[tool.importlinter]`` hold."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after ``code``."""
    script = f"import sys\n{code}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_cli_answers_without_heavy_imports(flag: str) -> None:
    """Help and version do not wait for the screen, SSH, S3 or datasets."""
    code = f"from console.cli import main\ntry: main([{flag!r}])\nexcept SystemExit: pass"
    heavy = loaded_by(code) & {"textual", "asyncssh", "boto3", "datasets", "plotext", "aiohttp"}
    assert not heavy


def test_agent_does_not_load_boto3() -> None:
    """boto3 costs a third of a second and is needed only where S3 is used."""
    assert not loaded_by("import remote.agent, remote.generate.__main__") & {"boto3", "datasets"}


def test_every_test_folder_is_a_package() -> None:
    """Else tests/console would shadow console."""
    folders = {p.parent for p in (ROOT / "tests").rglob("*.py")}
    assert not [f for f in folders if not (f / "__init__.py").exists()]
