"""What a trial samples: Optuna's suggestions -> a Candidate, and the values known to be good that are tried first."""

from typing import Any

import optuna

from sca_search.candidate import Candidate, default_alpha, sharpened
from sca_search.schedule import Ramp
from sca_search.spec import StudySpec

# Strength in units of the two gradients' ratio. In the paper's form the pull alone makes the network ternary and
# must be strong; sharpened, it only helps.
STRENGTH = {"paper": (1.0, 100.0), "sharpened": (0.0001, 0.1)}


def ranges(spec: StudySpec) -> dict[str, tuple[float, float]]:
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
    return values | {"sharpness": space.sharpness} if spec.search.form == "sharpened" else values


def first_guess(spec: StudySpec) -> dict[str, float]:
    """The values that did well before, moved into the ranges of this study."""
    known = {
        "strength": 10.0 if spec.search.form == "paper" else 0.001,
        "pull_start": 0.0,
        "spread": 0.6,
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "frozen_learning_rate": 0.005,
        "sharpness": 100.0,
    }
    return {name: min(max(known[name], low), high) for name, (low, high) in ranges(spec).items()}


def sample(trial: optuna.Trial, spec: StudySpec, sparsity: float, seed: int) -> Candidate:
    """The candidate of one trial."""
    values = {
        name: trial.suggest_float(name, low, high, log=name != "pull_start")
        for name, (low, high) in ranges(spec).items()
    }
    return candidate_of(values, spec, sparsity, seed)


def candidate_of(values: dict[str, float], spec: StudySpec, sparsity: float, seed: int) -> Candidate:
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
        spread=values["spread"],
        strength=Ramp(first=0.0, last=values["strength"], start=values["pull_start"]),
        sharpness=sharpened(values.get("sharpness", 1.0)) if form == "sharpened" else 1.0,
        learning_rate=values["learning_rate"],
        latent_learning_rate=values["latent_learning_rate"],
        frozen_learning_rate=values["frozen_learning_rate"],
        **fixed,
    )
