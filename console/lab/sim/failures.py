"""Texts of the failures that operators meet, and how the process ends after each.

Texts after the sources of SGLang 0.5.12 and 0.5.23, PyTorch's CUDA allocator, flashinfer and
tvm-ffi; the frames of the tracebacks are shortened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cause:
    """What is printed, and who dies how.

    ``scheduler``: the child hits an exception and takes the server down. ``killed``: the child
    is killed from outside. ``main``: the main process itself ends with a traceback.
    """

    text: str
    how: Literal["scheduler", "killed", "main", "warmup"] = "scheduler"
    xid: int | None = None
    """What the driver tells the kernel log before that."""


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total "
    "capacity of 94.97 GiB of which {free} is free. Including non-PyTorch memory, this process "
    "has {used} memory in use. Of the allocated memory {used} is allocated by PyTorch, and "
    "512.00 MiB is reserved by PyTorch but unallocated."
)

GRAPH_HELP = (
    "Possible solutions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
    "3. disable torch compile by not using --enable-torch-compile\n"
    "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
)

NINJA_LOG = (
    "[1/2] /usr/local/cuda/bin/nvcc -c main.cu -o main.cuda.o\n"
    "FAILED: main.cuda.o \n"
    "main.cu:7:10: fatal error: nv/target: No such file or directory\n"
    "    7 | #include <nv/target>\n"
    "compilation terminated.\n"
    "ninja: build stopped: subcommand failed.\n"
)

CAUSES: dict[str, Cause] = {
    "oom_load": Cause(OOM.format(size="2.37 GiB", free="1.05 GiB", used="93.71 GiB")),
    "oom_run": Cause(OOM.format(size="512.00 MiB", free="118.56 MiB", used="94.60 GiB")),
    "oom_graph": Cause(
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 96.00 MiB.\n"
        + GRAPH_HELP
    ),
    "not_enough": Cause(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    ),
    "killed": Cause("", how="killed"),
    "nv_target": Cause(f"RuntimeError: ninja exited with status 1\nstdout:\n{NINJA_LOG}"),
    "ninja_build": Cause(f"RuntimeError: Ninja build failed. Ninja output:\n{NINJA_LOG}"),
    "no_ninja": Cause("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
    "no_cuda_home": Cause(
        "RuntimeError: Could not find CUDA installation. Please set CUDA_HOME environment variable."
    ),
    "nccl": Cause(
        "torch.distributed.DistBackendError: NCCL error in: "
        "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system error, "
        "NCCL version 2.27.5"
    ),
    "xid": Cause(
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.",
        xid=31,
    ),
    "fell_off_bus": Cause("RuntimeError: No CUDA GPUs are available", xid=79),
    "no_model": Cause(
        "OSError: Can't load the configuration of '{model}'. If you were trying to load it from "
        "'https://huggingface.co/models', make sure you don't have a local directory with the "
        "same name. Otherwise, make sure '{model}' is the correct path to a directory containing "
        "a config.json file",
        how="main",
    ),
    "no_weights": Cause("FileNotFoundError: Cannot find any model weights with `{model}`"),
    "leak": Cause(
        "ValueError: pool memory leak detected! [full] total=248239, available=248111, "
        "evictable=0, protected=0"
    ),
    "prefill_oom": Cause(
        "RuntimeError: Prefill out of memory. Try to lower your batch size.\n"
        "Try to allocate 8192 tokens.\nAvailable tokens: 112"
    ),
    "warmup": Cause(
        "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port={port}): "
        "Read timed out. (read timeout=600)",
        how="warmup",
    ),
    "args": Cause("ValueError: unsupported configuration", how="main"),
    "fa3": Cause(
        "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use "
        "`--attention-backend flashinfer`."
    ),
    "backend_12": Cause(
        "AssertionError: triton, trtllm_mha, fa4, or flashinfer backend are the only supported "
        "backends on Blackwell GPUs for hybrid GDN models, use --attention-backend to specify "
        "the backend."
    ),
    "backend_23": Cause(
        "AssertionError: Only ['flashinfer', 'triton', 'trtllm_mha'] backends are supported on "
        "Blackwell GPUs for hybrid GDN models. Got prefill={backend}, decode={backend}."
    ),
    "mamba_zero_12": Cause("AssertionError: max_running_request is zero"),
    "kv_zero_23": Cause(
        "RuntimeError: Loaded weights leave no GPU memory for the KV cache under "
        "--mem-fraction-static={fraction}. Raise --mem-fraction-static above {minimum:.3f} "
        "(minimum viable = 1 - available/pre = {minimum:.4f}). If using speculative decoding, "
        "draft weights are now counted."
    ),
    "mamba_none_23": Cause(
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. "
        "Computed max_mamba_cache_size={slots}. Try: (1) reduce --max-running-requests, "
        "(2) increase --mem-fraction-static, (3) reduce --speculative-num-draft-tokens, or "
        "(4) use GPUs with more memory."
    ),
    "mamba_small_23": Cause(
        "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any "
        "requests. max_mamba_cache_size={slots}, mamba_ratio={ratio}, resulting max_num_reqs=0. "
        "Try: (1) reduce --max-running-requests, (2) increase --mem-fraction-static, or "
        "(3) use GPUs with more memory."
    ),
}

USUAL = {
    "args": "args",
    "weights": "oom_load",
    "memory": "not_enough",
    "graphs": "oom_graph",
    "warmup": "warmup",
    "run": "oom_run",
}
"""The cause of a phase where none is named."""

FRAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "weights": (
        ("managers/scheduler.py", "run_scheduler_process"),
        ("model_executor/model_runner.py", "load_model"),
    ),
    "memory": (
        ("managers/scheduler.py", "run_scheduler_process"),
        ("model_executor/model_runner.py", "init_memory_pool"),
    ),
    "graphs": (
        ("managers/scheduler.py", "run_scheduler_process"),
        ("model_executor/cuda_graph_runner.py", "capture"),
    ),
    "run": (
        ("managers/scheduler.py", "run_event_loop"),
        ("managers/tp_worker.py", "forward_batch_generation"),
        ("model_executor/model_runner.py", "forward"),
    ),
    "args": (
        ("server_args.py", "prepare_server_args"),
        ("server_args.py", "__post_init__"),
    ),
    "warmup": (("entrypoints/http_server.py", "_execute_server_warmup"),),
    "http": (("entrypoints/http_server.py", "app"),),
}


def cause(name: str, phase: str) -> Cause:
    """The named cause, a line of one's own, or the usual one of the phase."""
    if not name:
        name = USUAL[phase]
    how: Literal["main", "scheduler"] = "main" if phase == "args" else "scheduler"
    return CAUSES.get(name) or Cause(name, how=how)


def traceback(text: str, phase: str) -> str:
    """A traceback that ends with this text."""
    lines = ["Traceback (most recent call last):"]
    for n, (file, name) in enumerate(FRAMES.get(phase, FRAMES["run"])):
        where = f"site-packages/sglang/srt/{file}"
        lines.append(f'  File "{where}", line {100 + 37 * n}, in {name}')
    return "\n".join([*lines, text])
