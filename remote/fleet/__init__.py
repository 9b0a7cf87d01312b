"""Servers as processes: start, watch, adopt, drain, stop, swap."""
