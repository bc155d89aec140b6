"""Successive halving over epochs: which trainings go on at a rung, and how well rungs foretell the end.

A rung's score is the loss that a network would have if its training ended there. Sparser networks lose more, so a
training is only compared with those of comparable sparsity.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from sca_search.runs.trials import RUNG
from sca_search.study.rank_correlation import spearman

# Densities (shares of non-zeros) within this factor are comparable: 0.97 with 0.98 and 0.955, not with 0.9.
COMPARABLE = 1.5
# With fewer comparable trainings nobody is stopped.
LEAST_COMPARED = 3


@dataclass(frozen=True)
class RungScore:
    """A training at one rung."""

    candidate: int
    sparsity: float
    loss: float


def rung_epochs(shares: Sequence[float], epochs: int) -> tuple[int, ...]:
    """Shares of a training as epochs, each once, none at its start or end."""
    rounded = {round(share * epochs) for share in shares}
    return tuple(sorted(epoch for epoch in rounded if 0 < epoch < epochs))


def goes_on(mine: RungScore, others: Sequence[RungScore], keep: float) -> bool:
    """Whether a training is among the best `keep` of the comparable ones seen at its rung, itself included."""
    peers = [other for other in others if other.candidate != mine.candidate and comparable(mine, other)]
    losses = [other.loss for other in peers]
    if keep >= 1.0 or len(losses) + 1 < LEAST_COMPARED:
        return True
    better = sum(loss < mine.loss for loss in losses)
    return better < math.ceil(keep * (len(losses) + 1))


def comparable(one: RungScore, other: RungScore) -> bool:
    """Whether two trainings are alike enough in sparsity for their losses to be compared."""
    return _alike(one.sparsity, other.sparsity)


def _alike(sparsity: float, other: float) -> bool:
    return 1.0 / COMPARABLE <= _ratio(sparsity, other) <= COMPARABLE


def _ratio(sparsity: float, other: float) -> float:
    """Of two densities; it rises with the other sparsity."""
    return (1.0 - sparsity) / (1.0 - other)


def promoted(paused: Sequence[RungScore], seen: Sequence[RungScore], keep: float) -> list[int]:
    """The paused candidates that belong to the best of their rung by now, best first."""
    chosen = [mine for mine in paused if goes_on(mine, seen, keep)]
    return [mine.candidate for mine in sorted(chosen, key=lambda mine: mine.loss)]


def relative_losses(told: Sequence[Mapping[str, Any]]) -> list[float]:
    """The logarithm of each training's loss beside those of comparable sparsity: below 0 is better than usual.

    A training is compared where it is now, at its end or its last rung, with all that have come there. NaN where it
    tells nothing.
    """
    places = [_place(each) for each in told]
    means = {place: _Means(told, place) for place in {*places} - {""}}
    return [means[place].beside(each) if place else math.nan for each, place in zip(told, places, strict=True)]


def _place(mine: Mapping[str, Any]) -> str:
    """Where a training is now: the name of its last loss."""
    if mine.get("planned_sparsity") is None:
        return ""
    if mine.get("loss") is not None:
        return "loss"
    return max((name for name in mine if name.startswith(RUNG)), key=_epoch_of, default="")


def _epoch_of(rung: str) -> int:
    return int(rung.removeprefix(RUNG))


class _Means:
    """The mean logarithm of the losses at one place, around any sparsity.

    Sorted by sparsity, comparable trainings stand together, and running sums give the sum of any stretch: a study of
    ten thousand trials would wait for each of them to be compared with each. Fractions keep the sums exact.
    """

    def __init__(self, told: Sequence[Mapping[str, Any]], place: str) -> None:
        seen = [each for each in told if each.get(place) is not None and each.get("planned_sparsity") is not None]
        pairs = sorted((float(each["planned_sparsity"]), _log_loss(each, place)) for each in seen)
        finite = [(sparsity, log) for sparsity, log in pairs if math.isfinite(log)]  # else they would hide all others
        self._place = place
        self._sparsities = [sparsity for sparsity, _ in finite]
        self._sums = list(accumulate((Fraction(log) for _, log in finite), initial=Fraction()))
        self._known: dict[float, float] = {}

    def beside(self, mine: Mapping[str, Any]) -> float:
        """The logarithm of a training's loss less that of the comparable ones; not finite where its own is not."""
        sparsity, log = float(mine["planned_sparsity"]), _log_loss(mine, self._place)
        if not math.isfinite(log):
            return log
        if sparsity not in self._known:
            self._known[sparsity] = self._around(sparsity)
        return log - self._known[sparsity]

    def _around(self, sparsity: float) -> float:
        first = bisect_left(self._sparsities, 1.0 / COMPARABLE, key=lambda other: _ratio(sparsity, other))
        last = bisect_right(self._sparsities, COMPARABLE, key=lambda other: _ratio(sparsity, other))
        return float(self._sums[last] - self._sums[first]) / (last - first)


def _log_loss(row: Mapping[str, Any], place: str) -> float:
    return math.log(max(float(row[place]), 1e-12))


def foretelling(finished: Sequence[Mapping[str, Any]], epoch: int) -> tuple[float, int] | None:
    """Spearman's rank correlation of the loss at a rung with the loss at the end, and of how many trainings.

    Losses are taken beside those of comparable trainings, else sparsity alone would make them agree. None where there
    are too few to say.
    """
    rung = f"{RUNG}{epoch}"
    rows = [row for row in finished if row.get(rung) is not None and row.get("loss") is not None]
    pairs = []
    for row in rows:
        peers = [peer for peer in rows if _comparable(row, peer)]
        if len(peers) >= LEAST_COMPARED:
            pairs.append((_above_mean(row, peers, rung), _above_mean(row, peers, "loss")))
    at_rung, at_end = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(pairs) < LEAST_COMPARED + 1 or len(set(at_rung)) == 1 or len(set(at_end)) == 1:
        return None
    return spearman(at_rung, at_end), len(pairs)


def _comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    mine, others = one.get("planned_sparsity"), other.get("planned_sparsity")
    return mine is not None and others is not None and _alike(mine, others)


def _above_mean(row: Mapping[str, Any], peers: Sequence[Mapping[str, Any]], name: str) -> float:
    return _log_loss(row, name) - math.fsum(_log_loss(peer, name) for peer in peers) / len(peers)
