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
    AlphaSchedule,
    Candidate,
    Constant,
    Form,
    Ramp,
    Schedule,
    Steps,
    Tracked,
    default_alpha,
)
from sca_search.config.names import METHODS, PRUNING, SCA, STRAIGHT_THROUGH
from sca_search.config.study import StudySpec
from sca_search.runs.trials import trial_frame
from sca_search.ternary import allocation
from sca_search.ternary.allocation import LayerCost, LayerShape, Limit

if TYPE_CHECKING:  # importing it would import torch, and the dashboard reads is_logarithmic
    from sca_search.study.budgets import Budgets

Range = tuple[float, float]
Values = Mapping[str, Any]

# The final strength. In the paper's form, in units of the ratio of the two gradients: below 3 it leaves weights between
# the peaks. In the decoupled form it is u = 4αλ: from 10 on, rounding changes next to nothing.
STRENGTHS = {"paper": (3.0, 1000.0), "decoupled": (10.0, 60.0)}
# The paper's λ increases in steps by factors of up to 50.
STEP = 50.0
# The fraction of training at which the strength of the decoupled form reaches its final value.
STRENGTH_STOP = 0.9
# In networks with more ternary layers, the layers of a stage share values: each searched number needs trials.
MAX_UNGROUPED_LAYERS = 6
# Prefixes of the values per group of layers, relative to the others: log density, log strength, and the difference of
# the fraction of training in which the sparsity rises.
DENSITY, GROUP_STRENGTH, GROUP_RISE = "density.", "strength.", "rise."
_GROUPED = (DENSITY, GROUP_STRENGTH, GROUP_RISE)
# The part of a candidate that a value determines, by the first word of its name; all others are of the training.
_PARTS = {"strength": "λ schedule", "rise": "α schedule", "density": "allocation", "reallocation": "allocation"}
PARTS = (*dict.fromkeys(_PARTS.values()), "training")
_UNIFORM = ("strength_start", "rise_start", "rise", "distillation")  # the other numbers are sampled log-uniformly
ADAPTIVE = "adaptive"


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
    def form(self) -> Form | None:
        """The form of SCA, or of the methods with its schedules but without its regularizer; None for other methods."""
        search = self.spec.search
        if search.method in {STRAIGHT_THROUGH, PRUNING}:
            return "straight-through"
        return search.form if search.method == SCA else None

    @property
    def uses_regularizer(self) -> bool:
        """Whether SCA's regularizer is used; other methods have their own."""
        return self.form in STRENGTHS

    @property
    def tracks_sparsity(self) -> bool:
        """Whether thresholds follow the latents, so that a schedule of the sparsity can be searched."""
        return self.form is not None and isinstance(self._alpha, Tracked)

    @property
    def _alpha(self) -> AlphaSchedule:
        return self.spec.search.alpha or default_alpha(self.form or "paper")

    def ranges(self) -> dict[str, Range]:
        """The range of each searched number."""
        space = self.spec.search.space
        values = {
            "learning_rate": space.learning_rate,
            "latent_learning_rate": space.latent_learning_rate,
            "frozen_learning_rate": space.frozen_learning_rate,
            "distillation": space.distillation,
        }
        if space.distillation[1] > 0:
            values["temperature"] = space.temperature
        if self.form is None:
            strength = METHODS[self.spec.search.method].strength
            values |= {"strength": strength[:2]} if strength else {}
            return values | (self._ranges_of_groups() if self.spec.plans_sparsity else {})
        values["spread"] = space.spread
        if self.uses_regularizer:
            values |= {"strength": space.strength or STRENGTHS[self.form], "strength_start": space.strength_start}
        if self.form == "decoupled":
            values["strength_first"] = space.strength_first
        if self.tracks_sparsity:
            values |= {"rise_start": space.rise_start, "rise": space.rise}
        return values | self._ranges_of_groups()

    def _ranges_of_groups(self) -> dict[str, Range]:
        space = self.spec.search.space
        groups = list(dict.fromkeys(self.groups.values()))
        if len(groups) < 2:
            return {}  # values are relative to other groups
        widths = {
            GROUP_STRENGTH: space.group_strength * self.uses_regularizer,
            GROUP_RISE: space.group_rise * self.tracks_sparsity,
            DENSITY: space.allocation,
        }
        return {prefix + group: (-width, width) for prefix, width in widths.items() if width for group in groups}

    def choices(self) -> dict[str, tuple[str, ...]]:
        """The searched categorical values."""
        space = self.spec.search.space
        found: dict[str, tuple[str, ...]] = {}
        if self.uses_regularizer:
            found["strength_schedule"] = space.strength_schedule
        if self.form == "decoupled":
            found["gradient"] = space.gradient
        goal = self.spec.goal
        has_limits = bool(goal.budgets) or goal.prefer != "sparsest"  # met by the allocation that was planned for them
        if self.tracks_sparsity and not has_limits and len(self.layers) != 1:
            found["reallocation"] = space.reallocation
        return found

    def first_guess(self) -> dict[str, Any]:
        """Values that worked well before, clipped to the ranges of this study; the same for all layers."""
        strength = METHODS[self.spec.search.method].strength
        known = {
            "strength": strength[2]
            if strength is not None
            else {"paper": 100.0, "decoupled": 40.0}.get(str(self.form)),
            "strength_first": 8.0,
            "rise": 0.5,
            "spread": START_SPREAD,
            "learning_rate": 0.01,
            "latent_learning_rate": 0.02,
            "frozen_learning_rate": 0.005,
            "distillation": 0.5,
            "temperature": 4.0,
        }
        numbers = {name: min(max(known.get(name) or 0.0, low), high) for name, (low, high) in self.ranges().items()}
        return numbers | {name: options[0] for name, options in self.choices().items()}

    def searched(self) -> list[dict[str, Any]]:
        """Every searched value with the part of a candidate that it determines, its range or options, and its guess."""
        ranges, choices = self.ranges(), self.choices()
        rows = [
            {
                "parameter": name,
                "sets": part_of(name),
                "range": ranges.get(name),
                "options": choices.get(name),
                "scale": None if name in choices else "log" if is_logarithmic(name) else "linear",
                "first_guess": guess,
            }
            for name, guess in self.first_guess().items()
        ]
        return sorted(rows, key=lambda row: PARTS.index(row["sets"]))

    def first_guesses(self) -> dict[int, dict[str, Any]]:
        """Values of the first candidates: the first guess at the target and the first grid point, or at the three
        sparsest points of a front."""
        if self.spec.recipe is not None:
            return {}
        goal = self.spec.goal
        repeats = 1
        if self.spec.plans_sparsity:
            repeats = 3 if goal.front or goal.min_accuracy is not None else 2 if goal.grid else 1
        return dict.fromkeys(range(repeats), self.first_guess())

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
        return Candidate(
            sparsity=allocation.total_sparsity(self.layers, sparsities) if limits else sparsity,
            method=spec.search.method,
            form=self.form or "decoupled",
            allocation=sparsities,
            adaptive=values.get("reallocation") == ADAPTIVE,
            spread=values.get("spread", START_SPREAD),
            alpha=self._sparsity_schedule(values, 0.0),
            layer_alpha=self._of_layers(GROUP_RISE, values, self._sparsity_schedule),
            exact=spec.plans_sparsity,
            strength=self._strength(values, 0.0),
            layer_strength=self._of_layers(GROUP_STRENGTH, values, self._strength),
            gradient=values.get("gradient", "straight-through"),
            learning_rate=values["learning_rate"],
            latent_learning_rate=values["latent_learning_rate"],
            frozen_learning_rate=values["frozen_learning_rate"],
            epochs=spec.train.epochs,
            frozen_epochs=spec.train.frozen_epochs,
            distillation=values["distillation"],
            temperature=values.get("temperature", 1.0),
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

    def _of_layers(self, prefix: str, values: Values, schedule: Callable[[Values, float], Any]) -> dict[str, Any]:
        """The schedules of layers that differ from the common one."""
        offsets = {layer: values.get(prefix + group, 0.0) for layer, group in self.groups.items()}
        return {layer: schedule(values, offset) for layer, offset in offsets.items() if offset}

    def _sparsity_schedule(self, values: Values, offset: float) -> AlphaSchedule:
        """The schedule of α: by default, when the sparsity starts to rise and for how long."""
        alpha = self._alpha
        if not isinstance(alpha, Tracked) or "rise" not in values:
            return alpha
        start = values["rise_start"]
        rise = min(max(values["rise"] + offset, 0.0), 1.0 - start)
        return alpha.model_copy(update={"start": start, "rise": rise})

    def _strength(self, values: Values, offset: float) -> Schedule:
        """The schedule of the strength: exponential, linear, or one step as in the paper's recipes."""
        if "strength" not in values:
            return Constant(value=0.0)
        if not self.uses_regularizer:
            return Constant(value=values["strength"])
        last, start, kind = values["strength"] * math.exp(offset), values["strength_start"], values["strength_schedule"]
        first = last / STEP
        if self.form == "decoupled":
            first = min(values["strength_first"] * math.exp(offset), last)
        if kind == "step":
            return Steps(value=first, factors=((start * self.spec.train.epochs, last / first),))
        if self.form == "paper" and kind == "linear":
            first = 0.0
        stop = STRENGTH_STOP if self.form == "decoupled" else 1.0
        return Ramp(first=first, last=last, start=start, stop=stop, interpolation=kind)


@lru_cache(maxsize=8)  # consecutive trials mostly have the same limits, and the solver takes a while
def _least_loss_allocation(
    costs: tuple[LayerCost, ...], layers: tuple[LayerShape, ...], limits: tuple[Limit, ...]
) -> dict[str, float]:
    return allocation.least_loss_within(costs, layers, limits)


def is_logarithmic(name: str) -> bool:
    """Whether a value is sampled log-uniformly; values per group are logarithms already."""
    return name not in _UNIFORM and not name.startswith(_GROUPED)


def part_of(name: str) -> str:
    """The part of a candidate that a searched value determines."""
    return _PARTS.get(name.replace(".", "_").partition("_")[0], PARTS[-1])
