"""From numbers to a sentence: what holds a fleet back, and which flags to change.

Pure. The capacity model (:mod:`remote.sglang.capacity`) says what a change would give; where it
does not know the model or the card, proposals come without a prediction and say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from statistics import mean, median
from typing import Literal

from msgspec import Struct

from remote.protocol import Epoch, Flags, GpuState, ServerInfo, ServerState, Sizes
from remote.sglang import capacity, dialect, flags
from remote.sglang.refusals import refusals
from remote.verdict import FULL, Bound, held_by

GAIN = 0.86
"""Decode throughput grows with the running batch to about this power: 32 → 64 running gave
650 → 1,180 tok/s on a Qwen3.6-27B server."""
CAP = "max-running-requests"
WARM_S = 30.0
LEFT_GIB = 4.0
"""What graphs and activations need beside the pools; a proposal that leaves less is risky."""


class ServerNumbers(Struct, frozen=True):
    """One server, as a snapshot has it; fractions 0..1."""

    running: float | None = None
    max_running: int | None = None
    queued: float | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None
    gen_tok_s: float | None = None
    retractions: int | None = None
    steady_s: float | None = None
    """For how long it has been at work; its throughput means little before :data:`WARM_S`."""
    epoch: int | None = None
    """Of its flags; numbers are compared and averaged only among servers of the same one."""


class EpochNumbers(Struct, frozen=True):
    """What an earlier set of flags gave."""

    flags: Flags = {}
    tok_s_per_gpu: float | None = None


class Observed(Struct, frozen=True):
    """The snapshot that ``--from`` reads; any key may be absent."""

    sglang: str | None = None
    card: str | None = None
    memory_mib: float | None = None
    model: str | None = None
    flags: Flags = {}
    servers: list[ServerNumbers] = []
    offered_concurrency: int | None = None
    epochs: list[EpochNumbers] = []
    sizes: Sizes | None = None
    """What a server's start has shown of card and model; without it the model's name must do."""
    waits: str = ""
    """For what the verdict on these flags waits, while it does."""


class Diagnosis(Struct, frozen=True):
    """One thing that holds the fleet back."""

    bound_by: Bound | Literal["mixed flags", "imbalance", "unknown"]
    evidence: str
    confidence: float
    """0..1."""


class Proposal(Struct, frozen=True):
    """A change of flags, with what it should give and what it risks."""

    set: Flags
    unset: list[str]
    predicted_max_running: int | None
    predicted_gain: float | None
    """Throughput relative to now, e.g. 1.8; None where it is not known."""
    risk: str
    because: str
    measured: bool = False
    """The gain was measured in an earlier epoch, not predicted."""


class Advice(Struct, frozen=True):
    """Diagnosis, most certain first; proposals, best first."""

    diagnosis: list[Diagnosis]
    proposals: list[Proposal]
    waits: str = ""
    """What is not known yet, and when it will be."""


def observed(
    infos: Sequence[ServerInfo],
    states: Sequence[ServerState],
    cards: Sequence[GpuState],
    model: str,
    epochs: Iterable[Epoch],
) -> Observed:
    """A fleet as its agent sees it."""
    known = {info.gpu: info for info in infos}
    servers = [s for s in states if s.state in ("ready", "stalled") and s.gpu in known]
    first = known[servers[0].gpu] if servers else None
    return Observed(
        sglang=first.sglang if first else None,
        card=cards[0].name if cards else None,
        memory_mib=cards[0].memory_total_mib if cards else None,
        model=model,
        flags=first.flags if first else {},
        servers=[
            ServerNumbers(
                s.running,
                known[s.gpu].max_running,
                s.queued,
                s.kv_usage,
                s.mamba_usage,
                s.gen_tok_s,
                s.retractions,
                epoch=known[s.gpu].epoch,
            )
            for s in servers
        ],
        epochs=[EpochNumbers(e.flags, e.tok_s_per_gpu) for e in epochs],
        sizes=first.sizes if first else None,
    )


def advise(seen: Observed) -> Advice:
    """What holds the fleet back, and what to change."""
    found = sorted(_diagnose(seen), key=lambda one: -one.confidence)
    if not found:
        text = "not enough numbers: no server with running and max_running requests"
        found = [Diagnosis("unknown", text, 0.0)]
    bounds = {one.bound_by for one in found}
    if not bounds & {"state slots", "kv cache", "slots"}:
        return Advice(found, [], seen.waits)
    capped = "slots" in bounds and CAP in seen.flags
    return Advice(found, _proposals(seen, capped=capped), seen.waits)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _by_epoch(seen: Observed) -> dict[int | None, dict[int, ServerNumbers]]:
    """The servers by their place, those with the flags of ``seen`` (the first one's) first."""
    found: dict[int | None, dict[int, ServerNumbers]] = {}
    for place, server in enumerate(seen.servers):
        found.setdefault(server.epoch, {})[place] = server
    return found


def _alike(seen: Observed) -> dict[int, ServerNumbers]:
    """Those that run the flags of ``seen``, by their place."""
    return next(iter(_by_epoch(seen).values()), {})


def _mixed(seen: Observed) -> Iterator[Diagnosis]:
    found = _by_epoch(seen)
    if len(found) < 2:
        return
    words = []
    for epoch, servers in found.items():
        rate = _mean([s.gen_tok_s for s in servers.values()])
        gives = f" ({rate:,.0f} tok/s each)" if rate is not None else ""
        places = ", ".join(map(str, servers))
        who = f"servers {places} run" if len(servers) > 1 else f"server {places} runs"
        words.append(f"{who} epoch {'?' if epoch is None else epoch}{gives}")
    yield Diagnosis("mixed flags", "; ".join(words), 1.0)


def _diagnose(seen: Observed) -> Iterator[Diagnosis]:
    yield from _mixed(seen)
    for kind in _by_epoch(seen).values():
        yield from _imbalance(kind)
    alike = _alike(seen)
    busy = {n: s for n, s in alike.items() if s.running is not None and s.max_running}
    if not busy:
        return
    servers = list(busy.values())
    running = mean(s.running or 0 for s in servers)
    slots = mean(s.max_running or 1 for s in servers)
    queued = _mean([s.queued for s in servers]) or 0.0
    kv, mamba = _mean([s.kv_usage for s in servers]), _mean([s.mamba_usage for s in servers])
    offered = seen.offered_concurrency
    # What is offered to servers of two kinds says nothing of how much goes to which.
    whole = len(alike) == len(seen.servers)
    each = offered / len(seen.servers) if offered is not None and whole else None
    bound = held_by(
        running=running,
        slots=slots,
        queued=queued,
        kv=kv,
        hybrid=_is_hybrid(seen),
        capped=str(round(slots)) == str(seen.flags.get(CAP)),
        offered=each,
    )
    evidence = f"{running:.0f} of {slots:.0f} slots a server in use, {queued:.0f} queued"
    pools = ", ".join(
        f"{name} {share:.0%} used"
        for name, share in (("KV cache", kv), ("Mamba state pool", mamba))
        if share is not None
    )
    if pools:
        evidence += f"; {pools}"
    if bound == "kv cache" and (retracted := sum(s.retractions or 0 for s in servers)):
        evidence += f", {retracted} requests retracted"
    if bound == "requests" and each is not None:
        evidence += f"; {each:.0f} requests offered a server"
    if bound is not None:
        yield Diagnosis(bound, evidence, _confidence(bound, running / slots, queued))


def _imbalance(servers: dict[int, ServerNumbers]) -> Iterator[Diagnosis]:
    """One of these, which run the same flags, that is far slower than the others."""
    rates = {
        n: s.gen_tok_s
        for n, s in servers.items()
        if s.running is not None
        and s.max_running
        and s.gen_tok_s is not None
        and (s.steady_s is None or s.steady_s >= WARM_S)
    }
    if len(rates) >= 3 and min(rates.values()) < 0.6 * median(rates.values()):
        slow = min(rates, key=lambda n: rates[n])
        others = median(rate for n, rate in rates.items() if n != slow)
        text = f"server {slow} gives {rates[slow]:.0f} tok/s, the others {others:.0f}"
        yield Diagnosis("imbalance", text, 0.8)


def _confidence(bound: Bound, fill: float, queued: float) -> float:
    """How sure it is, from the share of the slots in use and the requests that wait."""
    if bound == "kv cache":
        return 0.9
    if bound == "requests":
        return 0.8 if fill < 0.8 else 0.5
    if fill < FULL:
        return 0.6
    return 0.9 if queued >= 1 else 0.7


def _is_hybrid(seen: Observed) -> bool:
    if seen.sizes is not None:
        return capacity.measured(seen.sizes)[1].hybrid
    known = capacity.known_model(seen.model or "")
    return known[0].hybrid if known else any(s.mamba_usage is not None for s in seen.servers)


def _proposals(seen: Observed, *, capped: bool) -> list[Proposal]:
    new = dialect.is_new(seen.sglang, None)
    hybrid = _is_hybrid(seen)
    now = _mean([s.max_running for s in _alike(seen).values()])
    rate = _mean([s.gen_tok_s for s in _alike(seen).values()])
    predicted_now = _predict(seen, seen.flags, new)
    made: list[Proposal] = []
    for change, unset, because, risk in _changes(seen.flags, new, hybrid=hybrid, capped=capped):
        wanted = flags.changed(seen.flags, change, unset)
        if refusals(wanted, new, card=seen.card, hybrid=hybrid):
            continue
        prediction = _predict(seen, wanted, new)
        slots = prediction.max_running if prediction else None
        gain = None
        if slots is not None and now and predicted_now is not None:
            # The model's ratio on what the servers really have: its constants may be off.
            slots = round(now * slots / predicted_now.max_running)
            gain = round((slots / now) ** GAIN, 2)
            if gain <= 1.02:
                continue
        if prediction is not None and prediction.left < LEFT_GIB:
            risk = f"only {prediction.left:.1f} GiB left beside the pools: may run out of memory"
        gave = _measured(seen, wanted)
        known = gave is not None and bool(rate)
        if gave is not None and rate:
            gain, risk = round(gave / rate, 2), "measured in an earlier epoch"
        made.append(Proposal(change, unset, slots, gain, risk, because, known))
    return sorted(made, key=lambda one: -(one.predicted_gain or 0.0))


def _predict(seen: Observed, wanted: Flags, new: bool) -> capacity.Prediction | None:
    if seen.sizes is not None:
        return capacity.predict(wanted, new, *capacity.measured(seen.sizes))
    known = capacity.known_model(seen.model or "")
    if known is None or seen.memory_mib is None:
        return None
    model, weights = known
    if wanted.get("quantization") == "fp8":
        weights = capacity.WEIGHTS["fp8"]
    total = seen.memory_mib / 1024
    before = total - capacity.RESERVED
    return capacity.predict(wanted, new, capacity.Card(total, before, before - weights), model)


def _changes(
    now: Flags, new: bool, *, hybrid: bool, capped: bool
) -> Iterator[tuple[Flags, list[str], str, str]]:
    """Changes worth a look, each alone and then together: to set, to unset, why, risk."""
    single: list[tuple[Flags, list[str], str, str]] = []
    reserved = capacity.slots_a_request(now, new)
    if hybrid and reserved > 3:
        name = dialect.STRATEGY[1] if new else dialect.STRATEGY[0]
        change: Flags = {name: "no_buffer"}
        if new:
            change["disable-overlap-schedule"] = True
        text = f"no_buffer reserves 3 state slots a request instead of {reserved}"
        risk = "no overlap scheduling: a little slower at the same batch"
        single.append((change, [], text, risk))
    if hybrid and now.get("mamba-ssm-dtype") not in ("bfloat16", "float16"):
        text = "bfloat16 state takes half the memory of float32: nearly twice the slots"
        risk = "coarser state: check some answers"
        single.append(({"mamba-ssm-dtype": "bfloat16"}, [], text, risk))
    fraction = now.get("mem-fraction-static")
    if not isinstance(fraction, int | float) or fraction < 0.9:
        text = "a larger mem-fraction-static gives the pools more of the card"
        single.append(({"mem-fraction-static": 0.9}, [], text, "less memory for activations"))
    if capped:
        text = f"without {CAP} the memory alone says how many run at once"
        single.append(({}, [CAP], text, "each request is slower in a larger batch"))
    for size in range(1, len(single) + 1):
        for chosen in combinations(single, size):
            together: Flags = {}
            for change, *_ in chosen:
                together.update(change)
            unset = [name for _, names, _, _ in chosen for name in names]
            yield (
                together,
                unset,
                "; ".join(because for *_, because, _ in chosen),
                "; ".join(risk for *_, risk in chosen),
            )


def _measured(seen: Observed, wanted: Flags) -> float | None:
    for epoch in reversed(seen.epochs):
        if epoch.flags == wanted and epoch.tok_s_per_gpu is not None:
            return epoch.tok_s_per_gpu
    return None


def lines(advice: Advice) -> list[str]:
    """The advice for people."""
    text = [f"held back by {one.bound_by}: {one.evidence}" for one in advice.diagnosis]
    for rank, one in enumerate(advice.proposals, 1):
        text.append(f"{rank}. {_change(one, '--set ', '--unset ')}  ({_gives(one)})")
        text.append(f"   {one.because}. Risk: {one.risk}.")
    if not advice.proposals:
        text.append("no change of flags to propose")
    if advice.waits:
        text.append(advice.waits)
    return text


def remedy(advice: Advice) -> str:
    """The best change in one line, with what it gives; empty where there is none."""
    if not advice.proposals:
        return ""
    best = advice.proposals[0]
    return f"{_change(best, '', 'without ')}: {_gives(best)}"


def remedy_flags(advice: Advice) -> Flags:
    """The same as flags; False takes one out."""
    if not advice.proposals:
        return {}
    best = advice.proposals[0]
    return {**best.set, **dict.fromkeys(best.unset, False)}


def _change(one: Proposal, put: str, out: str) -> str:
    return " ".join(
        [f"{put}{name}={flags.text(value)}" for name, value in one.set.items()]
        + [f"{out}{name}" for name in one.unset]
    )


def _gives(one: Proposal) -> str:
    slots = f"{one.predicted_max_running} slots, " if one.predicted_max_running else ""
    if one.predicted_gain is None:
        return f"{slots}gain not known"
    if one.measured:
        return f"{slots}×{one.predicted_gain:.2f} measured"
    return f"{slots}about ×{one.predicted_gain:.2f} expected"
