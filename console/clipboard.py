"""Text to the clipboard: by the system's own tool where there is one, else by the terminal.

The console runs on the laptop, so the native tool comes first; over SSH only OSC 52 reaches the
operator's own clipboard. Terminals cap what they take; 74,994 bytes of base64 is what most do.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from typing import Final

OSC52_MOST: Final = 74_994


def native() -> list[str] | None:
    """The command that reads the clipboard's new content from its input."""
    if "SSH_CONNECTION" in os.environ:
        return None
    for command, display in (
        (["pbcopy"], ""),
        (["wl-copy"], "WAYLAND_DISPLAY"),
        (["xclip", "-selection", "clipboard"], "DISPLAY"),
        (["xsel", "--clipboard", "--input"], "DISPLAY"),
    ):
        if shutil.which(command[0]) and (not display or os.environ.get(display)):
            return command
    return None


def by_tool(text: str) -> bool:
    """Whether a native tool took the text. Blocks for at most two seconds."""
    command = native()
    if command is None:
        return False
    try:
        done = subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def osc52(text: str) -> str | None:
    """The sequence that asks the terminal; None where the text is too long for one.

    Inside tmux it needs ``set-clipboard on``; a passthrough wrapper would need an option that is
    off by default.
    """
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    return None if len(data) > OSC52_MOST else f"\x1b]52;c;{data}\a"
