"""What finished trials leave for the prior's correction, read once a trial: a long study has hundreds of thousands."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sca_search.ternary.prior_correction import Observation


class Seen:
    """The observations of one study's trials. What a finished trial has left does not change any more."""

    def __init__(self) -> None:
        self._of_trial: dict[int, tuple[Observation, ...]] = {}

    def read(self, finished: Iterable[tuple[int, Sequence[Mapping[str, Any]]]]) -> list[Observation]:
        """All that these trials tell, in the order given; a trial is its number and what it left."""
        return [observation for number, left in finished for observation in self._read(number, left)]

    def _read(self, number: int, left: Sequence[Mapping[str, Any]]) -> tuple[Observation, ...]:
        if number not in self._of_trial:
            self._of_trial[number] = tuple(Observation(**each) for each in left)
        return self._of_trial[number]
