"""The search space: Optuna's suggestions -> a Candidate, and known good values that are tried first.

The allocation is searched around the one with the least loss by the layers' sensitivity: `density.` of a group is its
log density relative to that, so that 0 is that allocation at every sparsity. Without sensitivity it is searched around
the uniform allocation.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import optuna
import pandas as pd

from sca_search.config.candidate import (
    START_SPREAD,
    Candidate,
    Constant,
    Ramp,
    Schedule,
    Steps,
    Tracked,
    default_alpha,
    sharpened,
)
from sca_search.config.names import METHODS, SCA
from sca_search.config.study import StudySpec
from sca_search.runs.trials import trial_frame
from sca_search.ternary import allocation
from sca_search.ternary.allocation import LayerCost, LayerShape, Limit

if TYPE_CHECKING:  # importing it would import torch, and the dashboard reads is_logarithmic
    from sca_search.study.budgets import Budgets

Range = tuple[float, float]
Values = Mapping[str, Any]

# Strength in units of the ratio of the two gradients. In the paper's form only the regularizer makes the network
# ternary and must be strong: below 3 it leaves weights between the peaks. In the sharpened form it was tried as well
# (0.1 and 1) and never helped.
STRENGTH = (3.0, 1000.0)
# The paper's λ increases in steps by factors of up to 50.
STEP = 50.0
# In networks with more ternary layers, the layers of a stage share values: each searched number needs trials.
MAX_UNGROUPED_LAYERS = 6
# Prefixes of the values per group of layers, relative to the others: density, strength of the regularizer, sharpness.
DENSITY, GROUP_STRENGTH, GROUP_SHARPNESS = "density.", "strength.", "sharpness."
_UNIFORM = ("strength_start", "rise", "sharpness_start")  # sampled uniformly; everything else log-uniformly


@dataclass(frozen=True)
class Space:
    """The searched values of one study on one network."""

    spec: StudySpec
    layers: tuple[LayerShape, ...] = ()
    costs: tuple[LayerCost, ...] = ()  # the layers' sensitivity, where it was measured
    budgets: "Budgets | None" = None  # predicted costs, where the goal has budgets

    @property
    def groups(self) -> dict[str, str]:
        """The group of each layer."""
        many = len(self.layers) > MAX_UNGROUPED_LAYERS
        kind = self.spec.search.groups or ("stage" if many else "layer")
        return {layer.name: allocation.group_of(layer.name, kind) for layer in self.layers}

    def possible(self, sparsity: float) -> float:
        """A planned sparsity, or the highest that the layers' floors allow."""
        return min(sparsity, allocation.highest_sparsity(self.layers)) if self.layers else sparsity

    @property
    def uses_regularizer(self) -> bool:
        """Whether the regularizer is used: always in the paper's form, else only if a strength is set."""
        form, strength = self.spec.search.form, self.spec.search.space.strength
        if self.spec.search.method != SCA:
            return False  # other methods have their own
        return form == "paper" or (form == "sharpened" and strength is not None)

    def ranges(self) -> dict[str, Range]:
        """The range of each searched number."""
        space, form = self.spec.search.space, self.spec.search.form
        values = {
            "learning_rate": space.learning_rate,
            "latent_learning_rate": space.latent_learning_rate,
            "frozen_learning_rate": space.frozen_learning_rate,
        }
        if self.spec.search.method != SCA:
            strength = METHODS[self.spec.search.method].strength
            return values | ({"strength": strength[:2]} if strength else {})
        values["spread"] = space.spread
        if self.uses_regularizer:
            values |= {"strength": space.strength or STRENGTH, "strength_start": space.strength_start}
        if form != "paper":
            values["rise"] = space.rise
        if form == "sharpened":
            values |= {
                "sharpness": space.sharpness,
                "sharpness_first": space.sharpness_first,
                "sharpness_start": space.sharpness_start,
                "gradient_sharpness": space.gradient_sharpness,
            }
        return values | self._ranges_of_groups()

    def _ranges_of_groups(self) -> dict[str, Range]:
        space = self.spec.search.space
        groups = list(dict.fromkeys(self.groups.values()))
        if len(groups) < 2:
            return {}  # values are relative to other groups
        is_sharpened = self.spec.search.form == "sharpened"
        widths = {
            GROUP_STRENGTH: space.group_range * self.uses_regularizer,
            GROUP_SHARPNESS: space.group_range * is_sharpened,
            DENSITY: space.allocation,
        }
        return {prefix + group: (-width, width) for prefix, width in widths.items() if width for group in groups}

    def choices(self) -> dict[str, tuple[str, ...]]:
        """The searched categorical values."""
        return {"strength_schedule": self.spec.search.space.strength_schedule} if self.uses_regularizer else {}

    def first_guess(self) -> dict[str, Any]:
        """Values that worked well before, clipped to the ranges of this study; the same for all layers."""
        strength, form = METHODS[self.spec.search.method].strength, self.spec.search.form
        known = {
            "strength": strength[2] if strength is not None else 100.0 if form == "paper" else 0.001,
            # Sharp from the start with a wide gradient, and all zeros from the start. At 0.99 on MNIST this had a lower
            # validation loss than slowly rising β and sparsity with the true gradient; in a few trainings, and not on
            # the digits.
            "rise": 0.0,
            "sharpness": 3000.0,
            "sharpness_first": 100.0,
            "gradient_sharpness": 1.0,
            "spread": START_SPREAD,
            "learning_rate": 0.01,
            "latent_learning_rate": 0.02,
            "frozen_learning_rate": 0.005,
        }
        numbers = {name: min(max(known.get(name, 0.0), low), high) for name, (low, high) in self.ranges().items()}
        return numbers | {name: options[0] for name, options in self.choices().items()}

    def first_guesses(self, planned: Callable[[int], float | None]) -> dict[int, dict[str, Any]]:
        """Values of the first candidates: the first guess at the target and the first grid point, or at the three
        sparsest points of a front.

        If allocations are searched, the first guess is the least-loss allocation; the next two trials at the target use
        the uniform allocation and the one by layer size. Without a target, these are used at the next grid points,
        where few zeros make the allocation less important. `planned` is the sparsity of a candidate.
        """
        if self.spec.recipe is not None:
            return {}
        guess, goal = self.first_guess(), self.spec.goal
        if not self.spec.plans_sparsity:
            return {0: guess}
        if goal.front or goal.min_accuracy is not None:
            repeats, second, third = 3, 3, 5
        else:
            repeats, second, third = (2, 2, 4) if goal.grid else (1, 1, 2)
        guesses = dict.fromkeys(range(repeats), guess)
        if self._searches_allocation:
            known = (
                (second, allocation.uniform_weighting(self.layers)),
                (third, allocation.erdos_renyi_weighting(self.layers)),
            )
            for number, weighting in known:
                guesses[number] = guess | self.densities_of(weighting, planned(number))
        return guesses

    @property
    def _searches_allocation(self) -> bool:
        return any(name.startswith(DENSITY) for name in self.ranges())

    def limits(self, trials: pd.DataFrame | None = None) -> tuple[Limit, ...]:
        """Limits of the next trial without a planned sparsity, by the trials so far."""
        if self.budgets is None:
            return ()
        return self.budgets.limits(self.spec.goal, trial_frame([]) if trials is None else trials)

    def _search_center(self, sparsity: float, limits: tuple[Limit, ...] = ()) -> dict[str, float]:
        """The weighting that allocations are searched around: one number per group, or one per layer if there are
        limits, which affect the layers of a stage differently."""
        if not self.costs:
            return allocation.uniform_weighting(self.layers)
        if limits:
            return allocation.weighting_of(self.layers, _least_loss_allocation(self.costs, self.layers, limits))
        by_group = allocation.grouped(allocation.least_loss_weighting(self.costs, self.layers, sparsity), self.groups)
        return {layer: by_group[group] for layer, group in self.groups.items()}

    def densities_of(self, weighting: Mapping[str, float], sparsity: float | None) -> dict[str, float]:
        """A weighting as searched values: the mean per group relative to the center of the search, clipped to the
        range."""
        center = self._search_center(0.5, self.limits()) if sparsity is None else self._search_center(sparsity)
        offsets = allocation.grouped({layer: weighting[layer] - center[layer] for layer in self.groups}, self.groups)
        mean = sum(offsets.values()) / len(offsets)
        width = self.spec.search.space.allocation
        return {DENSITY + group: min(max(value - mean, -width), width) for group, value in offsets.items()}

    def sample(self, trial: optuna.Trial, sparsity: float, seed: int, limits: tuple[Limit, ...] = ()) -> Candidate:
        """The candidate of one trial."""
        numbers = {
            name: trial.suggest_float(name, low, high, log=is_logarithmic(name))
            for name, (low, high) in self.ranges().items()
        }
        others = {name: trial.suggest_categorical(name, options) for name, options in self.choices().items()}
        return self.candidate(numbers | others, sparsity, seed, limits)

    def candidate(self, values: Values, sparsity: float, seed: int, limits: tuple[Limit, ...] = ()) -> Candidate:
        """Values by name -> the candidate: with that sparsity, or with the least sparsity within the limits."""
        spec = self.spec
        sparsities = self._layer_sparsities(values, sparsity, limits)
        alpha = spec.search.alpha or default_alpha(spec.search.form)
        if isinstance(alpha, Tracked) and "rise" in values:
            alpha = alpha.model_copy(update={"rise": values["rise"]})
        return Candidate(
            sparsity=allocation.total_sparsity(self.layers, sparsities) if limits else sparsity,
            method=spec.search.method,
            form=spec.search.form,
            allocation=sparsities,
            spread=values.get("spread", START_SPREAD),
            alpha=alpha,
            exact=spec.plans_sparsity,
            strength=self._strength(values, 0.0),
            layer_strength=self._of_layers(GROUP_STRENGTH, values, lambda offset: self._strength(values, offset)),
            sharpness=_sharpness(values, 0.0),
            gradient_sharpness=values.get("gradient_sharpness"),
            layer_sharpness=self._of_layers(GROUP_SHARPNESS, values, lambda offset: _sharpness(values, offset)),
            learning_rate=values["learning_rate"],
            latent_learning_rate=values["latent_learning_rate"],
            frozen_learning_rate=values["frozen_learning_rate"],
            epochs=spec.train.epochs,
            frozen_epochs=spec.train.frozen_epochs,
            distillation=spec.train.distillation,
            temperature=spec.train.temperature,
            seed=seed,
        )

    def _layer_sparsities(self, values: Values, sparsity: float, limits: tuple[Limit, ...]) -> dict[str, float]:
        if not self._searches_allocation:
            return (
                allocation.allocate_within(self.layers, allocation.uniform_weighting(self.layers), limits)
                if limits
                else {}
            )
        center = self._search_center(sparsity, limits)
        weighting = {layer: center[layer] + values[DENSITY + group] for layer, group in self.groups.items()}
        if limits:
            return allocation.allocate_within(self.layers, weighting, limits)
        return allocation.allocate(self.layers, weighting, sparsity)

    def _of_layers(self, prefix: str, values: Values, schedule: Callable[[float], Schedule]) -> dict[str, Schedule]:
        """The schedules of layers that differ from the common one."""
        offsets = {layer: values.get(prefix + group, 0.0) for layer, group in self.groups.items()}
        return {layer: schedule(offset) for layer, offset in offsets.items() if offset}

    def _strength(self, values: Values, offset: float) -> Schedule:
        """The schedule of λ: linear, exponential, or one step as in the paper's recipes."""
        if "strength" not in values:
            return Constant(value=0.0)
        if not self.uses_regularizer:
            return Constant(value=values["strength"])
        last, start = values["strength"] * math.exp(offset), values["strength_start"]
        if values["strength_schedule"] == "step":
            return Steps(value=last / STEP, factors=((start * self.spec.train.epochs, STEP),))
        if values["strength_schedule"] == "exponential":
            return Ramp(first=last / STEP, last=last, start=start, interpolation="exponential")
        return Ramp(first=0.0, last=last, start=start)


@lru_cache(maxsize=8)  # consecutive trials mostly have the same limits, and the solver takes a while
def _least_loss_allocation(
    costs: tuple[LayerCost, ...], layers: tuple[LayerShape, ...], limits: tuple[Limit, ...]
) -> dict[str, float]:
    return allocation.least_loss_within(costs, layers, limits)


def _sharpness(values: Values, offset: float) -> Schedule:
    if "sharpness" not in values:
        return Constant(value=1.0)
    return sharpened(values["sharpness"] * math.exp(offset), values["sharpness_first"], values["sharpness_start"])


def is_logarithmic(name: str) -> bool:
    """Whether a value is sampled log-uniformly; values per group are logarithms already."""
    return name not in _UNIFORM and not name.startswith((DENSITY, GROUP_STRENGTH, GROUP_SHARPNESS))
