"""Is the kernel cache cold? Then the first server compiles for all, and goes ahead alone.

Libraries that compile with ninja (FlashInfer, TVM-FFI) wait for each other's lock files, for ever
where a compiler was killed; several servers compiling the same kernels also cost the machine its
memory. Without a compiler nothing is compiled, and nobody has to wait.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def _caches(env: Mapping[str, str]) -> list[Path]:
    home = Path(env.get("HOME") or "~").expanduser()
    base = Path(env.get("FLASHINFER_WORKSPACE_BASE") or home)
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    tvm = Path(env.get("TVM_FFI_CACHE_DIR") or cache / "tvm-ffi")
    return [base / ".cache" / "flashinfer", tvm]


def is_cold(env: Mapping[str, str]) -> bool:
    """Whether kernels can be compiled here and none has been yet. Blocking."""
    cuda_home = env.get("CUDA_HOME") or env.get("CUDA_PATH") or "/usr/local/cuda"
    path = os.pathsep.join([env.get("PATH", ""), str(Path(cuda_home) / "bin")])
    if shutil.which("nvcc", path=path) is None:
        return False
    return not any(
        next(folder.rglob("*.so"), None) is not None for folder in _caches(env) if folder.is_dir()
    )
