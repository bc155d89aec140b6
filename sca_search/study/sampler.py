"""The study's sampler: wraps any Optuna sampler and shows it the study as one question.

A study has two objectives, but each trial's sparsity is planned: what the searched values decide is how accurate a
network is *for its sparsity*. So the inner sampler sees a study with a single value, a trial's loss beside that of
trials of comparable sparsity, in which trials that were paused count with their last rung. Until enough are there, it
is not asked: values are drawn around the first guess, which is where good ones were before.

The random state comes from (study seed, trial number). A sampler seeded once starts over when a study is resumed and
proposes its first points again; and two workers that share a seed propose the same points.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from sca_search.study.halving import relative_losses

# So many trials are drawn around the first guess before the inner sampler has enough to learn from.
STARTUP = 8
# Of a long study, so many are shown to the inner sampler: a Gaussian process takes the cube of their number, and each
# is copied. What is good is told by the best, more than the 25 that TPE looks at; what is not by the newest others,
# which lie where the sampler looks now.
BEST_SHOWN, NEWEST_SHOWN = 50, 150
# How far: the standard deviation, in shares of a value's range.
_WIDTH = 0.2


class PlannedSampler(BaseSampler):
    """Makes its inner sampler anew for each trial, and gives it its own view of the study."""

    def __init__(
        self,
        seed: int,
        centre: Mapping[str, Any] | None = None,
        make: Callable[[int], BaseSampler] | None = None,
    ) -> None:
        self._seed = seed
        self._centre = centre or {}
        self._make = make or _tree_parzen
        self._begin(0)

    def _begin(self, number: int) -> None:
        seed = derived_seed(self._seed, number)
        self._inner = self._make(seed)
        self._random = np.random.default_rng(seed)
        self._view: Study | None = None

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._begin(trial.number)
        self._view = view_of(study) if self._centre else None
        self._inner.before_trial(*self._seen(study, trial))

    def _seen(self, study: Study, trial: FrozenTrial) -> tuple[Study, FrozenTrial]:
        """What the inner sampler sees: the view, in which the last trial stands for the one under way."""
        return (study, trial) if self._view is None else (self._view, self._view.get_trials(deepcopy=False)[-1])

    @property
    def _is_starting(self) -> bool:
        return self._view is not None and len(self._view.get_trials(deepcopy=False)) - 1 < STARTUP

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self._is_starting:
            return {}
        space: dict[str, BaseDistribution] = self._inner.infer_relative_search_space(*self._seen(study, trial))
        return space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._is_starting:
            return {}
        values: dict[str, Any] = self._inner.sample_relative(*self._seen(study, trial), search_space)
        return values

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        if self._is_starting and isinstance(distribution, FloatDistribution) and name in self._centre:
            return around(self._centre[name], distribution, self._random)
        return self._inner.sample_independent(*self._seen(study, trial), name, distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        if self._view is None:
            self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()


def view_of(study: Study) -> Study:
    """The trials so far with one value each, to be minimized: the logarithm of the loss beside comparable trials'.

    One more is under way in it, since samplers leave notes at the trial that they sample for.
    """
    # A candidate that was paused and went on counts once, as its last trial.
    newest = {trial.user_attrs.get("candidate", trial.number): trial for trial in study.get_trials(deepcopy=False)}
    trials = [trial for trial in newest.values() if trial.state in {TrialState.COMPLETE, TrialState.PRUNED}]
    values = relative_losses([trial.user_attrs for trial in trials])
    view = optuna.create_study(direction="minimize")
    view.add_trials(
        [
            optuna.trial.create_trial(
                params=trials[index].params, distributions=trials[index].distributions, value=values[index]
            )
            for index in shown(values)
        ]
    )
    view.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING))
    return view


def shown(values: Sequence[float]) -> list[int]:
    """Which of the trials, oldest first, are shown to the inner sampler: those with a value; of many the best, and of
    the others the newest."""
    told = [index for index, value in enumerate(values) if math.isfinite(value)]
    if len(told) <= BEST_SHOWN + NEWEST_SHOWN:
        return told
    best = set(sorted(told, key=lambda index: values[index])[:BEST_SHOWN])
    others = [index for index in told if index not in best]
    return sorted([*best, *others[-NEWEST_SHOWN:]])


def around(centre: float, distribution: FloatDistribution, random: np.random.Generator) -> float:
    """A value near `centre`: normal, in the range's own scale, drawn again where it falls outside."""
    low, high = distribution.low, distribution.high
    if low == high:
        return float(low)
    to, back = (math.log, math.exp) if distribution.log else (float, float)
    left, right, middle = to(low), to(high), to(min(max(centre, low), high))
    while True:
        value = random.normal(middle, _WIDTH * (right - left))
        if left <= value <= right:
            return min(max(back(value), low), high)  # exp(log(x)) may miss x by a bit


def derived_seed(*parts: int) -> int:
    """A seed below 2³¹ that depends on all parts."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1)


def _tree_parzen(seed: int) -> BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)


def _gaussian_process(seed: int) -> BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP, deterministic_objective=False)


INNER: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": _tree_parzen,
    "gp": _gaussian_process,
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}
"""Optuna's samplers that may be asked, by name."""
