"""What can be wrong with a lab."""

from __future__ import annotations

from console.config import ConfigError


class LabError(ConfigError):
    """The lab cannot be brought up: one line that says what and what to do."""


class LabFailedError(LabError):
    """It broke down, and not for what was asked of it."""
