"""``stoker lab``: the lab with the console on it, with nothing on it, or with its job alone."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal

from console.lab.errors import LabError
from console.lab.lab import Lab
from console.lab.options import Options


def command(options: argparse.Namespace) -> int:
    """``stoker lab`` → exit status. Raises ConfigError and LinkError."""
    asked = Options(
        gpus=options.gpus,
        prompts=options.prompts,
        count=options.count,
        speed=options.speed,
        sglang=options.sglang,
        flags=options.flags,
        folder=options.dir,
        keep=options.headless,
    )
    if options.headless and options.serve:
        raise LabError("--headless and --serve: one of the two")
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, _leave)
    if options.headless:
        from console.lab import headless

        return asyncio.run(headless.run(asked))
    if options.serve:
        return asyncio.run(_serve(asked))
    return asyncio.run(_console(asked, debug=options.debug))


def _leave(number: int, _: object) -> None:
    """A closed terminal and a polite kill end the lab as an operator does."""
    raise SystemExit(128 + number)


async def _console(options: Options, *, debug: bool) -> int:
    from console.app import StokerApp
    from console.feed import connect_agent
    from console.lab import job
    from console.launch import check_terminal
    from console.link.deploy import deploy
    from console.watch import Source

    def say(text: str) -> None:
        print(text, flush=True)

    check_terminal()
    async with Lab(options, say) as lab:
        say(f"the lab is up in {lab.folder} (simulated hardware)")
        say(await deploy(lab.target))
        source = Source(lab.target.name, connect_agent(lab.target), target=lab.target)
        app = StokerApp([source], tracebacks=debug)
        complaints: list[str] = []

        def complain(text: str) -> None:
            complaints.append(text)
            app.say(text, "error")

        going_on = asyncio.create_task(job.go_on(lab, complain))
        try:
            await app.run_async()
        finally:
            going_on.cancel()
            for text in complaints:
                say(text)
            say("ending the lab and all that was started in it")
    if options.folder is not None:
        say(f"kept: {lab.folder}")
    return app.return_code or 0


async def _serve(options: Options) -> int:
    async with Lab(options, print) as lab:
        prompts = shlex.quote(str(lab.prompts))
        print(
            f"The lab is up in {lab.folder} (simulated hardware). In another terminal:\n"
            f"  export STOKER_CONFIG={shlex.quote(str(lab.toml))}\n"
            f"  stoker deploy && stoker up && stoker run start --prompts {prompts}\n"
            "  stoker\n"
            "Ctrl-C ends it and everything that was started in it.",
            flush=True,
        )
        until = asyncio.create_task(interrupted())
        while not until.done():
            lab.check()
            await asyncio.wait([until], timeout=1)
    return 0


async def interrupted() -> None:
    """Until SIGINT or SIGTERM."""
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, leave.set)
    try:
        await leave.wait()
    finally:
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sign)
