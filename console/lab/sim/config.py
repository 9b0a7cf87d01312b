"""From a parsed command line to what the server will run with, as SGLang resolves it.

What SGLang refuses before it loads anything is refused here: :class:`ArgumentsError` carries the
last line of the traceback that the real one ends with (exit status 1).
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from console.lab.sim import capacity
from console.lab.sim.settings import Version

FIELD_NAMES = {
    "tensor_parallel_size": "tp_size",
    "data_parallel_size": "dp_size",
    "pipeline_parallel_size": "pp_size",
    "expert_parallel_size": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
}
"""Fields of ``ServerArgs`` that are not called like their option."""

SM120_BACKENDS: dict[str, tuple[str, ...]] = {
    "0.5.12": ("triton", "trtllm_mha", "fa4", "flashinfer"),
    "0.5.23": ("triton", "trtllm_mha", "flashinfer"),
}
"""Attention backends of hybrid GDN models on an RTX PRO 6000 (compute capability 12.0)."""


class ArgumentsError(Exception):
    """The flags contradict each other or the model; the text is ``Type: message``."""


@dataclass(frozen=True)
class Config:
    """Everything the simulated server needs to know of its flags."""

    version: Version
    args: argparse.Namespace
    gpu: int
    model: str
    served_name: str
    host: str
    port: int
    attention: str
    sizing: capacity.Request
    """Weights, memory and how recurrent states are kept."""
    context: int
    context_given: bool
    cuda_graph: bool
    graph_max: int
    warnings: list[str]
    seed: int
    argv: tuple[str, ...] = ()
    """The command line behind the module's name."""

    @property
    def new(self) -> bool:
        """The 0.5.23 dialect."""
        return self.version == "0.5.23"

    @property
    def prefill_graph(self) -> bool:
        """Prefill, too, runs from CUDA graphs (0.5.23)."""
        backend = getattr(self.args, "cuda_graph_backend_prefill", None)
        return self.new and self.cuda_graph and backend != "disabled"

    @property
    def metrics(self) -> bool:
        """``--enable-metrics``."""
        return bool(self.args.enable_metrics)


def gpu_index(args: argparse.Namespace) -> int:
    """The card this server uses: the visible one at ``--base-gpu-id``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    listed = [int(part) for part in visible.split(",") if part.strip().isdigit()]
    base: int = args.base_gpu_id
    if listed:
        return listed[min(base, len(listed) - 1)]
    return base


def weights_form(args: argparse.Namespace) -> str:
    """``bf16``, ``fp8`` or ``fp4``: by ``--quantization``, else by the model's name."""
    method = (args.quantization or "").lower()
    name = str(args.model_path).lower()
    if "fp4" in method or (not method and "fp4" in name):
        return "fp4"
    if "fp8" in method or "int8" in method or (not method and "fp8" in name):
        return "fp8"
    return "bf16"


NO_GRAPH = ("torch_native", "flex_attention")
"""Attention backends without CUDA graphs."""


def _mamba(
    args: argparse.Namespace, *, new: bool
) -> tuple[Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"], bool, list[str]]:
    """How recurrent states are kept, whether scheduling overlaps, and what is said of it."""
    warnings: list[str] = []
    wanted = args.mamba_radix_cache_strategy if new else args.mamba_scheduler_strategy
    radix, overlap = not args.disable_radix_cache, not args.disable_overlap_schedule
    strategy = wanted
    if wanted == "auto":
        strategy = "no_buffer"
        if new and overlap and (args.linear_attn_backend or "triton") == "triton":
            strategy = "extra_buffer"
    if strategy.startswith("extra_buffer") and not radix:
        if wanted != "auto":
            name = "mamba-radix-cache-strategy" if new else "mamba-scheduler-strategy"
            raise ArgumentsError(
                "ValueError: mamba extra_buffer is not compatible with --disable-radix-cache "
                "Overlap scheduling is already supported with no_buffer + disable_radix_cache. "
                f"Please use --{name} no_buffer instead."
            )
        strategy = "no_buffer"
    if strategy == "no_buffer" and radix:
        if new:
            if args.page_size not in (1, None):
                raise ArgumentsError("AssertionError: no_buffer only supports page_size=1.")
            if overlap and wanted != "auto":
                raise ArgumentsError(
                    "AssertionError: no_buffer do not support overlap schedule. "
                    "Try to set disable_overlap_schedule=True."
                )
        else:
            if args.page_size not in (1, None):
                warnings.append(
                    "Qwen3_5ForConditionalGeneration with radix cache requires page_size=1 in "
                    f"the current Mamba scheduling mode (no_buffer), but got {args.page_size}. "
                    "Automatically setting page_size=1."
                )
            warnings.append(
                "Disabling overlap schedule since mamba no_buffer is not compatible with "
                "overlap schedule, try to use --disable-radix-cache if overlap schedule is "
                "necessary"
            )
        overlap = False
    elif (
        strategy.startswith("extra_buffer")
        and args.page_size is not None
        and (args.mamba_track_interval or 256) % args.page_size
    ):
        raise ArgumentsError(
            f"AssertionError: mamba_track_interval {args.mamba_track_interval} must be divisible "
            f"by page_size {args.page_size}"
        )
    return strategy, overlap, warnings


def _refuse(args: argparse.Namespace, context: int, longest: int) -> None:
    """Raise :class:`ArgumentsError` for what the server or this simulation does not do.

    ``longest`` is the context that the model was made for.
    """
    allowed = os.environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower()
    if context > longest and allowed not in ("1", "true"):
        raise ArgumentsError(
            f"ValueError: Warning: User-specified context_length ({context}) is greater than the "
            f"derived context_length ({longest}). This may lead to incorrect model outputs "
            "or CUDA errors. Note that the derived context_length may differ from "
            "max_position_embeddings in the model's config. To allow overriding this maximum, "
            "set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        )
    for name, field in FIELD_NAMES.items():
        if (getattr(args, name, None) or getattr(args, field, None) or 1) != 1:
            raise ArgumentsError(
                f"ValueError: the simulated container has one card a server: {field} must be 1"
            )
    if args.config:
        raise ArgumentsError("ValueError: the simulation reads no --config file")
    if args.speculative_algorithm:
        raise ArgumentsError("ValueError: the simulation has no speculative decoding")


def _graphs(args: argparse.Namespace, *, new: bool) -> tuple[bool, int]:
    """Whether decoding uses CUDA graphs where the attention allows them, and up to which batch."""
    if new:
        decode_graphs = getattr(args, "cuda_graph_backend_decode", None)
        graph = not args.disable_cuda_graph and decode_graphs != "disabled"
        graph_max = args.cuda_graph_max_bs_decode
        sizes = args.cuda_graph_bs_decode
    else:
        graph = not args.disable_cuda_graph
        graph_max = args.cuda_graph_max_bs
        sizes = args.cuda_graph_bs
    if sizes:
        graph_max = max(int(size) for size in sizes)
    return graph, graph_max or 256


def resolve(
    args: argparse.Namespace, version: Version, memory_mib: int, argv: Sequence[str] = ()
) -> Config:
    """Check and complete the flags; raises :class:`ArgumentsError`."""
    new = version == "0.5.23"
    strategy, overlap, warnings = _mamba(args, new=new)
    longest = capacity.QWEN36_27B.context
    context = args.context_length or longest
    _refuse(args, context, longest)
    fraction = args.mem_fraction_static
    if fraction is None:
        fraction = capacity.default_fraction(version, memory_mib)
    attention = args.attention_backend or "flashinfer"
    if attention in NO_GRAPH:
        warnings.append(f"Cuda graph is disabled because of using {attention} attention backend")
    graph, graph_max = _graphs(args, new=new)
    sizing = capacity.Request(
        version=version,
        weights=weights_form(args),
        mem_fraction=fraction,
        ssm_dtype=args.mamba_ssm_dtype or os.environ.get("SGLANG_MAMBA_SSM_DTYPE") or "float32",
        strategy=strategy,
        radix_cache=not args.disable_radix_cache,
        overlap=overlap,
        kv_bytes=1 if "fp8" in str(args.kv_cache_dtype) else 2,
        full_memory_ratio=args.mamba_full_memory_ratio or 0.9,
        max_mamba=args.max_mamba_cache_size,
        max_running=args.max_running_requests,
        max_total_tokens=args.max_total_tokens,
        context=context,
    )
    seed = args.random_seed
    return Config(
        version=version,
        args=args,
        gpu=gpu_index(args),
        model=args.model_path,
        served_name=args.served_model_name or args.model_path,
        host=args.host,
        port=args.port,
        attention=attention,
        sizing=sizing,
        context=context,
        context_given=args.context_length is not None,
        cuda_graph=graph and attention not in NO_GRAPH,
        graph_max=graph_max,
        warnings=warnings,
        seed=seed if seed is not None else random.SystemRandom().randint(0, 1 << 30),
        argv=tuple(argv),
    )


def fields(config: Config) -> dict[str, Any]:
    """The server's arguments as ``/server_info`` and the ``server_args=`` line show them.

    0.5.12 shows them as they were given (and completed early); 0.5.23 as they were resolved.
    """
    values = {
        FIELD_NAMES.get(name, name): value
        for name, value in vars(config.args).items()
        if not name.startswith("_")
    }
    values.pop("config", None)
    values.update(
        tokenizer_path=values.get("tokenizer_path") or config.model,
        served_model_name=config.served_name,
        mem_fraction_static=config.sizing.mem_fraction,
        random_seed=config.seed,
        attention_backend=config.attention,
        disable_overlap_schedule=not config.sizing.overlap,
        device="cuda",
        chunked_prefill_size=values.get("chunked_prefill_size") or 8192,
        page_size=values.get("page_size") or 1,
        sampling_backend=values.get("sampling_backend") or "flashinfer",
    )
    if config.new:
        values["mamba_radix_cache_strategy"] = config.sizing.strategy
        values["mamba_ssm_dtype"] = config.sizing.ssm_dtype
    else:
        values["mamba_scheduler_strategy"] = config.sizing.strategy
        values["cuda_graph_max_bs"] = config.graph_max
    return values
