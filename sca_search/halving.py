"""Successive halving over epochs: which trainings go on at a rung, and how well rungs foretell the end.

A rung's score is the loss that a network would have if its training ended there. Sparser networks lose more, so a
training is only compared with those of comparable sparsity.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import spearmanr

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
    return 1.0 / COMPARABLE <= (1.0 - sparsity) / (1.0 - other) <= COMPARABLE


def promoted(paused: Sequence[RungScore], seen: Sequence[RungScore], keep: float) -> list[int]:
    """The paused candidates that belong to the best of their rung by now, best first."""
    chosen = [mine for mine in paused if goes_on(mine, seen, keep)]
    return [mine.candidate for mine in sorted(chosen, key=lambda mine: mine.loss)]


RUNG = "rung."
"""Prefix of a trial's losses at its rungs, among what it tells of itself."""


def relative_losses(told: Sequence[Mapping[str, Any]]) -> list[float]:
    """The logarithm of each training's loss beside those of comparable sparsity: below 0 is better than usual.

    A training is compared where it is now, at its end or its last rung, with all that have come there. NaN where it
    tells nothing.
    """
    return [_relative_loss(each, told) for each in told]


def _relative_loss(mine: Mapping[str, Any], told: Sequence[Mapping[str, Any]]) -> float:
    rungs = sorted((name for name in mine if name.startswith(RUNG)), key=lambda name: int(name.removeprefix(RUNG)))
    where = "loss" if mine.get("loss") is not None else (rungs[-1] if rungs else "")
    if not where or mine.get("planned_sparsity") is None:
        return math.nan
    peers = [each for each in told if each.get(where) is not None and _comparable(mine, each)]
    return _above_mean(mine, peers, where)


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
    return float(spearmanr(at_rung, at_end).statistic), len(pairs)


def _comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    mine, others = one.get("planned_sparsity"), other.get("planned_sparsity")
    return mine is not None and others is not None and _alike(mine, others)


def _above_mean(row: Mapping[str, Any], peers: Sequence[Mapping[str, Any]], name: str) -> float:
    logs = [math.log(max(float(peer[name]), 1e-12)) for peer in peers]
    return math.log(max(float(row[name]), 1e-12)) - math.fsum(logs) / len(logs)
