"""What the agent of the made-up target tells each second, and the samples that it kept."""

from __future__ import annotations

from copy import copy

from remote.protocol import (
    GpuState,
    History,
    HostState,
    Lights,
    Progress,
    RunState,
    ServerInfo,
    ServerState,
    ServerWork,
    Snapshot,
)
from tests.console.screen.story.world import TOKENS_EACH, World

PHASE_USUAL_S = 6.0


def snapshot(world: World, seq: int, full: bool) -> Snapshot:
    """The state now."""
    return Snapshot(
        time=world.now,
        seq=seq,
        full=full,
        target=world.spec,
        infos=_infos(world),
        servers=_servers(world),
        gpus=_gpus(world),
        host=HostState(0.18, 6.1, 61 << 30, 512 << 30, 1_400 << 30, 2_000 << 30, True),
        run=RunState(
            world.alive,
            4242 if world.alive else None,
            "expansion_completions",
            "expansion_prompts.jsonl",
            _progress(world),
            concurrency=world.concurrency,
        ),
        epochs=list(world.epochs),
        swap=world.swap,
        alerts=list(world.alerts),
        verdict=world.verdict,
        journal=world.journal,
    )


def _progress(world: World) -> Progress:
    rate = sum(world.tok_s(s) for s in world.servers) / TOKENS_EACH if world.alive else 0.0
    left = int(world.total - world.done)
    return Progress(
        total=world.total,
        completed=int(world.done),
        failed=12,
        rate_per_sec=rate,
        eta_hours=left / rate / 3600 if rate else None,
        total_input_tokens=int(world.done * 410),
        total_output_tokens=int(world.tokens),
        avg_output_tokens=float(TOKENS_EACH),
        elapsed_hours=(world.now - world.began) / 3600,
        s3_uploaded=int(world.done // 500),
        s3_bytes=int(world.done // 500) * 6_500_000,
        status=world.status,
        time=world.now,
        pid=4242,
        run_id="a1b2",
        tok_s=rate * TOKENS_EACH,
        set_aside=31,
        waiting_retry=3,
        waiting_by_source={"infinity-instruct": 3},
        on_probation=0,
        in_flight=sum(world.running(s) for s in world.servers),
        remaining=left,
        outcomes={
            "ok": int(world.done * 0.93),
            "length": int(world.done * 0.07),
            "empty": 19,
            "looped": 8,
            "bad_tool_call": 4,
        },
        failures={"rejected: too long": 9, "timeout": 3},
        retries={"connection reset": 21, "http 500": 6},
        servers={
            f"http://127.0.0.1:{30000 + s.gpu}": ServerWork(
                s.slots + 4,
                world.running(s),
                int(world.done / len(world.servers)),
                int(world.tokens / len(world.servers)),
            )
            for s in world.servers
        },
        batch_files=int(world.done // 500) + 1,
        batch_records=int(world.done // 500) * 500,
        batch_bytes=int(world.done * 13_000),
        not_in_s3=int(world.done % 500),
        partial=5,
        continued=311,
        tokens_kept=402_118,
        tokens_lost=9_040,
        message="747 done, 0 repaired, 8/8 healthy",
    )


def _infos(world: World) -> list[ServerInfo]:
    return [
        ServerInfo(
            s.gpu,
            30000 + s.gpu,
            5000 + s.gpu,
            world.began,
            ["python", "-m", "sglang.launch_server"],
            world.epochs[s.epoch - 1].flags,
            f"sglang_logs/sglang_gpu{s.gpu}.log",
            s.epoch,
            "0.5.12",
            s.slots,
            s.slots * 5,
            483_922,
        )
        for s in world.servers
    ]


def _servers(world: World) -> list[ServerState]:
    return [
        ServerState(
            s.gpu,
            s.state,  # type: ignore[arg-type]
            Lights(
                s.state not in ("stopped", "failed"),
                s.state in ("ready", "draining"),
                world.running(s) > 0,
            ),
            s.phase,
            s.phase_since if s.phase else None,
            PHASE_USUAL_S if s.phase_since and s.phase else None,
            running=world.running(s),
            queued=2 if s.state == "ready" else 0,
            gen_tok_s=world.tok_s(s) if s.state in ("ready", "draining") else None,
            kv_usage=world.kv(s) if s.state == "ready" else None,
            mamba_usage=world.mamba(s) if s.state == "ready" else None,
            retractions=0,
            dispatch=s.dispatch,
            in_flight=world.running(s) + 4 if s.state == "ready" else 0,
            cause=s.cause,
        )
        for s in world.servers
    ]


def _gpus(world: World) -> list[GpuState]:
    return [
        GpuState(
            s.gpu,
            "NVIDIA RTX PRO 6000 Blackwell",
            0.97 if world.running(s) else 0.0,
            83_204 if s.state != "stopped" else 4,
            97_887,
            (world.heat_c(s) if world.running(s) else 38) + s.heat,
            world.power_w(s) if world.running(s) else 74,
            600,
        )
        for s in world.servers
    ]


def history(world: World, since: float, until: float, points: int) -> History:
    """Samples of the past, as they would have been with what the servers do now."""
    step = (until - since) / points
    times = [since + i * step for i in range(points)]
    series: dict[str, list[list[float | None]]] = {}
    then = copy(world)
    for at in times:
        then.now = at
        for server in then.servers:
            sample = {
                "gen_tok_s": then.tok_s(server),
                "kv_usage": then.kv(server),
                "mamba_usage": then.mamba(server),
                "running": float(then.running(server)),
                "queued": 2.0,
                "power_w": then.power_w(server),
                "temperature_c": then.heat_c(server),
            }
            for name, value in sample.items():
                columns = series.setdefault(name, [[] for _ in then.servers])
                columns[server.gpu].append(value)
    return History(times, series)
