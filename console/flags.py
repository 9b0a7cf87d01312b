"""SGLang's flags as an operator types them: parsing, completion, and mistakes told at once.

The names below are those most used with long batch runs, with the choices that SGLang 0.5.12 and
0.5.23 take (``sglang/srt/server_args.py`` of both). The server's own parser has the last word:
a name that is not here is asked about once, not refused.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from console.model import flag_text
from remote.protocol import Flags, FlagValue


@dataclass(frozen=True)
class Known:
    """What is known of a flag without asking the server."""

    kind: str
    """``flag``, ``int``, ``float``, ``fraction``, ``text`` or ``list``."""
    help: str
    choices: tuple[str, ...] = ()


KNOWN: Final[dict[str, Known]] = {
    "attention-backend": Known(
        "text", "attention kernels", ("flashinfer", "triton", "trtllm_mha", "fa3", "fa4")
    ),
    "chunked-prefill-size": Known("int", "tokens a prefill chunk; -1 turns chunking off"),
    "context-length": Known("int", "longest prompt plus answer, in tokens"),
    "cuda-graph-max-bs": Known("int", "largest batch that gets a CUDA graph (0.5.12)"),
    "cuda-graph-max-bs-decode": Known("int", "largest decode batch with a CUDA graph (0.5.23)"),
    "decode-log-interval": Known("int", "decode steps between two log lines"),
    "disable-cuda-graph": Known("flag", "run without CUDA graphs: slower, less memory"),
    "disable-custom-all-reduce": Known("flag", "use NCCL's all-reduce"),
    "disable-overlap-schedule": Known("flag", "no overlap of scheduling and compute"),
    "disable-radix-cache": Known("flag", "no prefix cache: one Mamba slot a request"),
    "dtype": Known("text", "weights and activations", ("auto", "bfloat16", "float16", "float32")),
    "enable-cache-report": Known("flag", "cached tokens in every answer's usage"),
    "enable-deterministic-inference": Known("flag", "same seed, same answer; slower"),
    "enable-metrics": Known("flag", "Prometheus metrics: needed for live throughput"),
    "enable-mixed-chunk": Known("flag", "prefill chunks and decode in one batch"),
    "kv-cache-dtype": Known(
        "text", "KV cache precision", ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2")
    ),
    "linear-attn-backend": Known("text", "linear attention kernels", ("triton", "flashinfer")),
    "log-level": Known("text", "how much is logged", ("info", "warning", "error", "debug")),
    "mamba-backend": Known("text", "Mamba kernels", ("triton", "flashinfer")),
    "mamba-full-memory-ratio": Known("float", "Mamba state bytes : KV cache bytes"),
    "mamba-radix-cache-strategy": Known(
        "text",
        "state slots a request holds (0.5.23)",
        ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
    ),
    "mamba-scheduler-strategy": Known(
        "text", "state slots a request holds (0.5.12)", ("auto", "no_buffer", "extra_buffer")
    ),
    "mamba-ssm-dtype": Known(
        "text", "precision of the Mamba state", ("float32", "bfloat16", "float16")
    ),
    "mamba-track-interval": Known("int", "decode steps between state snapshots"),
    "max-mamba-cache-size": Known("int", "Mamba state slots, instead of the ratio"),
    "max-prefill-tokens": Known("int", "tokens a prefill batch"),
    "max-queued-requests": Known("int", "over it the server answers 503"),
    "max-running-requests": Known("int", "most requests decoded at once"),
    "max-total-tokens": Known("int", "cap of the KV cache, in tokens"),
    "mem-fraction-static": Known("fraction", "share of the card for weights and pools"),
    "page-size": Known("int", "tokens a KV cache page"),
    "prefill-max-requests": Known("int", "requests a prefill batch"),
    "quantization": Known("text", "weight quantization, where the checkpoint does not say"),
    "random-seed": Known("int", "seed of the server"),
    "reasoning-parser": Known("text", "how reasoning is split off", ("qwen3", "qwen3-thinking")),
    "schedule-conservativeness": Known("float", "raise it where requests are retracted"),
    "schedule-policy": Known("text", "order of the queue", ("fcfs", "lpm", "lof", "random")),
    "served-model-name": Known("text", "name in the API"),
    "skip-server-warmup": Known("flag", "up without a test generation"),
    "stream-interval": Known("int", "tokens between two stream events"),
    "tool-call-parser": Known(
        "text", "how tool calls are read", ("qwen3_coder", "qwen25", "hermes")
    ),
    "tp-size": Known("int", "GPUs a server; one server a GPU: 1"),
    "trust-remote-code": Known("flag", "run code of the model repository"),
    "watchdog-timeout": Known("float", "seconds a forward pass may take"),
}

RESERVED: Final = frozenset({"host", "port", "model-path", "base-gpu-id", "nccl-port", "config"})
"""Set by Stoker for each server."""


class FlagError(Exception):
    """One line: what is wrong with what was typed, and what to do."""


@dataclass(frozen=True)
class Edit:
    """One flag as typed; ``value`` None takes it out."""

    name: str
    value: FlagValue | None
    doubt: str = ""
    """Said once where the name is not known here."""


def parse(text: str, current: Flags) -> Edit:
    """``name=value``, ``name`` for a bare flag, ``-name`` or ``name=`` to take one out.

    Raises :class:`FlagError`.
    """
    text = text.strip()
    remove = text.startswith("-") and not text.startswith("--")
    body = text.lstrip("-").strip()
    if "=" in body:
        name, _, raw = body.partition("=")
    elif " " in body:
        name, _, raw = body.partition(" ")
    else:
        name, raw = body, ""
    name, raw = name.strip().replace("_", "-").lower(), raw.strip()
    if not name:
        raise FlagError("type a flag as name=value")
    if name in RESERVED:
        raise FlagError(f"{name} is set by Stoker for each server")
    known = KNOWN.get(name)
    if remove or (raw == "" and "=" in body):
        if name not in current:
            raise FlagError(f"{name} is not set, so it cannot be taken out")
        return Edit(name, None)
    doubt = ""
    if known is None and name not in current:
        near = difflib.get_close_matches(name, [*KNOWN, *current], 1, 0.6)
        meant = f"; did you mean {near[0]}?" if near else ""
        doubt = f"{name} is not a flag known here{meant} Enter it again to keep it"
    return Edit(name, _value(name, raw, known), doubt)


def _value(name: str, raw: str, known: Known | None) -> FlagValue | None:
    kind = known.kind if known is not None else ""
    low = raw.lower()
    if kind == "flag":
        if low in ("", "true", "on", "yes", "1"):
            return True
        if low in ("false", "off", "no", "0"):
            return None
        raise FlagError(f"{name} takes no value: type {name} to set it, -{name} to take it out")
    if not raw:
        if known is None:
            return True
        raise FlagError(f"{name} needs a value ({known.help})")
    if low in ("true", "false"):
        return True if low == "true" else None
    number = _number(raw)
    if kind == "int" and not isinstance(number, int):
        raise FlagError(f"{name} takes a whole number, not {raw!r}")
    if kind in ("float", "fraction") and number is None:
        raise FlagError(f"{name} takes a number, not {raw!r}")
    if kind == "fraction" and not 0 < (number or 0) < 1:
        raise FlagError(f"{name} is a share between 0 and 1, not {raw}")
    if known is not None and known.choices and raw not in known.choices:
        near = difflib.get_close_matches(raw, known.choices, 1, 0.5)
        if near:
            raise FlagError(f"{name}: did you mean {near[0]}? ({', '.join(known.choices)})")
    if kind == "text":
        return raw
    return number if number is not None else raw


def _number(raw: str) -> int | float | None:
    try:
        return int(raw)
    except ValueError:
        pass
    try:
        return float(raw)
    except ValueError:
        return None


def complete(text: str, current: Flags) -> str | None:
    """The whole of what is being typed: a name with its value, or a choice of the value."""
    remove = "-" if text.startswith("-") and not text.startswith("--") else ""
    body = text.lstrip("-")
    if not body:
        return None
    name, equals, raw = body.partition("=")
    name = name.replace("_", "-").lower()
    if equals:
        known = KNOWN.get(name)
        for choice in known.choices if known is not None else ():
            if raw and choice.startswith(raw) and choice != raw:
                return f"{text[: len(text) - len(raw)]}{choice}"
        return None
    names = sorted(current) if remove else [*sorted(current), *KNOWN]
    for candidate in names:
        if candidate.startswith(name):
            known = KNOWN.get(candidate)
            value = ""
            if not remove and not (known is not None and known.kind == "flag"):
                shown = flag_text(current.get(candidate))
                value = "=" if shown == "–" else f"={shown}"
            return f"{text[: len(text) - len(body)]}{candidate}{value}"
    return None


def apply(current: Flags, edits: dict[str, FlagValue | None]) -> Flags:
    """The flags after the edits."""
    changed = {name: value for name, value in current.items() if edits.get(name, value) is not None}
    changed.update({name: value for name, value in edits.items() if value is not None})
    return changed
