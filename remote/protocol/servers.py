"""Servers, their cards and the container, as a snapshot has them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from remote.protocol.target import Flags

ServerStatus: TypeAlias = Literal[
    "starting", "warming", "ready", "draining", "stalled", "failed", "stopped", "foreign"
]


class Lights(Struct, frozen=True):
    """Three separate signs of life: the process tree, HTTP answers, tokens being produced."""

    process: bool | None = None
    http: bool | None = None
    tokens: bool | None = None


class Sizes(Struct, frozen=True):
    """What a start has shown of its card (GiB) and its model (bytes): what other flags would give
    follows from it (:mod:`remote.sglang.capacity`)."""

    total: float
    """Of the card, as its driver reports it."""
    before: float
    """Free before the weights were loaded."""
    after: float
    """Free once they were."""
    slack: float
    """Given to the pools beyond what is foreseen (or less: negative)."""
    conv: int
    """Convolution state a slot; 0 on models without linear attention."""
    ssm_elements: int
    """Elements, not bytes, of recurrent state a slot."""
    cell: int
    """KV cache a token at 16 bits an element."""
    context: int
    """Tokens."""
    ssm_dtype: str = "float32"
    vision: tuple[int, int] | None = None
    """Layers and width of its image tower."""


class ServerInfo(Struct, frozen=True):
    """What changes only at a (re)start of a server."""

    gpu: int
    port: int
    pid: int | None = None
    started_at: float | None = None
    argv: list[str] = []
    flags: Flags = {}
    log: str = ""
    epoch: int | None = None
    sglang: str | None = None
    max_running: int | None = None
    """Effective ``max_running_requests``: what the server really admits at once."""
    max_mamba: int | None = None
    """Mamba state slots of the pool."""
    kv_tokens: int | None = None
    """KV cache capacity in tokens."""
    sizes: Sizes | None = None
    """None until its start has printed them."""


class ServerState(Struct, frozen=True):
    """What moves while a server runs."""

    gpu: int
    state: ServerStatus = "stopped"
    lights: Lights = Lights()
    phase: str = ""
    """Start-up phase in words (``loading weights``, ``capturing graphs`` …) or drain progress."""
    phase_since: float | None = None
    phase_usual_s: float | None = None
    """What this phase took at the last start."""
    running: int | None = None
    queued: int | None = None
    gen_tok_s: float | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None
    retractions: int | None = None
    dispatch: str = ""
    """The run's side of it: ``run``, ``pause``, ``abort``; empty where no run is."""
    in_flight: int | None = None
    """Requests that the run has open on this server."""
    alone: bool = False
    """The run keeps it for one prompt that is suspected of killing servers: that it does little
    says nothing of it."""
    cause: str = ""
    """Why it failed or stalled, one line."""
    silent_since: float | None = None
    """Since when it answers nothing and writes nothing, though it is there."""
    restart_at: float | None = None
    """When a silent server is ended and started again if it stays so, or a failed one started
    again."""
    died: int = 0
    """Times that it has died by itself, as far as agents have seen; of them in the last hour:"""
    died_lately: int = 0
    died_at: float | None = None
    """When it did last, and of what:"""
    died_of: str = ""
    given_up: bool = False
    """It is not started again by itself any more."""
    mended_by: Literal["", "start", "flags"] = ""
    """What may help one that has failed: another start, or only other flags."""
    steady_since: float | None = None
    """Since when it has been there for the run without a break, at work or idle all the time:
    until it has been so for a while, its throughput tells nothing."""


class GpuState(Struct, frozen=True):
    """One card as ``nvidia-smi`` tells it."""

    gpu: int
    name: str = ""
    utilization: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


class HostState(Struct, frozen=True):
    """The container (psutil)."""

    cpu: float | None = None
    load_1m: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    disk_free: int | None = None
    disk_total: int | None = None
    simulated: bool = False
    """True where the hardware is a simulation (the lab says so in its environment)."""
    clock_east_s: int | None = None
    """Seconds by which the clock that stamps its logs is east of UTC."""


SERVER_SERIES = ("gen_tok_s", "kv_usage", "mamba_usage", "running", "queued")
"""Fields of :class:`ServerState` of which the past is kept."""

CARD_SERIES = ("temperature_c", "power_w", "memory_used_mib", "utilization")
"""Fields of :class:`GpuState` of which the past is kept."""

SERIES = (*SERVER_SERIES, *CARD_SERIES)
"""What the history keeps of each GPU, in the order of a stored row; new ones only at the end."""
