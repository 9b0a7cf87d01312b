"""What runs in the container, beside the servers; pushed there as it is."""

STOKER_DIR = ".stoker"
"""Folder of everything Stoker keeps in a workspace."""
