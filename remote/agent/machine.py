"""What a bug report wants to know of the machine: versions, driver, cards, kernel, environment.

The names of the facts are those of SGLang's own ``python -m sglang.check_env``. Nothing is
imported and no card is touched: versions are read from what is installed, the rest from small
commands, each with a limit of time. Secrets are removed here already.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from remote import kernel_log, redact
from remote.fleet import installed
from remote.fleet.environment import output
from remote.protocol import Machine

SECONDS: Final = 20.0
"""For so long each command may take."""

LONGEST: Final = 400_000
"""Characters of what one command says; ``nvidia-smi -q`` of eight cards takes 80,000."""

COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia-smi.txt": ("nvidia-smi",),
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
    "lscpu.txt": ("lscpu",),
}
"""Name of the text → command."""

_TELLING: Final = (
    "SGLANG", "SGL_", "NCCL", "CUDA", "NVIDIA", "TORCH", "PYTORCH", "TRITON", "FLASHINFER", "HF_",
    "HUGGING", "TRANSFORMERS", "VLLM", "OMP_", "MKL_", "UCX", "GLOO", "LD_", "PATH", "PYTHON",
    "VIRTUAL_ENV", "CONDA", "MASTER_", "TOKENIZERS", "XDG_CACHE", "HTTP_", "HTTPS_", "NO_PROXY",
    "http_", "https_", "no_proxy", "LANG", "LC_", "TZ", "TMPDIR", "STOKER",
)  # fmt: skip
"""Beginnings of the variables that bear on a server; others are nobody's business."""

_PACKAGES: Final = (
    "import importlib.metadata as m, json, platform, re, sys\n"
    "names = '''sglang sgl-kernel sglang-kernel torch torchaudio torchvision torchao triton\n"
    "flashinfer-python flashinfer-cubin flashinfer-jit-cache transformers tokenizers numpy\n"
    "aiohttp fastapi hf-transfer hf-xet huggingface-hub interegular modelscope orjson outlines\n"
    "packaging psutil pydantic python-multipart pyzmq uvicorn uvloop vllm xgrammar openai\n"
    "tiktoken nvidia-nccl-cu12 nvidia-nccl-cu13 nvidia-cuda-runtime-cu12\n"
    "nvidia-cuda-runtime nvidia-cudnn-cu12 nvidia-cudnn-cu13 nvidia-cutlass-dsl cuda-python\n"
    "causal-conv1d flash-linear-attention mamba-ssm'''.split()\n"
    "found = {'Python': sys.version.replace('\\n', ''), 'Python executable': sys.executable}\n"
    "for name in names:\n"
    "    try:\n"
    "        found[name] = m.version(name)\n"
    "    except m.PackageNotFoundError:\n"
    "        pass\n"
    "try:\n"
    "    where = m.distribution('torch').locate_file('torch/version.py')\n"
    "    cuda = re.search(r'^cuda\\b[^=]*= *(.*)', where.read_text(), re.M)\n"
    "    found['CUDA of torch'] = cuda[1].strip('\\'\"') if cuda else 'none'\n"
    "except (m.PackageNotFoundError, OSError, AttributeError):\n"
    "    pass\n"
    "print(json.dumps(found))\n"
)
"""Run by the servers' own Python (3.8 or newer); SGLang's packages are asked, not imported."""


async def look(python: str, env: Mapping[str, str], pids: Iterable[int]) -> Machine:
    """Everything that can be had, and a line on each thing that cannot.

    ``env`` is what servers are started with; of ``pids``, servers at work, the first one's own
    environment is told. Takes seconds; raises nothing.
    """
    facts: dict[str, str] = {}
    texts: dict[str, str] = {}
    missing: dict[str, str] = {}
    facts |= await asyncio.to_thread(_here)
    await _versions(python, env, facts, missing)
    for name, command in COMMANDS.items():
        said, why = await _said(command, env)
        if why:
            missing[name] = why
        if said:
            texts[name] = said
    await _cuda(env, facts, missing)
    lines, why = await asyncio.to_thread(kernel_log.lately)
    if why:
        missing["kernel.log"] = why
    else:
        texts["kernel.log"] = "\n".join(lines or ["(nothing of cards, memory or faults in it)"])
    own = await asyncio.to_thread(_environ, list(pids))
    if own is None:
        missing["environment of a running server"] = "no server runs whose environment can be read"
    real = env if own is None else own
    kept = {n: v for n, v in sorted(real.items()) if n.startswith(_TELLING)}
    texts["environment.txt"] = "\n".join(f"{n}={v}" for n, v in redact.environ(kept).items())
    return Machine(
        facts=facts,
        texts={name: redact.text(text)[:LONGEST] + "\n" for name, text in texts.items()},
        missing=missing,
    )


def _here() -> dict[str, str]:
    """What the standard library knows."""
    name = platform.uname()
    facts = {"kernel": f"{name.system} {name.release} {name.version} {name.machine}"}
    with contextlib.suppress(OSError):
        facts["system"] = platform.freedesktop_os_release().get("PRETTY_NAME", "?")
    facts["agent's Python"] = platform.python_version()
    facts["libc"] = " ".join(platform.libc_ver())
    facts["CPUs"] = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts["ulimit soft, hard"] = f"{soft}, {hard}"
    for what, path in (
        ("NVIDIA kernel module", "/proc/driver/nvidia/version"),
        ("container", "/run/systemd/container"),
        ("cgroup memory limit", "/sys/fs/cgroup/memory.max"),
    ):
        with contextlib.suppress(OSError):
            facts[what] = Path(path).read_text("utf-8", "replace").strip().split("\n")[0]
    return facts


async def _versions(
    python: str, env: Mapping[str, str], facts: dict[str, str], missing: dict[str, str]
) -> None:
    """Of the servers' Python and the packages that it has."""
    what = "python, torch and sglang versions"
    if not python:
        missing[what] = "this target names no `python` that has SGLang"
        return
    try:
        code, out, err = await installed.run([python, "-c", _PACKAGES], dict(env), SECONDS)
        if code != 0:
            missing[what] = _last(err) or f"{python} ended with {code}"
            return
        found = json.loads(out.strip().rpartition(b"\n")[2])
    except (OSError, TimeoutError, ValueError) as error:
        missing[what] = f"{python}: {_why(error)}"
        return
    facts |= {str(name): str(version) for name, version in found.items()}
    for name in ("sglang", "torch", "CUDA of torch"):
        if name not in facts:
            missing[f"{name} version"] = f"{python} has none"


async def _cuda(env: Mapping[str, str], facts: dict[str, str], missing: dict[str, str]) -> None:
    """The driver's version, and that of the toolkit that compiles kernels."""
    said, why = await _said(
        ("nvidia-smi", "--query-gpu=driver_version,name,compute_cap", "--format=csv,noheader"), env
    )
    told = ([part.strip() for part in row.split(",")] for row in said.splitlines())
    rows = [row for row in told if len(row) > 2]  # a card that is lost has a word of its own
    if why or not rows:
        missing["CUDA driver version"] = why or "nvidia-smi tells none"
    else:
        facts["CUDA driver version"] = ", ".join(sorted({row[0] for row in rows}))
        facts["cards"] = _cards(rows)
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH") or ""
    if home:
        facts["CUDA_HOME"] = home
    nvcc = str(Path(home) / "bin" / "nvcc") if home else "nvcc"
    said, why = await _said((nvcc, "--version"), env)
    release = next((row for row in said.splitlines() if "release" in row), "")
    if release:
        facts["NVCC"] = release.strip()
    else:
        missing["NVCC"] = why or "it tells no release"


def _cards(rows: list[list[str]]) -> str:
    """``8 × NVIDIA GH200 96GB, compute 9.0``."""
    kinds = [f"{name}, compute {compute}" for _, name, compute, *_ in rows]
    return "; ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))


async def _said(command: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, str]:
    """What a command says, and why it says nothing or not all."""
    shown = " ".join(command)
    try:
        code, out, err = await output(list(command), env, SECONDS)
    except (OSError, TimeoutError) as error:
        return "", f"`{shown}`: {_why(error)}"
    text = out.decode("utf-8", "replace").strip()
    if code != 0:
        return text, f"`{shown}` ended with {code}: {_last(err) or _last(out) or 'no word'}"
    return text, ""


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {SECONDS:.0f} s"
    if isinstance(error, FileNotFoundError):
        return "not installed here"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _last(said: bytes) -> str:
    return "".join(said.decode("utf-8", "replace").strip().splitlines()[-1:])[:200]


def _environ(pids: list[int]) -> dict[str, str] | None:
    """The environment of the first of these processes that may be read."""
    for pid in pids:
        try:
            data = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        pairs = [one.partition("=") for one in data.decode("utf-8", "replace").split("\0") if one]
        if pairs:
            return {name: value for name, equals, value in pairs if equals}
    return None
