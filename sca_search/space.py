"""What a trial samples: Optuna's suggestions -> a Candidate, and the values known to be good that are tried first."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna

from sca_search.allocation import LayerShape, erdos_renyi_weighting, group_of, grouped, split_of_weighting
from sca_search.candidate import Candidate, default_alpha, sharpened
from sca_search.schedule import Constant, Ramp, Schedule, Steps, Tracked
from sca_search.spec import StudySpec

Range = tuple[float, float]
Values = Mapping[str, Any]

# Strength in units of the two gradients' ratio. In the paper's form the pull alone makes the network ternary and must
# be strong: below 3 it leaves weights between the peaks. Sharpened, it was tried on top (0.1 and 1) and never paid.
STRENGTH = (3.0, 1000.0)
# Where the paper's λ steps up, it does so by factors of up to 50.
STEP = 50.0
# Networks of more ternary layers than this share values by stage: each searched number needs trials of its own.
LAYERS_ON_THEIR_OWN = 6
# Prefixes of the values that a group of layers has of its own: how dense it is, how strongly it is pulled, how sharp
# it gets, beside the others.
DENSITY, PULL, SHARP = "density.", "pull.", "sharp."
_EVEN = ("pull_start", "hold_from", "rise")  # sampled evenly; everything else by its logarithm


def groups_of(spec: StudySpec, layers: Sequence[LayerShape]) -> dict[str, str]:
    """The group of each layer."""
    many = len(layers) > LAYERS_ON_THEIR_OWN
    kind = spec.search.groups or ("stage" if many else "layer")
    return {layer.name: group_of(layer.name, kind) for layer in layers}


def has_pull(spec: StudySpec) -> bool:
    """Whether the regularizer is at work: always in the paper's form, else only where a strength is given."""
    return spec.search.form == "paper" or (spec.search.form == "sharpened" and spec.search.space.strength is not None)


def ranges(spec: StudySpec, layers: Sequence[LayerShape] = ()) -> dict[str, Range]:
    """The range of each searched number."""
    space, form = spec.search.space, spec.search.form
    values = {
        "spread": space.spread,
        "learning_rate": space.learning_rate,
        "latent_learning_rate": space.latent_learning_rate,
        "frozen_learning_rate": space.frozen_learning_rate,
    }
    if has_pull(spec):
        values |= {"strength": space.strength or STRENGTH, "pull_start": space.pull_start}
    if form == "paper":
        values["hold_from"] = space.hold_from
    else:
        values["rise"] = space.rise
    if form == "sharpened":
        values |= {"sharpness": space.sharpness, "sharpness_first": space.sharpness_first}
    return values | _ranges_of_groups(spec, layers)


def _ranges_of_groups(spec: StudySpec, layers: Sequence[LayerShape]) -> dict[str, Range]:
    space = spec.search.space
    groups = list(dict.fromkeys(groups_of(spec, layers).values()))
    if len(groups) < 2:
        return {}  # one group beside itself
    own = {PULL: space.own * has_pull(spec), SHARP: space.own * (spec.search.form == "sharpened"), DENSITY: space.split}
    return {prefix + group: (-width, width) for prefix, width in own.items() if width for group in groups}


def choices(spec: StudySpec) -> dict[str, tuple[str, ...]]:
    """What is searched and is no number."""
    return {"growth": spec.search.space.growth} if has_pull(spec) else {}


def first_guess(spec: StudySpec, layers: Sequence[LayerShape] = ()) -> dict[str, Any]:
    """The values that did well before, moved into the ranges of this study; all layers alike."""
    known = {
        "strength": 100.0 if spec.search.form == "paper" else 0.001,
        "pull_start": 0.0,
        "hold_from": 0.5,
        "rise": 0.5,
        "sharpness": 1000.0,
        "sharpness_first": 2.0,
        "spread": 0.6,
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "frozen_learning_rate": 0.005,
    }
    numbers = {name: min(max(known.get(name, 0.0), low), high) for name, (low, high) in ranges(spec, layers).items()}
    return numbers | {name: options[0] for name, options in choices(spec).items()}


def first_guesses(
    spec: StudySpec, layers: Sequence[LayerShape], spared: Mapping[str, float] | None = None
) -> dict[int, dict[str, Any]]:
    """Values for the first candidates: the known ones twice, for the target and the first point of the grid.

    Where splits are searched, the target's next two trials try those known to be good: by the layers' size, and by
    their sensitivity (`spared`, a weighting).
    """
    guess = first_guess(spec, layers)
    guesses = {0: guess, 1: guess}
    if spec.search.space.split and layers:
        weightings = [erdos_renyi_weighting(layers), *([spared] if spared else [])]
        for number, weighting in enumerate(weightings, start=1):
            guesses[2 * number] = guess | densities_of(spec, layers, weighting)
    return guesses


def densities_of(spec: StudySpec, layers: Sequence[LayerShape], weighting: Mapping[str, float]) -> dict[str, float]:
    """A weighting as searched values: the mean of each group, their mean set to 0, cut to the range."""
    wanted = {name: ends for name, ends in ranges(spec, layers).items() if name.startswith(DENSITY)}
    by_group = grouped(weighting, groups_of(spec, layers))
    mean = sum(by_group.values()) / len(by_group)
    return {
        name: min(max(by_group[name.removeprefix(DENSITY)] - mean, low), high) for name, (low, high) in wanted.items()
    }


def sample(
    trial: optuna.Trial, spec: StudySpec, sparsity: float, seed: int, layers: Sequence[LayerShape] = ()
) -> Candidate:
    """The candidate of one trial."""
    numbers = {
        name: trial.suggest_float(name, low, high, log=is_logarithmic(name))
        for name, (low, high) in ranges(spec, layers).items()
    }
    others = {name: trial.suggest_categorical(name, options) for name, options in choices(spec).items()}
    return candidate_of(numbers | others, spec, sparsity, seed, layers)


def is_logarithmic(name: str) -> bool:
    """Whether a value is sampled by its logarithm; a group's own values are logarithms already."""
    return name not in _EVEN and not name.startswith((DENSITY, PULL, SHARP))


def candidate_of(
    values: Values, spec: StudySpec, sparsity: float, seed: int, layers: Sequence[LayerShape] = ()
) -> Candidate:
    """Values by name -> the candidate that they describe."""
    form = spec.search.form
    groups = groups_of(spec, layers)
    alpha = spec.search.alpha or default_alpha(form)
    if isinstance(alpha, Tracked) and "rise" in values:
        alpha = alpha.model_copy(update={"rise": values["rise"]})
    fixed: dict[str, Any] = {
        "form": form,
        "alpha": alpha,
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
        hold_from=values.get("hold_from", 1.0),
        strength=_strength(values, spec, 0.0),
        layer_strength=_of_layers(PULL, values, groups, lambda own: _strength(values, spec, own)),
        sharpness=_sharpness(values, 0.0),
        layer_sharpness=_of_layers(SHARP, values, groups, lambda own: _sharpness(values, own)),
        learning_rate=values["learning_rate"],
        latent_learning_rate=values["latent_learning_rate"],
        frozen_learning_rate=values["frozen_learning_rate"],
        **fixed,
    )


def _of_layers(
    prefix: str, values: Values, groups: Mapping[str, str], schedule: Callable[[float], Schedule]
) -> dict[str, Schedule]:
    """The schedules of the layers that have their own."""
    return {layer: schedule(values[prefix + group]) for layer, group in groups.items() if values.get(prefix + group)}


def _strength(values: Values, spec: StudySpec, own: float) -> Schedule:
    """λ's way to its strength: straight, by equal factors, or in one step as in the paper's recipes."""
    if "strength" not in values:
        return Constant(value=0.0)
    last, start = values["strength"] * _factor(own), values["pull_start"]
    if values["growth"] == "step":
        return Steps(value=last / STEP, factors=((start * spec.train.epochs, STEP),))
    if values["growth"] == "exponential":
        return Ramp(first=last / STEP, last=last, start=start, growth="exponential")
    return Ramp(first=0.0, last=last, start=start)


def _sharpness(values: Values, own: float) -> Schedule:
    if "sharpness" not in values:
        return Constant(value=1.0)
    return sharpened(values["sharpness"] * _factor(own), values["sharpness_first"])


def _factor(own: float) -> float:
    return math.exp(own)


def _split(values: Values, spec: StudySpec, sparsity: float, layers: Sequence[LayerShape]) -> dict[str, float]:
    groups = groups_of(spec, layers)
    if not any(name.startswith(DENSITY) for name in values):
        return {}
    return split_of_weighting(layers, {name: values[DENSITY + group] for name, group in groups.items()}, sparsity)
