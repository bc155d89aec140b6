"""Connecting to a Ray cluster; tests/nightly/test_ray.py runs studies on one."""

import re

import pytest

from sca_search.errors import SpecError
from sca_search.study.ray_workers import connected


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "[Errno 111] Connection refused"),
        ("somewhere", "invalid literal for int() with base 10: 'somewhere'"),
    ],
)
def test_an_address_without_a_cluster_is_rejected_at_once(address: str, reason: str) -> None:
    sentence = (
        f"--ray must be the address of a running Ray cluster, HOST:PORT, auto, or local; got {address!r}: {reason}"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"), connected(address):
        pass
