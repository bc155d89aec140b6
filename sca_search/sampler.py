"""The study's sampler: any Optuna sampler, its random state taken from (study seed, trial number).

A sampler seeded once starts over when a study is resumed and proposes its first points again; and two workers that
share a seed propose the same points. A new one for each trial does neither.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState


class ReseededSampler(BaseSampler):
    """Makes its inner sampler anew for each trial."""

    def __init__(self, seed: int, make: Callable[[int], BaseSampler] | None = None) -> None:
        self._seed = seed
        self._make = make or _tree_parzen
        self._inner = self._make(seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner = self._make(derived_seed(self._seed, trial.number))
        self._inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        space: dict[str, BaseDistribution] = self._inner.infer_relative_search_space(study, trial)
        return space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        values: dict[str, Any] = self._inner.sample_relative(study, trial, search_space)
        return values

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        return self._inner.sample_independent(study, trial, name, distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()


def derived_seed(*parts: int) -> int:
    """A seed below 2³¹ that depends on all parts."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1)


def _tree_parzen(seed: int) -> BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)
