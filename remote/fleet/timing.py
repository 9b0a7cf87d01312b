"""How often the fleet looks, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """All in seconds."""

    tick: float = 1.0
    """Known processes and log."""
    starting: float = 0.2
    """The log of a server that is coming up: it is waited for."""
    table: float = 5.0
    """The whole process table, for members that have come."""
    loads: float = 3.0
    metrics: float = 3.0
    answer: float = 3.0
    """For an answer to either."""
    rate: float = 10.0
    """Tokens a second are the mean of so long."""
    info: float = 60.0
    ports: float = 5.0
    """Who listens on the ports of servers that are not ours."""
    health: float = 25.0
    """For one answer of ``/health`` (1 s when all is well; SGLang says no after 20 s)."""
    proof: float = 600.0
    """For the one real completion of a new server (kernels may have to be compiled)."""
    stall: float = 90.0
    """Requests in flight and no token for so long is a stall."""
    stalled_restart: float = 120.0
    """A server that has been stalled for so long is ended and started again."""
    silent: float = 6.0
    silent_questions: int = 3
    """No answer to so many questions one after the other, and no line in its log for so long, is
    silence."""
    lost_child: float = 3.0
    """A main process that outlives one of its children for so long has failed."""
    abort: float = 20.0
    """For the run's requests to come back after an abort."""
    term: float = 0.3
    """Between SIGTERM and SIGKILL when nothing of value is left in a server: SGLang looks every 5 s
    whether a drain has begun, and 0.5.12 then kills itself (``managers/tokenizer_manager.py``)."""
    kill: float = 15.0
    """For a killed tree to be gone."""
    memory: float = 60.0
    """For a card's memory to be free again after its server has ended."""
    holder: float = 15.0
    """For a holder to say that its server runs."""
    restart_first: float = 5.0
    restart_most: float = 300.0
    restarts_an_hour: int = 6
    settle: float = 30.0
    """A canary's first seconds after its return, in which it fills up, count for nothing."""
    judge_sample: float = 1.0
    judge_most: float = 900.0
    """After so long a canary that nobody can judge is taken back, unless it looks no worse."""
