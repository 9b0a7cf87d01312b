"""What holds for every test."""

from __future__ import annotations

import signal

import pytest

from console.lab import ports as lab_ports
from tests import ports

# A shell starts what it puts in the background deaf to the keyboard's signals, and processes of
# tests would inherit that; these tests interrupt them as an operator does.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Labs that several workers start at the same time look for free ports apart from each other.
lab_ports.LOW, lab_ports.HIGH = ports.own(lab_ports.LOW, lab_ports.HIGH)

ALONE = {
    "lxc": ("tests/lxc/",),  # one container serves most of them
}
"""Tests that share what a second worker would have to make again, by the folders they lie in."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--dist loadgroup`` a file's tests go to one worker, and so does what is in ALONE.

    A test that names a group of its own stays in that.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is not None:
            continue
        name = item.nodeid.partition("::")[0]
        group = next((g for g, folders in ALONE.items() if name.startswith(folders)), name)
        item.add_marker(pytest.mark.xdist_group(group))
