"""Calling people: alerts and what happened meanwhile, posted as ``{"text": …}``.

Slack, Mattermost, Rocket.Chat and the like take that form. Messages wait in a short queue and are
posted from a thread, several in one post where they come together; a post that fails is tried
again a few times and then given up, which is told once. Nothing waits for any of it. The address
can be a secret: no text, log or event ever holds more of it than the host.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from remote.fleet import environment
from remote.protocol import Alert, TargetSpec

VARIABLE: Final = "STOKER_WEBHOOK"
"""The line of the credentials file that holds the address, where that is a secret."""

TOGETHER_S: Final = 2.0
"""What comes within so long travels in one post."""
WAITS_S: Final = (2.0, 15.0, 60.0)
"""Before each further try."""
TIMEOUT_S: Final = 10.0
MOST: Final = 40
"""Messages that wait; older ones are dropped, and counted."""
CLEAR_S: Final = 60.0
"""An alert that has been gone for so long is over; one that flickers is told once."""

_SIGN: Final = {"error": "✖", "warning": "▲"}


class Caller:
    """Which alerts to call about: each once when it is raised, and once when it is over."""

    def __init__(self, told: Iterable[Alert] = ()) -> None:
        self.told = {alert.code: alert for alert in told}
        self._seen: dict[str, float] = {}

    def look(
        self,
        alerts: Iterable[Alert],
        now: float,
        over: Callable[[Alert], str] = lambda alert: f"over: {alert.text}",
    ) -> list[str]:
        """Lines to post, given what is wrong now; ``over`` says of an alert that it has ended.
        Call it every second."""
        lines = []
        for alert in alerts:
            self._seen[alert.code] = now
            if alert.code not in self.told:
                self.told[alert.code] = alert
                lines.append(f"{_SIGN[alert.level]} {alert.text}")
        for code, alert in list(self.told.items()):
            last = self._seen.setdefault(code, now)
            if now - last >= CLEAR_S:
                del self.told[code], self._seen[code]
                lasted = span(max(0.0, last - alert.since))
                lines.append(f"✔ {over(alert)} (it stood for {lasted})")
        return lines


def span(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3h07m``."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60}h{minutes % 60:02d}m"


class WebhookError(Exception):
    """One line on why a post failed; ``again`` says whether another try makes sense."""

    def __init__(self, text: str, *, again: bool, wait: float = 0.0) -> None:
        super().__init__(text)
        self.again = again
        self.wait = wait


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message is not carried to where nobody asked for it to go."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def address(spec: TargetSpec) -> str:
    """Where to post: the spec's own, else the one in the credentials file; empty for nowhere.
    Blocking. Raises :class:`WebhookError`."""
    url = spec.alerts.webhook
    if not url:
        try:
            url = environment.credentials(spec.credentials_file, (VARIABLE,)).get(VARIABLE, "")
        except environment.EnvScriptError as error:
            raise WebhookError(str(error), again=False) from None
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname)
        sound = sound and (parts.port or 1) > 0 and url.isascii() and " " not in url
    except ValueError:
        sound = False
    if not sound:
        raise WebhookError("the address is no http:// or https:// URL", again=False)
    return url


def post(url: str, text: str, timeout: float = TIMEOUT_S) -> None:
    """Post once. Blocking. Raises :class:`WebhookError`."""
    host = urlsplit(url).hostname
    asked = urllib.request.Request(
        url,
        data=json.dumps({"text": text}).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "stoker"},
    )
    try:
        with _opener.open(asked, timeout=timeout) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        error.close()
        again = error.code in (408, 429) or error.code >= 500
        after = error.headers.get("Retry-After", "")
        wait = min(300.0, float(after)) if after.isdecimal() else 0.0
        raise WebhookError(f"{host} answers HTTP {error.code}", again=again, wait=wait) from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise WebhookError(f"{host}: {why or type(error).__name__}", again=True) from None


class Webhook:
    """The queue and the one who empties it. ``spec`` gives the target as it is now; ``problem``
    gets one line when messages can't be brought there, and an empty one when they can again."""

    def __init__(
        self,
        spec: Callable[[], TargetSpec | None],
        problem: Callable[[str], None],
        *,
        waits: Iterable[float] = WAITS_S,
        together: float = TOGETHER_S,
    ) -> None:
        self._spec = spec
        self._problem = problem
        self._waits = tuple(waits)
        self._together = together
        self._queue: deque[str] = deque(maxlen=MOST)
        self._dropped = 0
        self._wake = asyncio.Event()
        self._failing = ""

    def say(self, text: str) -> None:
        """Have it posted soon, where there is an address."""
        if len(self._queue) == MOST:
            self._dropped += 1
        self._queue.append(text)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._together)
            self._wake.clear()
            lines, dropped = list(self._queue), self._dropped
            self._queue.clear()
            self._dropped = 0
            if dropped:
                lines.insert(0, f"({dropped} earlier messages were dropped)")
            await self._bring(lines)

    async def _bring(self, lines: list[str]) -> None:
        spec = self._spec()
        if spec is None or not lines:
            return
        text = "\n".join(f"{spec.name} {line}" for line in lines)
        error: WebhookError | None = None
        for wait in (0.0, *self._waits):
            await asyncio.sleep(max(wait, error.wait if error is not None else 0.0))
            try:
                url = await asyncio.to_thread(address, spec)
                if not url:
                    return
                await asyncio.to_thread(post, url, text)
            except WebhookError as failed:
                error = failed
                if not failed.again:
                    break
            else:
                self._tell("")
                return
        self._tell(f"webhook: {error}; {len(lines)} messages were given up")

    def _tell(self, text: str) -> None:
        if bool(text) != bool(self._failing):
            self._problem(text)
        self._failing = text


def now_utc(at: float) -> str:
    """A time for a reader anywhere: ``30 Nov 03:12 UTC``."""
    there = time.gmtime(at)
    return time.strftime(f"{there.tm_mday} %b %H:%M UTC", there)
