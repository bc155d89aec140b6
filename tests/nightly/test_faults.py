"""Each fault, once and for real: nothing is lost, nothing is counted twice. `benchmarks/faults.py` repeats each."""

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


# Once per push, the faults that users meet first; the others once per night.
ON_PUSH = ("one of two workers killed (kill -9)", "PostgreSQL switched off and on", "disk full at a checkpoint")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.e2e if name in ON_PUSH else pytest.mark.nightly) for name in FAULTS]
)
def test_a_fault_loses_nothing_and_counts_nothing_twice(name: str, tmp_path: Path, server: Server) -> None:
    if name.startswith("disk full") and os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    found = FAULTS[name](tmp_path / "case", 1, server)
    assert (found.times, found.lost, found.twice) == (1, 0, 0)
