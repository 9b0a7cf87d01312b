"""The container's Python with SGLang in it: a venv of its own with a stand-in package.

The stand-in has what an operator's tools look at: the distribution's version, the module
``sglang.launch_server``, and ``sglang.srt.server_args.ServerArgs.add_cli_args``. It reaches this
project's simulation through a ``.pth`` file; nothing of it is ever on the path of the project's
own processes. Made without pip, in a fraction of a second.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from console.lab.sim import settings as sim_settings
from console.lab.sim.settings import SimSettings, Version

SETTINGS = "lab-sim.json"
"""Name of the settings file, in the venv's folder."""

_LIBRARIES = ("console", "aiohttp", "msgspec", "psutil")

_FILES = {
    "sglang/__init__.py": '''\
"""A stand-in for SGLang that simulates a GPU server (part of Stoker's lab)."""

__version__ = "{version}"
''',
    "sglang/launch_server.py": '''\
"""``python -m sglang.launch_server``: start one simulated server."""

import sys
from pathlib import Path

import sglang

if __name__ == "__main__":
    from console.lab.sim import launch, settings

    sys.exit(
        launch.main(
            sys.argv[1:],
            sglang.__version__,
            settings.load(Path(sys.prefix) / "{settings}"),
        )
    )
''',
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": '''\
"""The server's arguments, as far as a command line goes."""

import argparse

import sglang
from console.lab.sim import flags


class ServerArgs:
    """Holder of the option table."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every option of this version's server."""
        flags.add(parser, sglang.__version__)
''',
}


_PROGRAM = """\
#!{python}
\"\"\"``sglang serve`` and ``sglang version``.\"\"\"

import runpy
import sys

import sglang

if sys.argv[1:2] == ["version"]:
    print(f"sglang version: {sglang.__version__}")
elif sys.argv[1:2] == ["serve"]:
    del sys.argv[1]
    runpy.run_module("sglang.launch_server", run_name="__main__")
else:
    sys.exit("usage: sglang {serve,version} ...")
"""


def make(folder: Path, version: Version, settings: SimSettings) -> Path:
    """Make the venv and return its Python. One that is there is brought up to date.

    ``settings`` are stored inside it, since a server gets a clean environment.
    """
    purelib = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    purelib.mkdir(parents=True, exist_ok=True)
    bin_dir = folder / "bin"
    bin_dir.mkdir(exist_ok=True)
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for name in ("python", "python3"):
        link = bin_dir / name
        if link.is_symlink() and link.readlink() != base:
            link.unlink()
        if not link.exists():
            link.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\n"
        "include-system-site-packages = false\n"
        f"version = {sys.version.split()[0]}\n"
    )
    info = purelib / f"sglang-{version}.dist-info"
    for old in purelib.glob("sglang-*.dist-info"):
        if old != info:
            shutil.rmtree(old)
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        "Summary: Stand-in for SGLang: a simulated server without a GPU\n"
    )
    (info / "INSTALLER").write_text("stoker\n")
    (info / "top_level.txt").write_text("sglang\n")
    for name, text in _FILES.items():
        path = purelib / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{version}", version).replace("{settings}", SETTINGS))
    program = bin_dir / "sglang"
    program.write_text(_PROGRAM.replace("{python}", os.fspath(bin_dir / "python")))
    program.chmod(0o755)
    (purelib / "stoker-lab.pth").write_text("".join(f"{place}\n" for place in _places()))
    sim_settings.save(settings, folder / SETTINGS)
    return bin_dir / "python"


def _places() -> list[str]:
    """Folders where this process finds the libraries that the simulation needs."""
    found: list[str] = []
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise RuntimeError(f"the lab needs the library {name}: install Stoker's dependencies")
        place = os.fspath(Path(spec.origin).parent.parent)
        if place not in found:
            found.append(place)
    return found
