"""The two ways to meet ``pct``: the lab's stand-in host, and OpenSSH before LXC."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import asyncssh
import pytest
import pytest_asyncio

from console.lab import host
from console.lab.container import Container
from tests.lxc.pair import Pair, lacking


class Switch(Protocol):
    """What can be done to a container from outside."""

    def stop(self) -> None:
        """Everything inside ends at once."""

    def start(self) -> None:
        """It runs again."""

    def freeze(self) -> None:
        """Everything inside stands still."""

    def thaw(self) -> None:
        """And goes on."""


@dataclass(frozen=True)
class Node:
    """A Proxmox host with one container, as a client meets it."""

    real: bool
    config: Path
    vmid: int
    switch: Switch

    async def connect(self) -> asyncssh.SSHClientConnection:
        """A connection by the client configuration, as the console makes one."""
        return await asyncssh.connect("lab", config=[str(self.config)])


@dataclass(frozen=True)
class StandInSwitch:
    """The stand-in's container."""

    container: Container

    def stop(self) -> None:
        self.container.stop()

    def start(self) -> None:
        self.container.set_state("running")

    def freeze(self) -> None:
        self.container.freeze()

    def thaw(self) -> None:
        self.container.thaw()


@dataclass(frozen=True)
class LxcSwitch:
    """LXC's container."""

    pair: Pair

    def stop(self) -> None:
        self.pair.stop_container()

    def start(self) -> None:
        self.pair.start_container()

    def freeze(self) -> None:
        self.pair.lxc("freeze")

    def thaw(self) -> None:
        self.pair.lxc("unfreeze")


def must_have() -> None:
    """Skip, or in CI fail, where there is no real pair to be had."""
    if reason := lacking():
        if os.environ.get("STOKER_CI") == "1":
            pytest.fail(f"a real LXC container: {reason}")
        pytest.skip(f"a real LXC container: {reason}")


@pytest.fixture(scope="session")
def real_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One LXC container and one sshd for the whole session."""
    must_have()
    pair = Pair(tmp_path_factory.mktemp("pair"))
    try:
        pair.up()
        yield pair
    finally:
        pair.down()


@pytest_asyncio.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.root)])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Node]:
    """Each test meets both."""
    if request.param == "real":
        pair: Pair = request.getfixturevalue("real_pair")
        yield Node(True, pair.layout.config, pair.vmid, LxcSwitch(pair))
        return
    container = Container(tmp_path)
    container.create()
    server = await host.start(container.lab)
    try:
        config = server.layout.config
        yield Node(False, config, container.vmid, StandInSwitch(container))
    finally:
        container.stop()
        await server.close()


@pytest_asyncio.fixture
async def connection(node: Node) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection to it."""
    async with await node.connect() as connection:
        yield connection
