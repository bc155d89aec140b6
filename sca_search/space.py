"""What a trial samples: Optuna's suggestions -> a Candidate, and the values known to be good that are tried first."""

from collections.abc import Mapping, Sequence
from typing import Any

import optuna

from sca_search.allocation import LayerShape, erdos_renyi_weighting, group_of, grouped, split_of_weighting
from sca_search.candidate import Candidate, default_alpha, sharpened
from sca_search.schedule import Ramp
from sca_search.spec import StudySpec

# Strength in units of the two gradients' ratio. In the paper's form the pull alone makes the network ternary and
# must be strong; sharpened, it only helps.
STRENGTH = {"paper": (1.0, 100.0), "sharpened": (0.0001, 0.1)}
# Prefix of the values that say how dense a group of layers is beside the others.
DENSITY = "density."


def ranges(spec: StudySpec, layers: Sequence[LayerShape] = ()) -> dict[str, tuple[float, float]]:
    """The range of each searched value."""
    space = spec.search.space
    values = {
        "strength": space.strength or STRENGTH[spec.search.form],
        "pull_start": space.pull_start,
        "spread": space.spread,
        "learning_rate": space.learning_rate,
        "latent_learning_rate": space.latent_learning_rate,
        "frozen_learning_rate": space.frozen_learning_rate,
    }
    if spec.search.form == "sharpened":
        values["sharpness"] = space.sharpness
    if space.split:
        names = dict.fromkeys(group_of(layer.name, spec.search.groups) for layer in layers)
        values |= {DENSITY + name: (-space.split, space.split) for name in names}
    return values


def first_guess(spec: StudySpec, layers: Sequence[LayerShape] = ()) -> dict[str, float]:
    """The values that did well before, moved into the ranges of this study; zeros split evenly."""
    known = {
        "strength": 10.0 if spec.search.form == "paper" else 0.001,
        "pull_start": 0.0,
        "spread": 0.6,
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "frozen_learning_rate": 0.005,
        "sharpness": 100.0,
    }
    return {name: min(max(known.get(name, 0.0), low), high) for name, (low, high) in ranges(spec, layers).items()}


def first_guesses(
    spec: StudySpec, layers: Sequence[LayerShape], spared: Mapping[str, float] | None = None
) -> dict[int, dict[str, float]]:
    """Values for the first candidates: the known ones twice, for the target and the first point of the grid.

    Where splits are searched, the target's next two trials try those known to be good: by the layers' size, and by
    their sensitivity (`spared`, a weighting).
    """
    guess = first_guess(spec, layers)
    guesses = {0: guess, 1: guess}
    if spec.search.space.split and layers:
        weightings = [erdos_renyi_weighting(layers), *([spared] if spared else [])]
        for number, weighting in enumerate(weightings, start=1):
            guesses[2 * number] = guess | _densities(spec, weighting)
    return guesses


def _densities(spec: StudySpec, weighting: Mapping[str, float]) -> dict[str, float]:
    """A weighting as searched values: its mean set to 0, cut to the range."""
    mean = sum(weighting.values()) / len(weighting)
    widest = spec.search.space.split
    values = grouped({name: value - mean for name, value in weighting.items()}, spec.search.groups)
    return {DENSITY + group: min(max(value, -widest), widest) for group, value in values.items()}


def sample(
    trial: optuna.Trial, spec: StudySpec, sparsity: float, seed: int, layers: Sequence[LayerShape] = ()
) -> Candidate:
    """The candidate of one trial."""
    values = {
        name: trial.suggest_float(name, low, high, log=name != "pull_start" and not name.startswith(DENSITY))
        for name, (low, high) in ranges(spec, layers).items()
    }
    return candidate_of(values, spec, sparsity, seed, layers)


def candidate_of(
    values: dict[str, float], spec: StudySpec, sparsity: float, seed: int, layers: Sequence[LayerShape] = ()
) -> Candidate:
    """Values by name -> the candidate that they describe."""
    form = spec.search.form
    fixed: dict[str, Any] = {
        "form": form,
        "alpha": spec.search.alpha or default_alpha(form),
        "epochs": spec.train.epochs,
        "frozen_epochs": spec.train.frozen_epochs,
        "distillation": spec.train.distillation,
        "temperature": spec.train.temperature,
    }
    return Candidate(
        sparsity=sparsity,
        seed=seed,
        split=_split(values, spec, sparsity, layers),
        spread=values["spread"],
        strength=Ramp(first=0.0, last=values["strength"], start=values["pull_start"]),
        sharpness=sharpened(values.get("sharpness", 1.0)) if form == "sharpened" else 1.0,
        learning_rate=values["learning_rate"],
        latent_learning_rate=values["latent_learning_rate"],
        frozen_learning_rate=values["frozen_learning_rate"],
        **fixed,
    )


def _split(
    values: Mapping[str, float], spec: StudySpec, sparsity: float, layers: Sequence[LayerShape]
) -> dict[str, float]:
    if not spec.search.space.split:
        return {}
    weighting = {layer.name: values[DENSITY + group_of(layer.name, spec.search.groups)] for layer in layers}
    return split_of_weighting(layers, weighting, sparsity)
