"""A recipe as a candidate, and the rule by which it is shortened.

The paper trains for hundreds of epochs. A run of fewer has the share q of its epochs, and the share r of its steps (q
times the share of the training images that is used). Then

- learning rate and λ step at the same shares of the training: an epoch e of the paper's is q · e here;
- λ is multiplied by 1 / r, so that the pull's sum over all steps, λ · steps, stays what it was, and once more by 1 / q:
  what it pulls against, the task's gradient, fades about as one over the epochs, and is still large at the end of a
  short run. It is not raised above 0.1, where it decides alone;
- Θ is rescaled. Weights as they are initialised lie far below 0.5, the border of rounding, and the paper gives them
  hundreds of epochs to grow. In a layer of the root mean square w, Θ starts with w^r · 0.6^(1 - r).

At full length q and r are 1: the paper's own values, and Θ = atanh w.
"""

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from sca_search.candidate import Candidate
from sca_search.recipe import EpochFactors, RecipeSpec
from sca_search.schedule import Constant, Schedule, Steps
from sca_search.spec import StudySpec

# The spread of Θ at which both basins hold many weights, for α between 0.01 and 1.
SPREAD = 0.6
# λ is not raised above this: on MNIST a hundredth of it already leaves next to nothing between the basins.
STRONGEST = 0.1


@dataclass(frozen=True)
class Shortened:
    """What a recipe's length changes."""

    epochs_share: float  # q
    steps_share: float  # r
    strength: Schedule  # λ
    learning_rate_steps: EpochFactors
    spread: float | None
    rescaling: float


def shortened(spec: StudySpec) -> Shortened:
    """The recipe of a study at the length that the study has."""
    recipe = _recipe_of(spec)
    epochs = spec.train.epochs / recipe.epochs
    steps = min(1.0, epochs * _share_of_images(spec, recipe))
    return Shortened(
        epochs_share=epochs,
        steps_share=steps,
        strength=_raised(recipe, 1.0 / (steps * min(1.0, epochs)), epochs),
        learning_rate_steps=_moved(recipe.learning_rate_steps, epochs),
        spread=recipe.spread if recipe.spread is not None or steps == 1.0 else SPREAD,
        rescaling=1.0 if recipe.spread is not None else 1.0 - steps,
    )


def recipe_candidate(spec: StudySpec, seed: int) -> Candidate:
    """The one point of a study with a recipe."""
    recipe, now = _recipe_of(spec), shortened(spec)
    return Candidate(
        sparsity=0.0,  # nothing is planned, and nothing is counted out
        exact=False,
        form="paper" if recipe.tanh else "no-tanh",
        spread=now.spread,
        rescaling=now.rescaling,
        from_dense=recipe.initialisation == "pretrained",
        alpha=Constant(value=recipe.alpha),
        strength=now.strength,
        strength_is_lambda=True,
        sharpness=Constant(value=1.0),
        learning_rate=recipe.learning_rate,
        latent_learning_rate=recipe.learning_rate,
        learning_rate_steps=now.learning_rate_steps,
        epochs=spec.train.epochs,
        frozen_epochs=spec.train.frozen_epochs,
        frozen_learning_rate=recipe.learning_rate,
        seed=seed,
    )


def told(spec: StudySpec) -> str:
    """In words what a recipe's length changes."""
    recipe, now = _recipe_of(spec), shortened(spec)
    if now.steps_share == 1.0:
        if now.epochs_share == 1.0:
            return f"recipe at full length, {spec.train.epochs} epochs: the paper's own values"
        images = _share_of_images(spec, recipe)
        less = f" of {images:.0%} of the images" if images < 1.0 else ""
        return (
            f"recipe stretched to {spec.train.epochs} epochs instead of {recipe.epochs}{less}: steps of rates and λ "
            "come at the same shares, all else is the paper's own"
        )
    first, last = (now.strength.at(epoch, spec.train.epochs) for epoch in (0.0, float(spec.train.epochs)))
    strength = f"{first:.3g}" if first == last else f"{first:.3g} at first and {last:.3g} in the end,"
    papers = f"{recipe.strength_lambda:g}"
    if recipe.lambda_steps:
        papers += f" and {recipe.strength_lambda * math.prod(by for _, by in recipe.lambda_steps):g}"
    start = f"{recipe.spread} in every layer"
    if recipe.spread is None:
        start = f"w^{now.steps_share:.2g} · {SPREAD:g}^{now.rescaling:.2g}, w being that of the layer's weights"
    return (
        f"recipe shortened to {now.steps_share:.2%} of its steps, {spec.train.epochs} of {recipe.epochs} epochs: steps "
        f"of rates and λ come at the same shares, λ is {strength} instead of {papers}, and Θ "
        f"starts with a root mean square of {start}"
    )


def _raised(recipe: RecipeSpec, factor: float, share: float) -> Schedule:
    """λ times a factor, its steps moved; none of its values is above `STRONGEST`, or the paper's own if that is."""
    raised = accumulate((by for _, by in recipe.lambda_steps), mul, initial=factor * recipe.strength_lambda)
    values = [min(value, max(value / factor, STRONGEST)) for value in raised]
    steps = tuple(
        (epoch * share, by if before * by == after else after / before)
        for (epoch, by), (before, after) in zip(recipe.lambda_steps, pairwise(values), strict=True)
    )
    return Steps(value=values[0], factors=steps) if steps else Constant(value=values[0])


def _recipe_of(spec: StudySpec) -> RecipeSpec:
    if spec.recipe is None:
        raise ValueError("a study without a recipe has nothing to shorten")
    return spec.recipe


def _share_of_images(spec: StudySpec, recipe: RecipeSpec) -> float:
    limit = spec.data.train_limit
    return 1.0 if limit is None or recipe.images is None else min(1.0, limit / recipe.images)


def _moved(steps: EpochFactors, share: float) -> EpochFactors:
    return tuple((epoch * share, factor) for epoch, factor in steps)
