"""What a server's ``/server_info`` says that answers depend on.

Two servers of one identity would go on with each other's answers as with their own. Sampling is a
part of it: SGLang's chat endpoint takes what a request leaves open from the model's
``generation_config.json`` (``entrypoints/openai/protocol.py``, 0.5.12), ``/generate`` does not, so
that these values have to be known and sent. No endpoint tells them; they are read from the model's
folder, which only a server on this machine shares.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What SGLang's chat endpoint takes where neither request nor model says anything."""

_IDENTITY = (
    "model_path",
    "revision",
    "weight_version",
    "dtype",
    "quantization",
    "quantization_param_path",
    "torchao_config",
    "kv_cache_dtype",
    "mamba_ssm_dtype",
    "tokenizer_path",
    "tokenizer_mode",
    "chat_template",
    "hf_chat_template_name",
    "json_model_override_args",
    "sampling_defaults",
    "preferred_sampling_params",
)

_OTHER_MARKS = frozenset(
    "apertus2509 cohere_command4 gemma4 gpt-oss granite_thinking_parser hunyuan inkling iquest_q1 "
    "kimi kimi_k3 minimax-append-think minimax-m3 mistral muse response_template".split()
)
"""Reasoning parsers of 0.5.12 and 0.5.23 (``parser/reasoning_parser.py``) whose thoughts do not
stand between ``<think>`` and ``</think>``."""


@dataclass(frozen=True)
class Facts:
    """One server process, as far as an answer's continuation depends on it."""

    identity: str
    """Hash of model, revision, quantization, number formats, tokenizer and sampling."""
    reasoning_parser: str
    tool_call_parser: str
    defaults: dict[str, Any] | None
    """Sampling parameters where a request leaves them open; None where they cannot be known."""
    why_not: str
    """Why ``/generate`` cannot stand in for chat here, with what to do; empty where it can."""


def read(info: dict[str, Any], url: str, request: dict[str, Any]) -> Facts:
    """The facts in ``/server_info`` of the server at ``url``. Blocking: looks for a small file.

    ``request`` is what the run asks every answer with.
    """
    folder = _model_folder(info) if _is_local(url) else None
    fixed = all(request.get(name) is not None for name in ("temperature", "top_p", "top_k"))
    defaults = dict(NEUTRAL)
    known = True
    if info.get("sampling_defaults", "model") == "model":
        if folder is not None:
            defaults.update(_generation_config(folder))
        elif not fixed:
            known = False
    reasoning = str(info.get("reasoning_parser") or "")
    why_not = ""
    if not known:
        why_not = (
            "the model's generation_config.json is not on this machine: set temperature, top_p "
            "and top_k (params of [run], or --request)"
        )
    elif reasoning in _OTHER_MARKS:
        why_not = f"its reasoning parser {reasoning} has other marks than <think>"
    parts = {name: info.get(name) for name in _IDENTITY}
    parts["defaults"] = defaults
    parts["request"] = request
    text = msgspec.json.encode(parts, order="sorted")
    return Facts(
        identity=hashlib.sha256(text).hexdigest()[:16],
        reasoning_parser=reasoning,
        tool_call_parser=str(info.get("tool_call_parser") or ""),
        defaults=defaults if known else None,
        why_not=why_not,
    )


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _model_folder(info: dict[str, Any]) -> Path | None:
    """Where the model's small files are: its own folder, or a snapshot in Hugging Face's cache."""
    model = str(info.get("model_path") or "")
    if not model:
        return None
    candidates = [Path(model)]
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(info.get("download_dir") or os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    kept = hub / f"models--{model.replace('/', '--')}"
    revision = str(info.get("revision") or "main")
    with contextlib.suppress(OSError):
        revision = (kept / "refs" / revision).read_text().strip()
    candidates.append(kept / "snapshots" / revision)
    return next((path for path in candidates if (path / "config.json").is_file()), None)


def _generation_config(folder: Path) -> dict[str, Any]:
    """What the model's authors recommend, of what SGLang takes over."""
    try:
        config = msgspec.json.decode((folder / "generation_config.json").read_bytes(), type=dict)
    except (OSError, msgspec.DecodeError):
        return {}
    return {name: config[name] for name in NEUTRAL if config.get(name) is not None}
