"""The study's sampler: wraps an Optuna sampler and presents it the study with a single objective.

A study has two objectives, but the sparsity of each trial is planned: the searched values decide the metric *at this
sparsity*. So the inner sampler gets a study with one value per trial, its loss relative to trials of comparable
sparsity; paused trials count with their last rung. Until there are enough trials for it, values are drawn around the
first guess, where good values were found in earlier studies, and later around the best trials. There are about twenty
values, and the effect of most is smaller than that of a seed: a model of the whole space needs more trials than that.

The random state is derived from the study's seed and the trial number. A sampler with one seed would start over when a
study is resumed and propose its first points again, and two workers with the same seed would propose the same points.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from sca_search.study.halving import relative_losses

# Number of trials from which on the inner sampler is used.
STARTUP = 20
# From this number of trials on, values are drawn around the best fraction of them instead of the first guess.
_RECENTERED, _BEST = 6, 0.25
# The inner sampler gets this many trials of a long study: a Gaussian process takes time cubic in their number, and each
# is copied. The best, more than the 25 that TPE uses, define good values; the newest others define bad values, in the
# region that is sampled now.
MAX_BEST, MAX_NEWEST = 50, 150
# Standard deviation of the draws, as a fraction of a value's range, and the probability that a categorical value is
# drawn from all options. All values change at once: with wider draws the mean loss increases by more than its spread.
_WIDTH, _ANY_OPTION = 0.07, 0.25


class PlannedSampler(BaseSampler):
    """Creates its inner sampler for each trial, with a view of the study."""

    def __init__(
        self,
        seed: int,
        center: Mapping[str, Any] | None = None,
        make: Callable[[int], BaseSampler] | None = None,
    ) -> None:
        self._seed = seed
        self._center = center or {}
        self._make = make or INNER["tpe"]
        self._begin(0)

    def _begin(self, number: int) -> None:
        seed = derived_seed(self._seed, number)
        self._inner = self._make(seed)
        self._random = np.random.default_rng(seed)
        self._view: Study | None = None
        self._centers: list[Mapping[str, Any]] = []

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._begin(trial.number)
        self._view = view_of(study) if self._center else None
        self._centers = best_values(self._view) or [self._center] if self._view is not None else []
        self._inner.before_trial(*self._visible(study, trial))

    def _visible(self, study: Study, trial: FrozenTrial) -> tuple[Study, FrozenTrial]:
        """The arguments of the inner sampler: the view, whose last trial stands for the running one."""
        return (study, trial) if self._view is None else (self._view, self._view.get_trials(deepcopy=False)[-1])

    @property
    def _is_starting(self) -> bool:
        return self._view is not None and len(self._view.get_trials(deepcopy=False)) - 1 < STARTUP

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self._is_starting:
            return {}
        return dict(self._inner.infer_relative_search_space(*self._visible(study, trial)))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._is_starting:
            return {}
        return dict(self._inner.sample_relative(*self._visible(study, trial), search_space))

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        if self._is_starting and name in self._center:
            values = [center[name] for center in self._centers if name in center]
            return around(values or [self._center[name]], distribution, self._random)
        return self._inner.sample_independent(*self._visible(study, trial), name, distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        if self._view is None:
            self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()


def view_of(study: Study) -> Study:
    """A study in memory with one value per trial to minimize: the log loss relative to comparable trials.

    It has one more, running trial, because samplers store attributes at the trial that they sample for.
    """
    # A candidate that was paused and resumed counts once, by its last trial.
    newest = {trial.user_attrs.get("candidate", trial.number): trial for trial in study.get_trials(deepcopy=False)}
    trials = [trial for trial in newest.values() if trial.state in {TrialState.COMPLETE, TrialState.PRUNED}]
    values = relative_losses([trial.user_attrs for trial in trials])
    view = optuna.create_study(direction="minimize")
    view.add_trials(
        [
            optuna.trial.create_trial(
                params=trials[index].params, distributions=trials[index].distributions, value=values[index]
            )
            for index in select_trials(values)
        ]
    )
    view.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING))
    return view


def select_trials(values: Sequence[float]) -> list[int]:
    """The indices of the trials, oldest first, for the inner sampler: those with a finite value; of many, the best and
    the newest of the others."""
    finite = [index for index, value in enumerate(values) if math.isfinite(value)]
    if len(finite) <= MAX_BEST + MAX_NEWEST:
        return finite
    best = set(sorted(finite, key=lambda index: values[index])[:MAX_BEST])
    others = [index for index in finite if index not in best]
    return sorted([*best, *others[-MAX_NEWEST:]])


def best_values(view: Study) -> list[Mapping[str, Any]]:
    """The values of the best trials of a view; none while there are too few."""
    trials = view.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(trials) < _RECENTERED:
        return []
    best = np.argsort(np.array([trial.value for trial in trials], dtype=np.float64))[: int(_BEST * len(trials)) + 1]
    return [trials[index].params for index in best]


def around(centers: Sequence[Any], distribution: BaseDistribution, random: np.random.Generator) -> Any:
    """A number from a normal distribution around the mean of the centers, in the range's scale, truncated to the range;
    or an option, mostly of one of the centers."""
    if not isinstance(distribution, FloatDistribution):
        assert isinstance(distribution, CategoricalDistribution)
        options = distribution.choices if random.random() < _ANY_OPTION else centers
        return options[int(random.integers(len(options)))]
    low, high = distribution.low, distribution.high
    if low == high:
        return float(low)
    to, back = (math.log, math.exp) if distribution.log else (float, float)
    left, right = to(low), to(high)
    middle = fmean(to(min(max(center, low), high)) for center in centers)
    while True:
        value = random.normal(middle, _WIDTH * (right - left))
        if left <= value <= right:
            return min(max(back(value), low), high)  # exp(log(x)) may differ from x by rounding


def derived_seed(*parts: int) -> int:
    """A seed below 2³¹ that depends on all parts."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1)


INNER: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, n_startup_trials=STARTUP),
    "gp": lambda seed: GPSampler(seed=seed, n_startup_trials=STARTUP, deterministic_objective=False),
    "random": lambda seed: RandomSampler(seed=seed),
}
"""The inner samplers by name."""
