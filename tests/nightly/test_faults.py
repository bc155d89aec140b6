"""Each fault, once and for real: nothing is lost, nothing is counted twice. `benchmarks/faults.py` does each often."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import FAULTS
from tests.support.postgres import Server, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_loses_nothing_and_counts_nothing_twice(name: str, tmp_path: Path, server: Server) -> None:
    if name.startswith("disk full") and os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    found = FAULTS[name](tmp_path / "case", 1, server)
    assert (found.times, found.lost, found.twice) == (1, 0, 0)
