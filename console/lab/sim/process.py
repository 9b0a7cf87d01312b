"""One server's process tree: its faults, and every way it can end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from console.lab.sim import children, config, failures, gpu, kernel, log, settings


class Process:
    """What loading and serving share."""

    def __init__(
        self, conf: config.Config, sim: settings.SimSettings, fault: settings.Fault
    ) -> None:
        self.conf, self.sim, self.fault = conf, sim, fault
        self.fault_file = Path(sim.state_dir) / f"fault{conf.gpu}.json"
        self._fault_seen = self._fault_mark()
        self.began = time.monotonic()
        self.startup: dict[str, float] = {
            "available": 0.0,
            "graph_gb": 0.0,
            "prefill_gb": 0.0,
        }
        self.family: children.Children | None = None
        self.card: gpu.Card | None = None
        self.running = False
        """The HTTP server is up: failures are worded otherwise from then on."""

    # --- faults ---

    def _fault_mark(self) -> int:
        """Which writing of the file is in force."""
        with contextlib.suppress(OSError):
            return self.fault_file.stat().st_mtime_ns
        return 0

    def reread_fault(self) -> None:
        """Take over what was set since."""
        mark = self._fault_mark()
        if mark != self._fault_seen:
            self._fault_seen = mark
            self.fault = settings.fault(self.sim, self.conf.gpu)

    def due(self, phase: str, elapsed: float) -> failures.Cause | None:
        """The failure planned for this moment."""
        fault = self.fault
        if fault.fail != phase or elapsed < fault.after_s:
            return None
        if fault.times:
            counter = self.fault_file.with_suffix(".count")
            done = 0
            with contextlib.suppress(OSError, ValueError):
                of, count = counter.read_text().split()
                done = int(count) if int(of) == self._fault_seen else 0
            if done >= fault.times:
                return None
            counter.write_text(f"{self._fault_seen} {done + 1}")
        return failures.cause(fault.cause, phase)

    # --- ends ---

    def kill_all(self) -> NoReturn:
        """SIGKILL to the children and to ourselves: exit status -9."""
        if self.family is not None:
            self.family.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(137)  # not reached

    def fail(self, cause: failures.Cause, phase: str, **values: object) -> NoReturn:
        """End as the real server does after this failure."""
        if cause.xid is not None:
            kernel.report(Path(self.sim.state_dir), self.conf.gpu, cause.xid)
        text = cause.text
        for name, value in values.items():
            text = text.replace("{" + name + "}", str(value))
            if isinstance(value, float):
                text = text.replace("{" + name + ":.3f}", f"{value:.3f}")
                text = text.replace("{" + name + ":.4f}", f"{value:.4f}")
        if cause.how == "killed" and self.family is not None:
            self.family.scheduler.kill()
            self.family.scheduler.wait()
            if self.running:
                self.crashed("scheduler_0", self.family.scheduler.pid, -signal.SIGKILL)
            self.died_loading(-signal.SIGKILL)
        if cause.how == "main":
            log.write(log.ERR, failures.traceback(text, phase) + "\n")
            if self.family is not None:
                self.family.kill()
            raise SystemExit(1)
        if cause.how == "warmup":
            trace = failures.traceback(text, "warmup")
            log.say(f"Initialization failed. warmup error: {trace}")
            self.kill_all()
        log.say(f"Scheduler hit an exception: {failures.traceback(text, phase)}\n")
        if self.family is not None:  # the child ends once it has told its parent
            self.family.scheduler.kill()
        self.quit_signal()

    def quit_signal(self) -> NoReturn:
        """What SIGQUIT does to the main process."""
        if self.running:
            log.say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        else:
            log.say("Received sigquit from a child process. It usually means the child failed.")
        self.kill_all()

    def crashed(self, name: str, pid: int, code: int) -> NoReturn:
        """A child died without a word while the server ran."""
        log.say(
            f"Subprocess {name} (pid={pid}) crashed with exit code {code}. "
            "Triggering SIGQUIT for cleanup..."
        )
        self.quit_signal()

    def died_loading(self, code: int) -> NoReturn:
        """The scheduler died before it was ready."""
        text = (
            f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {code}). "
            "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
            "Run `dmesg -T | grep -i oom` to check."
        )
        log.write(log.ERR, failures.traceback(text, "weights") + "\n")
        if self.family is not None:
            self.family.kill()
        raise SystemExit(1)

    # --- time ---

    def spend(
        self, phase: str, seconds: float, busy: Callable[[float], None] | None = None
    ) -> float:
        """Let a phase of so many real seconds pass; returns the wall time it took."""
        began = time.monotonic()
        took = seconds * max(self.fault.slow, 0.01) / self.sim.speed
        while True:
            elapsed = time.monotonic() - began
            self.reread_fault()
            if self.family is not None and (dead := self.family.dead()):
                self.died_loading(dead[2])
            cause = self.due(phase, elapsed)
            if cause is None and elapsed >= took and self.fault.fail == phase:
                cause = self.due(phase, float("inf"))
            if cause is not None:
                self.fail(cause, phase, model=self.conf.model, port=self.conf.port)
            if busy is not None:
                busy(min(elapsed / took, 1.0) if took > 0 else 1.0)
            if self.card is not None:
                self.card.write()
            if elapsed >= took:
                return elapsed
            time.sleep(min(0.1, took - elapsed))

    def memory(self, used_gib: float, load: float = 0.0, *, at_once: bool = True) -> None:
        """What the card now shows."""
        if self.card is not None:
            self.card.memory_mib = round(used_gib * 1024)
            self.card.load = load
            self.card.write(at_once=at_once)
