"""How many epochs and trials fit into a time: arithmetic on the pace that was measured.

Epochs come first: the most, up to a limit, that leave time for a search that is worth its name, 16 trials and two
refits of the chosen one. Where even few epochs leave no time for that, fewer trials do, down to a single one.
"""

import math
from dataclasses import dataclass, replace

from sca_search.errors import SpecError

# Epochs of a candidate. Below two, the schedules have no room to move; above 40, more trials tell more.
LEAST_EPOCHS, MOST_EPOCHS = 2, 40
# The defaults' proportions: 30 dense and 5 frozen epochs beside 20.
_DENSE, _FROZEN = 1.5, 0.25
_LEAST_DENSE, _LEAST_FROZEN = 2, 1
# Trials at least, refits, and the fewest epochs for which so many are worth more than longer trainings.
_LEVELS = ((16, 2, 10), (8, 1, 5), (4, 0, 3), (1, 0, LEAST_EPOCHS))


@dataclass(frozen=True)
class Pace:
    """Seconds that the parts of a run take here, with its workers and threads."""

    start: float  # Python, torch, data, network, and budgets that are calibrated already
    dense_epoch: float
    dense_rest: float  # of the warm start, besides epochs: set-up, its answers on the training split, the first page
    before_trials: float  # layer sensitivity, the database, worker processes
    epoch: float  # with both looks at the validation split
    frozen_epoch: float
    trial_rest: float  # set-up, rungs, settling, measuring, keeping, sampling the next
    end: float  # test split, feature maps, page
    workers: int = 1


@dataclass(frozen=True)
class Amount:
    """How much a study does."""

    dense_epochs: int
    epochs: int
    frozen_epochs: int
    trials: int
    refits: int


@dataclass(frozen=True)
class Given:
    """What a user has fixed of it."""

    dense_epochs: int | None = None
    epochs: int | None = None
    trials: int | None = None
    refits: int | None = None


NOTHING_GIVEN = Given()


def parts_of(amount: Amount, pace: Pace) -> dict[str, float]:
    """Seconds of a run by its parts; a refit takes as long as a trial."""
    trial = amount.epochs * pace.epoch + amount.frozen_epochs * pace.frozen_epoch + pace.trial_rest
    return {
        "start": pace.start,
        "dense warm start": pace.dense_rest + amount.dense_epochs * pace.dense_epoch,
        "before trials": pace.before_trials,
        "trials": math.ceil(amount.trials / pace.workers) * trial,
        "refits": amount.refits * trial,
        "end": pace.end,
    }


def seconds_of(amount: Amount, pace: Pace) -> float:
    """Seconds of the whole run."""
    return sum(parts_of(amount, pace).values())


def plan(seconds: float, pace: Pace, given: Given = NOTHING_GIVEN) -> Amount:
    """The amount that fits; SpecError with the least time possible where nothing does."""
    for least_trials, refits, least_epochs in _LEVELS:
        for epochs in _descending(least_epochs, given):
            one = _with_one_trial(epochs, given, refits)
            trials = given.trials or _most_trials(seconds, one, pace)
            amount = replace(one, trials=max(1, trials))
            if trials >= (given.trials or least_trials) and seconds_of(amount, pace) <= seconds:
                return amount
    least = replace(_with_one_trial(given.epochs or LEAST_EPOCHS, given, 0), trials=given.trials or 1)
    raise SpecError(
        f"--time must be at least {math.ceil(seconds_of(least, pace))}s for {told(least)} on this machine, "
        f"got {seconds:g}s"
    )


def told(amount: Amount) -> str:
    """In words."""
    trials = "1 trial" if amount.trials == 1 else f"{amount.trials} trials"
    refits = {0: "no refits", 1: "1 refit"}.get(amount.refits, f"{amount.refits} refits")
    each = f"{amount.epochs} + {amount.frozen_epochs} epochs each"
    return f"{amount.dense_epochs} dense epochs, {trials} and {refits} of {each}"


def _descending(least: int, given: Given) -> range | tuple[int, ...]:
    return (given.epochs,) if given.epochs else range(MOST_EPOCHS, least - 1, -1)


def _with_one_trial(epochs: int, given: Given, refits: int) -> Amount:
    """The amount for so many epochs of a candidate, in the defaults' proportions."""
    dense = given.dense_epochs or max(_LEAST_DENSE, round(_DENSE * epochs))
    frozen = max(_LEAST_FROZEN, round(_FROZEN * epochs))
    return Amount(dense, epochs, frozen, 1, refits if given.refits is None else given.refits)


def _most_trials(seconds: float, one: Amount, pace: Pace) -> int:
    """As many as fit, with workers side by side."""
    parts = parts_of(one, pace)
    each = parts.pop("trials")
    return max(0, math.floor((seconds - sum(parts.values())) / each) * pace.workers)
