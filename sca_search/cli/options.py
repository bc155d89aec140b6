"""Options of the command line."""

from sca_search.config.types import MAX_SEEDS
from sca_search.errors import SpecError


def check_seeds(seeds: int) -> int:
    """Refuse a number of seeds that is out of range."""
    if not 1 <= seeds <= MAX_SEEDS:
        raise SpecError(f"--seeds must be from 1 to {MAX_SEEDS:,}, got {seeds}")
    return seeds
