"""The agent: the one process in a workspace that acts.

It owns the servers, the run, the history and the event journal, serves consoles and the run over
a private Unix socket, and outlives every disconnect: ``python -m remote.agent --workspace W``.
"""
