"""Before the first request: whose directory this is, what it holds, whether it may go on."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from remote.generate import layout
from remote.generate.disk import Disk, DiskBrokenError, DiskFullError, is_full
from remote.generate.ledger import Ledger
from remote.generate.lock import LockedError, RunLock
from remote.generate.mending import RecoveryError
from remote.generate.prompts import Prompts, PromptsError, open_prompts
from remote.generate.records import RunFile, Session, now
from remote.generate.recovery import Recovered, read_run_file, recover
from remote.generate.settings import Settings, UsageError
from remote.protocol import Progress


@dataclass
class Totals:
    """Sums over all durable completion records."""

    completed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


@dataclass
class Opened:
    """A directory that is ours now, mended, and ready to be written."""

    lock: RunLock
    prompts: Prompts
    run: RunFile
    recovered: Recovered
    ledger: Ledger
    totals: Totals


def open_run(settings: Settings) -> Opened:
    """Take the directory, find out where the run stands, mend what a kill left.

    :raises UsageError: in one line, what is wrong and what to do.
    """
    folder = settings.output
    try:
        _make(folder)
        lock = RunLock(folder)
    except LockedError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        do = "make room" if is_full(error) else "choose another --output"
        raise UsageError(f"{folder}: {error.strerror}; {do}") from None
    try:
        return _open(settings, folder, lock)
    except (PromptsError, RecoveryError) as error:
        lock.release()
        raise UsageError(str(error)) from None
    except DiskFullError as error:
        lock.release()
        raise UsageError(f"{folder}: disk full ({error}); make room") from None
    except DiskBrokenError as error:
        lock.release()
        raise UsageError(f"{folder}: the disk fails ({error})") from None
    except OSError as error:
        lock.release()
        do = "make room" if is_full(error) else "mend that and start again"
        raise UsageError(f"{error.filename or folder}: {error.strerror}; {do}") from None
    except BaseException:
        lock.release()
        raise


def _make(folder: Path) -> None:
    """Make the directory where it is missing, so that a crash leaves its name, too."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        Disk().sync_folder(path.parent)


def _open(settings: Settings, folder: Path, lock: RunLock) -> Opened:
    known = read_run_file(folder)
    prompts, entries = open_prompts(
        settings.prompts.resolve(),
        folder / layout.INDEX,
        known.prompts if known else [],
        extend=settings.extend,
    )
    run = known or RunFile(
        run_id=secrets.token_hex(8),
        prompts=entries,
        params={},
        created=now(),
        adopted=any(layout.batch_number(path.name) is not None for path in folder.iterdir()),
    )
    _check_params(settings, run)
    run.prompts = entries
    if run.sessions:
        _mend_end(folder, run.sessions[-1])
    run.sessions.append(Session(time.time(), time.time(), os.getpid(), 0.0))
    if len(run.sessions) > 1000:
        _merge(run.sessions)
    commit(folder, run)
    recovered = recover(folder, len(prompts), adopted=run.adopted)
    ledger = Ledger(folder, recovered.books)
    ledger.flush()
    ledger.sealed.clear()
    return Opened(lock, prompts, run, recovered, ledger, _totals(recovered))


def commit(folder: Path, run: RunFile) -> None:
    """Write ``run.json`` so that it survives a crash from here on."""
    Disk().replace(folder / layout.RUN, encode_run(run))


def encode_run(run: RunFile) -> bytes:
    """``run.json`` as people can read it."""
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def _check_params(settings: Settings, run: RunFile) -> None:
    """Refuse to mix answers asked in different ways; fill in what was left open."""
    model = str(run.params.get("model", ""))
    wanted = settings.params(model)
    if run.params and not settings.accept_params:
        for name, value in wanted.items():
            before = run.params.get(name)
            if before != value and not (name == "model" and not before):
                raise UsageError(
                    f"{settings.output}: this run began with {name} = {_short(before)}, now it "
                    f"is {_short(value)}; use the same, or --accept-params to go on regardless"
                )
    run.params = wanted


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"


def _mend_end(folder: Path, last: Session) -> None:
    """A killed session ended when it last gave a sign of life."""
    try:
        progress = msgspec.json.decode((folder / layout.PROGRESS).read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError):
        return
    if last.end < progress.time < time.time() and progress.pid == last.pid:
        last.end = progress.time


def _merge(sessions: list[Session]) -> None:
    """Keep the list short: the oldest hundreds become one of the same length."""
    old = sessions[:-500]
    spent = sum(s.end - s.start for s in old)
    told = [s.gpu_hours for s in old if s.gpu_hours is not None]
    worked = sum(told) if len(told) == len(old) else None
    sessions[:-500] = [Session(old[-1].end - spent, old[-1].end, old[-1].pid, worked)]


def elapsed_hours(run: RunFile) -> float:
    """Hours that processes have worked on the run, over all its sessions."""
    return sum(session.end - session.start for session in run.sessions) / 3600


def gpu_hours(run: RunFile, servers: int) -> float:
    """Hours that servers were at the run's disposal, over all its sessions.

    ``servers``: how many, in sessions of versions that did not write it down.
    """
    return sum(
        (s.end - s.start) / 3600 * servers if s.gpu_hours is None else s.gpu_hours
        for s in run.sessions
    )


def _totals(recovered: Recovered) -> Totals:
    totals = Totals()
    for batch in recovered.books.batches.values():
        totals.completed += batch.records
        totals.prompt_tokens += batch.prompt_tokens
        totals.completion_tokens += batch.completion_tokens
        totals.reasoning_tokens += batch.reasoning_tokens
        totals.outcomes.update(batch.outcomes)
    tally = recovered.books.tally
    totals.completed += tally.records
    totals.prompt_tokens += tally.prompt_tokens
    totals.completion_tokens += tally.completion_tokens
    totals.reasoning_tokens += tally.reasoning_tokens
    totals.outcomes.update(tally.outcomes)
    return totals
