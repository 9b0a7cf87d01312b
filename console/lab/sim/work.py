"""What the scheduler works on, what limits it, what it counts and what it reports: values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class Work:
    """One request inside the scheduler."""

    rid: str
    prompt: int
    """Tokens of the prompt."""
    target: int
    """Tokens it will generate before it ends by itself."""
    limit: int
    """``max_new_tokens``: what admission reckons with."""
    done: Callable[[Work, str], None] | None = None
    """Called once with ``stop``, ``abort``, ``error`` or ``oom``."""
    prefix: Sequence[int] = ()
    """Hashes of the prompt's blocks, for the prefix cache."""
    arrived: float = 0.0
    silent: bool = False
    """A probe of the server's own: not counted as a request."""
    fail_at: int | None = None
    """Tokens after which it ends in an error."""
    made: int = 0
    """Tokens generated before the present stay in the batch (it was retracted since)."""
    start: int = 0
    """Step at which the present stay began, so that made + step - start are generated."""
    cached: int = 0
    prefilled: int = 0
    first_token: float | None = None
    began: float | None = None
    retractions: int = 0
    state: Literal["queued", "prefill", "running", "over"] = "queued"
    unqueued: bool = False
    """It was aborted out of the queue."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prefill batch, as the log reports it."""

    time: float
    seqs: int
    new_tokens: int
    cached_tokens: int
    used: int
    mamba: int
    running: int
    queued: int
    pending: int
    graph: bool
    input_rate: float


@dataclass(frozen=True, slots=True)
class Decode:
    """The state at every fortieth decode step, as the log reports it."""

    time: float
    running: int
    used: int
    mamba: int
    graph: bool
    rate: float
    queued: int


@dataclass(frozen=True, slots=True)
class Retract:
    """Requests sent back because the KV cache was full."""

    requests: int
    tokens: int
    mamba: int
    ratio_before: float
    ratio_after: float


Line = Prefill | Decode | Retract


@dataclass
class Limits:
    """What the pools allow (see :mod:`console.lab.sim.capacity`) and how fast the card is."""

    max_running: int
    tokens: int
    slots: int
    slots_per_request: int
    extra_buffer: bool
    radix: bool = True
    chunk: int = 8192
    max_prefill: int = 16_384
    speed: float = 1.0
    weight: float = 1.0
    """Size of the weights against bfloat16: the constant part of a step scales with it."""
    graph_max: int = 256
    prefill_graph: bool = False
    log_interval: int = 40
    conservativeness: float = 1.0
    max_queued: int | None = None


@dataclass
class Totals:
    """Counters that only grow."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    decode_steps: int = 0
    prefill_steps: int = 0
    retracted: int = 0
    retracted_input: int = 0
    retracted_output: int = 0
    evicted: int = 0
