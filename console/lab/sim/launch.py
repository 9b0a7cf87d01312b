"""One simulated server, from its command line to its end.

Follows ``srt/entrypoints/engine.py`` and ``http_server.py``: arguments, children, weights, pools,
graphs, then uvicorn, then the warm-up, and only then "fired up". Until uvicorn is up SIGTERM has
its default effect; afterwards it drains.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence

from console.lab.sim import config, failures, flags, loading, log, process, settings


def main(argv: Sequence[str], version: settings.Version, sim: settings.SimSettings) -> int:
    """Run one server; returns its exit status (or is killed, as the real one is)."""
    args = flags.parse(argv, version)
    fault = settings.fault(sim, config.gpu_index(args))
    try:
        conf = config.resolve(args, version, sim.gpu_memory_mib, argv)
    except config.ArgumentsError as exc:
        log.write(log.ERR, failures.traceback(str(exc), "args") + "\n")
        return 1
    if fault.silent:
        while True:
            time.sleep(3600)
    tree = process.Process(conf, sim, fault)
    signal.signal(signal.SIGQUIT, lambda number, frame: tree.quit_signal())
    pools = loading.Loading(tree).load()
    # Only now: reading the HTTP libraries is part of the time that loading takes.
    from console.lab.sim.serving import Serving

    async def serve() -> int:
        assert tree.family is not None
        return await Serving(tree, tree.family, pools).serve()

    return asyncio.run(serve())
