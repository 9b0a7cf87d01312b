"""The run."""
