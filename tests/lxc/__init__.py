"""A real LXC container behind a real OpenSSH server with ``pct``, and tests on it.

By hand, as root: ``python -m tests.lxc up FOLDER`` and ``python -m tests.lxc down FOLDER``.
"""
