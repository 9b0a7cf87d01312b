"""What a line of a log tells, as far as its words go: noise, error, warning, phase."""

from __future__ import annotations

import re

from console.model import GAP

ACCESS = re.compile(r'"(?:GET|POST|PUT|DELETE) /')
"""Access lines of the HTTP server."""

NOISE = re.compile(
    r'"(?:GET|POST) /(?:health|health_generate|metrics|v1/loads|get_load|server_info|'
    r"get_server_info|model_info|ping|ready)\b|#new-token: 1,.*#running-req: 0,"
)
"""Access lines of pollers, and the one-token prefill of a health check on an idle server."""

ACCESS_OR_NOISE = re.compile(f"{NOISE.pattern}|{ACCESS.pattern}")

_BAD = re.compile(
    r"\b(?:error|exception|traceback|fatal|sigquit|killed|crashed|out of memory|unhealthy|"
    r"watchdog timeout|leak detected|aborted)\b|\w+(?:Error|Exception)\b|failed",
    re.IGNORECASE,
)
_WARN = re.compile(r"\bwarn(?:ing)?\b|deprecat|retract|pool is full|rotated|skipped", re.IGNORECASE)
_PHASE = re.compile(
    r"Load weight|Cache is allocated|Memory pool|Capture .*(?:begin|end)|fired up|"
    r"Application startup|Uvicorn running|server_args=|max_total_num_tokens=|Port \d+: OK|"
    r"Starting generation|healthy"
)
_BATCH = re.compile(r"\] (?:Decode|Prefill) batch")
_SERVER_ERROR = re.compile(r'" 5\d\d\b')

ERROR = (
    r"^(?!.{0,60}\] (?:Decode|Prefill) batch)"
    rf"(?:(?=.*{ACCESS.pattern}).*{_SERVER_ERROR.pattern}"
    rf"|(?!.*{ACCESS.pattern}).{{0,500}}?(?i:{_BAD.pattern}))"
)
"""What :func:`log_style` calls bad, as a search on the other side."""


def log_style(line: str) -> str:
    """The colour of a line by what it tells; SGLang's lines carry no level."""
    if _BATCH.search(line[:80]):
        return "text" if "Decode" in line[:60] else "dim"
    line = line[:500]
    if line.startswith(GAP):
        return "warn"
    if ACCESS.search(line):
        return "bad" if _SERVER_ERROR.search(line) else "dim"
    if _BAD.search(line):
        return "bad"
    if _WARN.search(line):
        return "warn"
    if _PHASE.search(line):
        return "good"
    return "text"
