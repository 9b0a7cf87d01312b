"""Stoker's console: what runs on the operator's laptop."""

__version__ = "0.1.0"
