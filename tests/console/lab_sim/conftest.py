from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from console.lab.sim.settings import Version
from tests.console.lab_sim.servers import Lab, Server, lab


@pytest.fixture(scope="package", params=["0.5.12", "0.5.23"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab in each dialect."""
    version = cast("Version", request.param)
    with lab(tmp_path_factory.mktemp("lab"), version) as made:
        yield made


@pytest.fixture(scope="package")
def server(both: Lab) -> Server:
    """One server that many tests share."""
    return both.start(enable_metrics=True, context_length=65536).ready()


@pytest.fixture(params=["0.5.12", "0.5.23"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of one test's own."""
    with lab(tmp_path_factory.mktemp("lab"), cast("Version", request.param)) as made:
        yield made
