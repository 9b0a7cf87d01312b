"""The audit of a run directory: what its files say, checked against each other.

Written from the file formats alone: it shares no code with the writer, so that a mistake of the
writer is not repeated here. It only reads, takes no lock, and may look at a live run.
"""

from __future__ import annotations

from remote.verify.bucket import S3Source
from remote.verify.laws import audit
from remote.verify.report import CannotVerifyError, Report, StorageError, as_json, lines

__all__ = [
    "CannotVerifyError",
    "Report",
    "S3Source",
    "StorageError",
    "as_json",
    "audit",
    "lines",
]
