"""How many requests a server will admit at once, from its flags, its card and its model.

On models with linear attention each request holds state slots besides its KV cache, and mostly
the slots decide. The formulas are those of SGLang 0.5.12
(``model_executor/model_runner_kv_cache_mixin.py``, ``configs/mamba_utils.py``) and 0.5.23
(``mem_cache/kv_cache_configurator.py``). Sizes are bytes, memory is GiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from remote.protocol import Flags, Predicted, Sizes
from remote.sglang.catalogue import whole
from remote.sglang.dialect import resolved_strategy
from remote.sglang.startup import StartFacts

GIB = 1 << 30

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_RATIO = 0.9
"""Default of ``mamba-full-memory-ratio``: state pool to KV pool."""

_SLOTS = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}
"""State slots that are reserved for one request, radix cache and overlap on."""

RESERVED = 1.2
"""GiB that the driver and a CUDA context keep of a card before anything is loaded."""

_IMAGE_CACHE = 0.098
"""GiB that 0.5.23 sets aside for image features before it sizes the pools."""


@dataclass(frozen=True)
class Model:
    """Sizes of one model's caches."""

    conv: int
    """Bytes of convolution state a slot; 0 on models without linear attention."""
    ssm_elements: int
    """Elements of recurrent state a slot; their type is the ``mamba-ssm-dtype`` flag's."""
    cell: int
    """Bytes of KV cache a token at 16 bits an element."""
    context: int
    ssm_dtype: str = "float32"
    """What the model itself asks for."""
    vision: tuple[int, int] | None = None
    """Layers and width of its image tower; None for text models."""

    @property
    def hybrid(self) -> bool:
        return self.conv + self.ssm_elements > 0

    def slot(self, flags: Flags) -> int:
        """Bytes of one state slot under these flags."""
        dtype = str(flags.get("mamba-ssm-dtype") or self.ssm_dtype)
        return self.conv + self.ssm_elements * _STATE_BYTES.get(dtype, 4)

    def kv_cell(self, flags: Flags) -> int:
        """Bytes of KV cache one token takes under these flags."""
        dtype = str(flags.get("kv-cache-dtype") or "auto")
        if dtype.startswith(("fp8", "mxfp8")):
            return self.cell // 2
        return self.cell // 4 if dtype.startswith(("fp4", "nvfp4")) else self.cell


QWEN3_6_27B = Model(
    conv=48 * (48 * 128 + 2 * 16 * 128) * 3 * 2,
    ssm_elements=48 * 48 * 128 * 128,
    cell=16 * 4 * (256 + 256) * 2,
    context=262_144,
    vision=(24, 1152),
)
"""64 layers, 48 of them linear: 48 value and 16 key heads of 128, convolution 4 wide; 16 full
ones with 4 KV heads of 256 (the model's ``config.json``; Qwen3.5-27B is the same)."""

WEIGHTS = {"nvfp4": 19.5, "fp4": 19.5, "fp8": 28.9, "": 51.5}
"""GiB that its weights take on the card, by quantization as its name says it."""

_FAMILY = re.compile(r"qwen3\.[56]-27b(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Card:
    """Memory of one card around the load of the weights."""

    total: float
    """GiB the driver reports."""
    before: float
    """GiB free before the weights are loaded."""
    after: float
    """GiB free once they are."""
    slack: float = 0.0
    """GiB that a start gave its pools beyond what :func:`predict` foresees (or less: negative)."""


@dataclass(frozen=True)
class Prediction:
    """What a server with these flags will come to."""

    max_running: int
    max_mamba: int | None
    """State slots of the pool; None on models without linear attention."""
    kv_tokens: int
    pools: float
    """GiB of state and KV pools together."""
    left: float
    """GiB that remain for graphs and activations."""
    bound_by: str
    """``state slots``, ``KV tokens`` or ``max-running-requests``."""

    def told(self) -> Predicted:
        """The same for those who ask."""
        return Predicted(
            self.kv_tokens, self.max_mamba, round(self.pools, 2), round(self.left, 2), self.bound_by
        )


def known_model(name: str) -> tuple[Model, float] | None:
    """Model and weights (GiB) by the name of the model; None for a family not known here."""
    found = _FAMILY.search(name)
    if found is None:
        return None
    suffix = found[1].lower()
    return QWEN3_6_27B, next(gib for mark, gib in WEIGHTS.items() if mark in suffix)


def read_config(config: Mapping[str, Any]) -> Model | None:
    """The model of a Hugging Face ``config.json``; None where it does not say enough."""
    text = config.get("text_config") or config
    try:
        layers = int(text["num_hidden_layers"])
        heads = int(text["num_attention_heads"])
        kv_heads = int(text.get("num_key_value_heads") or heads)
        width = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
        context = int(text["max_position_embeddings"])
        kinds = text.get("layer_types")
        if isinstance(kinds, list):
            linear = sum(1 for kind in kinds if kind == "linear_attention")
        elif "full_attention_interval" in text and "linear_num_value_heads" in text:
            linear = layers - layers // int(text["full_attention_interval"])
        else:
            linear = 0
        conv = ssm = 0
        if linear:
            v_heads, v_dim = int(text["linear_num_value_heads"]), int(text["linear_value_head_dim"])
            k_heads, k_dim = int(text["linear_num_key_heads"]), int(text["linear_key_head_dim"])
            window = int(text["linear_conv_kernel_dim"]) - 1
            conv = linear * (v_heads * v_dim + 2 * k_heads * k_dim) * window * 2
            ssm = linear * v_heads * v_dim * k_dim
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    vision = config.get("vision_config")
    tower = None
    if isinstance(vision, Mapping):
        tower = (int(vision.get("num_hidden_layers", 24)), int(vision.get("hidden_size", 1024)))
    return Model(
        conv=conv,
        ssm_elements=ssm,
        cell=(layers - linear) * kv_heads * 2 * width * 2,
        context=context,
        ssm_dtype=str(text.get("mamba_ssm_dtype") or "float32"),
        vision=tower,
    )


def learn(facts: StartFacts, flags: Flags, new: bool, model: Model | None) -> Model | None:
    """The model with the sizes that a start under ``flags`` has printed.

    The log rounds to 0.01 GiB, so a model that agrees with it within 1% is kept as it is. None
    where neither the log nor ``model`` says enough.
    """
    cell = None
    if facts.kv_tokens and facts.kv_cache:
        shrink = replace(model or QWEN3_6_27B, cell=4).kv_cell(flags) / 4
        cell = int(facts.kv_cache * GIB / facts.kv_tokens / shrink)
    conv = elements = 0
    if facts.max_mamba and facts.conv_state is not None and facts.ssm_state is not None:
        slots = facts.max_mamba + (1 if new else 0)
        conv = int(facts.conv_state * GIB / slots)
        fallback = model.ssm_dtype if model is not None else "float32"
        dtype = str(flags.get("mamba-ssm-dtype") or fallback)
        elements = int(facts.ssm_state * GIB / slots / _STATE_BYTES.get(dtype, 4))
    if model is None:
        if cell is None:
            return None
        return Model(conv, elements, cell, facts.context_length or 0)
    if elements and abs(elements / max(model.ssm_elements, 1) - 1) > 0.01:
        model = replace(model, conv=conv, ssm_elements=elements)
    is_large = (facts.kv_cache or 0.0) > 1  # a small one is mostly rounding
    if cell is not None and is_large and abs(cell / model.cell - 1) > 0.01:
        model = replace(model, cell=cell)
    return model


def learn_slack(facts: StartFacts, flags: Flags, new: bool, card: Card, model: Model) -> Card:
    """The card with what this start under ``flags`` gave its pools beyond the foreseen.

    What an environment variable or an unknown default takes is nearly the same at the next start.
    Below 0.1 GiB it is the rounding of the log.
    """
    if facts.kv_cache is None or (model.hybrid and facts.ssm_state is None):
        return card
    # Pools that a count bounds say nothing of the memory there was.
    if any(flags.get(name) for name in ("max-mamba-cache-size", "max-total-tokens")):
        return card
    expected = predict(flags, new, card, model)
    got = facts.kv_cache + (facts.ssm_state or 0.0) + (facts.conv_state or 0.0)
    if expected is None or abs(got - expected.pools) < 0.1:
        return card
    return replace(card, slack=got - expected.pools)


def sizes(card: Card, model: Model) -> Sizes:
    """Both as they travel."""
    return Sizes(
        total=round(card.total, 2),
        before=card.before,
        after=card.after,
        slack=round(card.slack, 3),
        conv=model.conv,
        ssm_elements=model.ssm_elements,
        cell=model.cell,
        context=model.context,
        ssm_dtype=model.ssm_dtype,
        vision=model.vision,
    )


def measured(told: Sizes) -> tuple[Card, Model]:
    """Card and model as somebody's start has shown them."""
    return (
        Card(told.total, told.before, told.after, told.slack),
        Model(told.conv, told.ssm_elements, told.cell, told.context, told.ssm_dtype, told.vision),
    )


def mem_fraction(flags: Flags, total: float, vision: tuple[int, int] | None) -> float:
    """``mem-fraction-static``, or what 0.5.12 computes where it is not set.

    Source: ``_handle_gpu_memory_settings`` of ``server_args.py``, for cards of 60 to 160 GB and
    one card a server.
    """
    given = flags.get("mem-fraction-static")
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    mib = total * 1024
    chunk = whole(flags.get("chunked-prefill-size")) or 8192
    batch = whole(flags.get("cuda-graph-max-bs")) or 256
    reserved = max(512 + 1.5 * max(chunk, 2048) + 2 * batch + 128 + 8 * 58, 10_240)
    fraction = (mib - reserved) / mib
    if vision is not None:
        layers, width = vision
        relative = (layers * width**2) / (24 * 1024**2)
        fraction *= max(0.8, min(1.05, 0.95 * (1.0 - 0.1 * (relative - 1))))
    return round(fraction, 3)


def slots_a_request(flags: Flags, new: bool) -> int:
    """State slots that are reserved for one request."""
    if flags.get("disable-radix-cache"):
        return 1
    strategy = resolved_strategy(flags, new)
    if strategy == "extra_buffer" and flags.get("disable-overlap-schedule"):
        return 4
    return _SLOTS.get(strategy, 3)


def shortage(flags: Flags, new: bool, card: Card, model: Model) -> str:
    """Why SGLang would not start with these flags for want of memory, in one line with the
    numbers; empty where it would, and where only what is learned of this card speaks against."""
    card = replace(card, slack=max(card.slack, 0.0))
    if predict(flags, new, card, model) is not None:
        return ""
    fraction = mem_fraction(flags, card.total, model.vision)
    share, weights = card.before * fraction, card.before - card.after
    text = (
        f"mem-fraction-static {fraction:g} leaves no room for the pools: of {card.before:.1f} GiB "
        f"it takes {share:.1f}, and the weights need {weights:.1f} of them; SGLang would end with "
        "'Not enough memory. Please try to increase --mem-fraction-static'"
    )
    for hundredths in range(int(fraction * 100) + 1, 99):
        if predict({**flags, "mem-fraction-static": hundredths / 100}, new, card, model):
            return f"{text}: set {hundredths / 100:.2f} or more"
    return text


def predict(flags: Flags, new: bool, card: Card, model: Model) -> Prediction | None:
    """What SGLang will come to with these flags; None where nothing is left for the pools.

    ``new`` tells the dialect of 0.5.23 from that of 0.5.12. Speculative decoding and more than
    one card a server are not part of the model.
    """
    fraction = mem_fraction(flags, card.total, model.vision)
    rest = card.after - card.before * (1 - fraction) - (_IMAGE_CACHE if new else 0.0) + card.slack
    rest_bytes = rest * GIB
    if rest_bytes <= 0:
        return None
    user = whole(flags.get("max-running-requests"))
    slots: int | None = None
    held = 0.0
    if model.hybrid:
        slot = model.slot(flags)
        slots = whole(flags.get("max-mamba-cache-size"))
        if slots is None and flags.get("disable-radix-cache") and user is not None:
            slots = user
        if slots is None:
            ratio = flags.get("mamba-full-memory-ratio")
            share = float(ratio) if isinstance(ratio, int | float) and ratio else _RATIO
            budget = rest_bytes * share / (1 + share)
            slots = int((budget - (slot if new else 0)) / slot)
        held = (slots + (1 if new else 0)) * slot
    page = whole(flags.get("page-size")) or 1
    tokens = int((rest_bytes - held) / model.kv_cell(flags)) // page * page
    if (cap := whole(flags.get("max-total-tokens"))) is not None:
        tokens = min(tokens, cap // page * page)
    if tokens <= 0 or slots == 0:
        return None
    context = whole(flags.get("context-length")) or model.context or tokens
    usual = min(max(int(tokens / context * 512), 2048), 4096)
    if user is None:
        base, bound = min(usual, tokens // 2), "KV tokens"
    else:
        base, bound = min(user, tokens // 2 if new else usual), "max-running-requests"
    running = base
    if slots is not None and slots // slots_a_request(flags, new) < base:
        running, bound = slots // slots_a_request(flags, new), "state slots"
    if running <= 0:
        return None
    pools = (held + tokens * model.kv_cell(flags)) / GIB
    return Prediction(
        max_running=running,
        max_mamba=slots,
        kv_tokens=tokens,
        pools=pools,
        left=card.after - pools,
        bound_by=bound,
    )
