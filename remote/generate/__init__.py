"""The run: every prompt answered exactly once, on disk."""
