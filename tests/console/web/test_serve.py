"""``stoker serve``: the console in a browser, and that it is for nobody else."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest

from console.lab import job
from console.lab.lab import Lab
from console.lab.options import Options
from tests.console.web.browser import Browser, eventually, found

ROOT = Path(__file__).parents[3]


@dataclass
class Served:
    """A server that is up."""

    process: subprocess.Popen[str]
    entry: str
    """The printed address."""
    said: str

    @property
    def url(self) -> str:
        """The same without the token."""
        return self.entry.partition("?")[0]

    @property
    def token(self) -> str:
        """The token."""
        return self.entry.partition("?token=")[2]

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.url.rstrip("/").rpartition(":")[2])

    def consoles(self) -> list[psutil.Process]:
        """The consoles that run behind it."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [c for c in children if "console.cli" in c.cmdline()]


def start(folder: Path, *more: str, config: Path | None = None) -> subprocess.Popen[str]:
    """``stoker serve`` on a target without an agent, or on those of ``config``; with preferences
    of its own."""
    python = sys.executable
    if config is None:
        config = folder / "stoker.toml"
        (folder / "ws").mkdir(exist_ok=True)
        config.write_text(f'[targets.here]\nworkspace = "{folder}/ws"\nagent_python = "{python}"\n')
    home = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "conf")}
    return subprocess.Popen(
        [python, "-m", "console.cli", "serve", "--config", str(config), *more],
        cwd=ROOT,
        env={**os.environ, **home},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@asynccontextmanager
async def served(folder: Path, *more: str, config: Path | None = None) -> AsyncIterator[Served]:
    """Up on a free port, down at the end."""
    process = await asyncio.to_thread(start, folder, "--port", "0", *more, config=config)
    try:
        assert process.stdout is not None
        said = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 60)
        url = next((word for word in said.split() if word.startswith("http://")), "")
        assert url, said
        yield Served(process, url, said)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 30)
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


@asynccontextmanager
async def visiting(one: Served) -> AsyncIterator[aiohttp.ClientSession]:
    """A browser's session that has opened the printed address."""
    jar = aiohttp.CookieJar(unsafe=True)  # it takes cookies of an address without a name
    async with aiohttp.ClientSession(cookie_jar=jar) as http:
        async with http.get(one.entry) as page:
            assert page.status == 200
            assert str(page.url) == one.url
        yield http


def live(one: Served, **headers: str) -> dict[str, str]:
    """Headers of a page of the server's own, changed."""
    return {"Origin": one.url.rstrip("/"), **headers}


async def read_until(tab: aiohttp.ClientWebSocketResponse, word: str, seconds: float = 60) -> str:
    """What the console paints, until a word is in it."""
    text = ""
    async with asyncio.timeout(seconds):
        async for message in tab:
            if message.type == aiohttp.WSMsgType.BINARY:
                text += message.data.decode("utf-8", "replace")
            if word in text:
                return text
    raise AssertionError(f"{word!r} was not painted: {text[-2000:]!r}")


async def gone(processes: list[psutil.Process]) -> None:
    """Wait until they have ended."""
    await eventually(lambda: not any(map(running_still, processes)), 20)


def running_still(process: psutil.Process) -> bool:
    """Whether it runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_strangers_are_refused(tmp_path: Path) -> None:
    """A wrong Host or Origin gets a page of one line, on the WebSocket too, and no process."""
    async with served(tmp_path) as one, visiting(one) as http:
        async with http.get(one.url) as page:
            assert page.status == 200
            text = await page.text()
            assert "googleapis" not in text
            assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
        evil = f"evil.example:{one.port}"
        for path in ("", "static/js/textual.js", "ws"):
            async with http.get(one.url + path, headers={"Host": evil}) as page:
                assert page.status == 403
                assert (await page.text()).count("\n") == 1
        for headers in (
            {"Host": evil, "Origin": f"http://{evil}"},
            live(one, Origin="http://evil.example"),
            live(one, Origin="null"),
            {},
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(one.url + "ws", headers=headers)
            assert refused.value.status == 403
        await eventually(lambda: one.consoles() == [])
        with socket.socket() as elsewhere:
            elsewhere.settimeout(2)
            assert elsewhere.connect_ex((_own(), one.port)) != 0


def _own() -> str:
    """An address of this machine that is not loopback; where there is none, one that refuses."""
    addresses = [
        a.address
        for found in psutil.net_if_addrs().values()
        for a in found
        if a.family == socket.AF_INET and not a.address.startswith("127.")
    ]
    return addresses[0] if addresses else "127.0.0.2"


async def test_without_the_token_nothing_is_given(tmp_path: Path) -> None:
    """Another account of this machine has neither the printed address nor the cookie."""
    async with served(tmp_path) as one:
        wrong = {f"stoker-{one.port}": one.token[:-1]}
        right = {f"stoker-{one.port}": one.token}
        assert len(one.token) >= 32
        async with aiohttp.ClientSession() as http:
            for cookies in ({}, wrong, {"stoker-1": one.token}):
                for path in ("", "?token=", "?token=é%ff", "static/js/textual.js", "own/focus.js"):
                    async with http.get(one.url + path, cookies=cookies) as page:
                        assert page.status == 403
                        assert "`stoker serve` has printed" in await page.text()
                given = "; ".join(f"{name}={value}" for name, value in cookies.items())
                headers = live(one, **({"Cookie": given} if given else {}))
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await http.ws_connect(one.url + "ws", headers=headers)
                assert refused.value.status == 403
            async with http.get(one.url + f"ws?token={one.token}", headers=live(one)) as page:
                assert page.status == 403
            assert one.consoles() == []
            async with http.get(one.entry, allow_redirects=False) as page:
                assert (page.status, page.headers["Location"]) == (303, "/")
                given = page.headers["Set-Cookie"]
                assert "HttpOnly" in given
                assert "SameSite=Lax" in given
            async with http.get(one.url, cookies=right) as page:
                assert page.status == 200
        async with served(tmp_path) as other:
            assert other.token != one.token


async def test_it_only_looks_unless_allowed_and_ends_with_its_tab(tmp_path: Path) -> None:
    """A changing key is refused; the process is gone once the socket is."""
    async with served(tmp_path) as one, visiting(one) as http:
        assert "only looks" in one.said
        async with http.ws_connect(one.url + "ws?width=100&height=30", headers=live(one)) as tab:
            await read_until(tab, "READ-ONLY")
            assert len(one.consoles()) == 1
            await tab.send_json(["stdin", "d"])
            await read_until(tab, "only to be looked")
            running = one.consoles()
        await gone(running)
        async with http.ws_connect(one.url + "ws", headers=live(one)) as tab:
            await read_until(tab, "READ-ONLY")
            await tab.send_json(["stdin", "q"])
            async with asyncio.timeout(30):
                async for _ in tab:
                    pass
            assert tab.closed


async def test_with_actions_allowed(tmp_path: Path) -> None:
    """The same console without the mark."""
    async with served(tmp_path, "--allow-actions") as one, visiting(one) as http:
        assert "may change things" in one.said
        async with http.ws_connect(one.url + "ws", headers=live(one)) as tab:
            text = await read_until(tab, "not deployed")
            assert "READ-ONLY" not in text
            await tab.send_json(["stdin", "D"])
            await read_until(tab, "Deploy to here")


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_no_console_outlives_the_server(tmp_path: Path, way: signal.Signals) -> None:
    """However it ends."""
    async with served(tmp_path) as one, visiting(one) as http:
        async with http.ws_connect(one.url + "ws", headers=live(one)) as tab:
            await read_until(tab, "READ-ONLY")
            running = one.consoles()
            assert running
            one.process.send_signal(way)
            await asyncio.to_thread(one.process.wait, 30)
            await gone(running)
        if way is not signal.SIGKILL:
            assert one.process.returncode == 0


async def test_mistakes_are_one_line(tmp_path: Path) -> None:
    """A taken port, a port that is none, a target that is none."""
    async with served(tmp_path) as one:
        for words, says in (
            (["--port", str(one.port)], "name another one"),
            (["--port", "70000"], "0 to 65,535"),
            (["nowhere"], "no target 'nowhere'"),
        ):
            process = await asyncio.to_thread(start, tmp_path, *words)
            text, _ = await asyncio.to_thread(process.communicate, None, 60)
            assert process.returncode == 2
            assert text.count("\n") == 1
            assert says in text


def colours(png: bytes) -> int:
    """How many different bytes the rows of a PNG hold: a page with nothing on it has few."""
    at, data = 8, b""
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += 12 + size
    return len(set(zlib.decompress(data)))


@pytest.mark.timeout(300)
async def test_a_real_browser_shows_a_live_target(tmp_path: Path) -> None:
    """The page loads without a complaint, paints what an agent tells, and takes keys."""
    program = found()
    if program is None:
        if os.environ.get("STOKER_CI"):
            pytest.fail("no Chromium: .ci/run installs one")
        pytest.skip("no Chromium on this machine: `apt install chromium`")
    options = Options(gpus=2, count=20_000, speed=60.0, folder=tmp_path / "lab", s3=False)
    async with Lab(options) as lab:
        await job.begin(lab, lambda _: None)
        await job.start(lab, lambda _: None)
        profile = tmp_path / "profile"
        async with (
            served(tmp_path, config=lab.toml) as one,
            Browser(program, profile) as browser,
        ):
            await browser.open(one.entry)
            await browser.until("document.querySelector('.starting') !== null")
            assert await browser.value("location.search") == ""
            await browser.until("document.body.classList.contains('-first-byte')")
            await eventually(lambda: "SIMULATED HARDWARE" in browser.painted)
            await eventually(lambda: "tok/s per GPU" in browser.painted)
            await eventually(lambda: re.search(r"3\d/37 ", browser.painted))
            picture = await browser.picture()
            assert colours(picture) > 100
            assert browser.errors == []
            (tmp_path / "picture.png").write_bytes(picture)
            running = one.consoles()
            assert len(running) == 1
            await browser.key("l")  # without a click first
            await eventually(lambda: re.search(r"D \d+ req", browser.painted))
            await browser.key("q")
            await browser.until("document.body.classList.contains('-closed')")
            await gone(running)
