"""How much fits on a card: SGLang's memory arithmetic for hybrid (Mamba + attention) models.

Source: SGLang 0.5.12 ``srt/model_executor/model_runner_kv_cache_mixin.py`` and 0.5.23
``srt/mem_cache/kv_cache_configurator.py``; sizes of a state slot from
``srt/configs/mamba_utils.py``. Sizes in bytes unless a name says GiB or MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from console.lab.sim.settings import Version

GIB = 1 << 30
CONTEXT_MIB = 1221
"""What the driver, the CUDA context and the distributed set-up take before weights: a
97,887 MiB card then reports 94.4 GiB free."""


@dataclass(frozen=True)
class Shape:
    """What of a model decides the size of its caches (values of Qwen3.6-27B)."""

    linear_layers: int = 48
    full_layers: int = 16
    value_heads: int = 48
    key_heads: int = 16
    head_dim: int = 128
    conv_kernel: int = 4
    kv_heads: int = 4
    kv_head_dim: int = 256
    context: int = 262_144
    weights_gib: dict[str, float] | None = None

    def weights(self, form: str) -> float:
        """Resident weights in GiB: ``bf16``, ``fp8`` or ``fp4``."""
        return (self.weights_gib or {"bf16": 51.5, "fp8": 28.9, "fp4": 19.5})[form]

    def conv_bytes(self) -> int:
        """Convolution state of one request."""
        channels = self.value_heads * self.head_dim + 2 * self.key_heads * self.head_dim
        return self.linear_layers * channels * (self.conv_kernel - 1) * 2

    def ssm_bytes(self, dtype: str) -> int:
        """Recurrent state of one request: float32, or half of it."""
        size = 4 if dtype == "float32" else 2
        return self.linear_layers * self.value_heads * self.head_dim * self.head_dim * size

    def slot_bytes(self, dtype: str) -> int:
        """One Mamba state slot."""
        return self.conv_bytes() + self.ssm_bytes(dtype)

    def cell_bytes(self, kv_bytes: int) -> int:
        """KV cache of one token; ``kv_bytes`` an element (2 bfloat16, 1 fp8)."""
        return self.full_layers * self.kv_heads * 2 * self.kv_head_dim * kv_bytes


QWEN36_27B = Shape()


@dataclass(frozen=True)
class Request:
    """The flags that matter for the sizing, resolved."""

    version: Version
    weights: str = "bf16"
    mem_fraction: float = 0.9
    ssm_dtype: str = "float32"
    strategy: Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"] = "no_buffer"
    radix_cache: bool = True
    overlap: bool = True
    kv_bytes: int = 2
    full_memory_ratio: float = 0.9
    max_mamba: int | None = None
    max_running: int | None = None
    max_total_tokens: int | None = None
    context: int | None = None


@dataclass(frozen=True)
class Pools:
    """What the server ends up with."""

    slots: int
    """Mamba state slots (``max_mamba_cache_size``)."""
    slots_per_request: int
    tokens: int
    """KV capacity (``max_total_num_tokens``)."""
    max_running: int
    uncapped: int
    """``max_running`` before the state slots cut it."""
    weights_gib: float
    conv_gib: float
    ssm_gib: float
    kv_gib: float
    after_pools_gib: float


class NotEnoughMemoryError(Exception):
    """The pools do not fit; ``kind`` says which: ``weights``, ``kv``, ``mamba`` or ``zero``."""

    def __init__(self, kind: Literal["weights", "kv", "mamba", "zero"]) -> None:
        super().__init__(kind)
        self.kind = kind


def slots_per_request(request: Request) -> int:
    """State slots that admission reserves for one request."""
    if not request.radix_cache:
        return 1
    if request.strategy == "no_buffer":
        return 3
    if request.strategy == "extra_buffer_lazy":
        return 4
    return 5 if request.overlap else 4


def default_fraction(version: Version, memory_mib: int, vision: bool = True) -> float:
    """``--mem-fraction-static`` where it was not given: a 96 GB card and one rank."""
    chunk, max_bs, piecewise = 8192, 256, 8 * 58 if version == "0.5.12" else 0
    reserved = max(512 + 1.5 * chunk + 2 * max_bs + 128 + piecewise, 10_240)
    fraction = round((memory_mib - reserved) / memory_mib, 3)
    if not vision:
        return fraction
    tower = (24 * 1152**2) / (24 * 1024**2)
    return float(f"{fraction * 0.95 * (1 - 0.1 * (tower - 1)):.3f}")


def size(request: Request, memory_mib: int = 97_887, shape: Shape = QWEN36_27B) -> Pools:
    """Pools and admission limit; raises :class:`NotEnoughMemoryError`."""
    new = request.version == "0.5.23"
    before = memory_mib / 1024 - CONTEXT_MIB / 1024
    weights = shape.weights(request.weights)
    after = before - weights
    if after < 0:
        raise NotEnoughMemoryError("weights")
    rest = after - before * (1 - request.mem_fraction) - (0.098 if new else 0.0)
    if rest <= 0:
        raise NotEnoughMemoryError("kv")
    slot = shape.slot_bytes(request.ssm_dtype) / GIB
    cell = shape.cell_bytes(request.kv_bytes) / GIB
    budget = rest * request.full_memory_ratio / (1 + request.full_memory_ratio)
    if request.max_mamba is not None:
        slots = request.max_mamba
    elif not request.radix_cache and request.max_running is not None:
        slots = request.max_running
    else:
        slots = int((budget - slot) // slot) if new else int(budget // slot)
    if slots <= 0:
        raise NotEnoughMemoryError("mamba")
    tokens = int((rest - (slots + (1 if new else 0)) * slot) // cell)
    if tokens <= 0:
        raise NotEnoughMemoryError("kv")
    if request.max_total_tokens is not None:
        tokens = min(tokens, request.max_total_tokens)
    per_request = slots_per_request(request)
    context = request.context or shape.context
    by_context = min(max(int(tokens / context * 512), 2048), 4096)
    if request.max_running is None:
        base = min(by_context, tokens // 2)
    elif new:
        base = min(request.max_running, tokens // 2)
    else:
        base = min(request.max_running, by_context)
    running = min(base, slots // per_request)
    if running <= 0:
        raise NotEnoughMemoryError("zero")
    conv = slots * shape.conv_bytes() / GIB
    ssm = slots * shape.ssm_bytes(request.ssm_dtype) / GIB
    kv = tokens * cell
    return Pools(
        slots=slots,
        slots_per_request=per_request,
        tokens=tokens,
        max_running=running,
        uncapped=base,
        weights_gib=weights,
        conv_gib=conv,
        ssm_gib=ssm,
        kv_gib=kv,
        after_pools_gib=after - conv - ssm - kv - (slot if new else 0.0),
    )
