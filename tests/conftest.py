"""What holds for every test."""

from __future__ import annotations

import signal

# A shell starts what it puts in the background deaf to the keyboard's signals, and processes of
# tests would inherit that; these tests interrupt them as an operator does.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
