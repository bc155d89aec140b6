"""Recipes: one fixed candidate that is trained without a search, and its scaling to a shorter training.

    [recipe]
    epochs = 370                        # the full length; fewer `train.epochs` shorten everything in proportion
    alpha = 0.1
    strength_lambda = 5e-8
    lambda_steps = [[270, 50]]          # at an epoch of the full length, by a factor
    learning_rate = 0.005
    learning_rate_steps = [[120, 0.1], [270, 0.1]]
    initialization = "pretrained"

A study with a recipe has no goal: its trials are seeds of this one candidate, and sparsity results from rounding.

The paper trains for hundreds of epochs. A shorter run has the fraction q of its epochs, and the fraction r of its steps
(q times the fraction of training images used). Then

- learning rate and λ step at the same fractions of training: epoch e of the paper is q · e here;
- λ is multiplied by 1 / r, so that its sum over all steps, λ · steps, stays the same, and once more by 1 / q:
  the opposing gradient of the task decreases about as one over the epochs, and is still large at the end of a
  short run. It is not raised above 0.1, where it dominates;
- Θ is rescaled. Initial weights lie far below 0.5, the rounding threshold, and the paper gives them hundreds of
  epochs to grow. In a layer of root mean square w, Θ starts with w^r · 0.6^(1 - r).

At full length q and r are 1: the paper's own values, and Θ = atanh w.
"""

import math
from itertools import accumulate, pairwise
from operator import mul

from sca_search.config.candidate import START_SPREAD, Candidate, Constant, Schedule, Steps
from sca_search.config.study import RecipeSpec, StudySpec

# λ is not raised above this: on MNIST a hundredth of it already leaves next to nothing between the basins.
_MAX_LAMBDA = 0.1


def recipe_candidate(spec: StudySpec, seed: int) -> Candidate:
    """The only candidate of a study with a recipe, scaled to the study's number of epochs and images."""
    recipe, epochs, steps = _length_of(spec)
    is_rescaled = recipe.spread is None and steps < 1.0
    return Candidate(
        sparsity=0.0,  # not planned, and not made exact
        exact=False,
        form="paper" if recipe.tanh else "no-tanh",
        spread=START_SPREAD if is_rescaled else recipe.spread,
        rescaling=1.0 - steps if recipe.spread is None else 1.0,
        from_dense=recipe.initialization == "pretrained",
        alpha=Constant(value=recipe.alpha),
        strength=_scaled_lambda(recipe, 1.0 / (steps * min(1.0, epochs)), epochs),
        strength_is_lambda=True,
        learning_rate=recipe.learning_rate,
        latent_learning_rate=recipe.learning_rate,
        learning_rate_steps=tuple((epoch * epochs, factor) for epoch, factor in recipe.learning_rate_steps),
        epochs=spec.train.epochs,
        frozen_epochs=spec.train.frozen_epochs,
        frozen_learning_rate=recipe.learning_rate,
        seed=seed,
    )


def describe_scaling(spec: StudySpec) -> str:
    """A sentence that describes how the recipe was scaled to the length of the training."""
    recipe, epochs, steps = _length_of(spec)
    if steps == epochs == 1.0:
        return f"recipe at full length, {spec.train.epochs} epochs: the paper's own values"
    if steps == 1.0:
        images = _image_fraction(spec, recipe)
        less = f" of {images:.0%} of the images" if images < 1.0 else ""
        return (
            f"recipe stretched to {spec.train.epochs} epochs instead of {recipe.epochs}{less}: steps of rates and λ "
            "come at the same fractions of training, everything else is the paper's own"
        )
    candidate = recipe_candidate(spec, 0)
    first, last = (candidate.strength.at(epoch, candidate.epochs) for epoch in (0.0, float(candidate.epochs)))
    strength = f"{first:.3g}" if first == last else f"{first:.3g} at first and {last:.3g} at the end,"
    papers = f"{recipe.strength_lambda:g}"
    if recipe.lambda_steps:
        papers += f" and {recipe.strength_lambda * math.prod(by for _, by in recipe.lambda_steps):g}"
    start = f"{recipe.spread} in every layer"
    if recipe.spread is None:
        power = f"w^{steps:.2g} · {START_SPREAD:g}^{candidate.rescaling:.2g}"
        start = f"{power}, w being that of the layer's weights"
    return (
        f"recipe shortened to {steps:.2%} of its steps, {spec.train.epochs} of {recipe.epochs} epochs: "
        f"steps of rates and λ come at the same fractions of training, λ is {strength} instead of {papers}, and Θ "
        f"starts with a root mean square of {start}"
    )


def _length_of(spec: StudySpec) -> tuple[RecipeSpec, float, float]:
    """The recipe of a study, its fraction q of epochs, and its fraction r of steps."""
    if spec.recipe is None:
        raise ValueError("the study has no recipe")
    epochs = spec.train.epochs / spec.recipe.epochs
    return spec.recipe, epochs, min(1.0, epochs * _image_fraction(spec, spec.recipe))


def _image_fraction(spec: StudySpec, recipe: RecipeSpec) -> float:
    limit = spec.data.train_limit
    return 1.0 if limit is None or recipe.images is None else min(1.0, limit / recipe.images)


def _scaled_lambda(recipe: RecipeSpec, factor: float, fraction: float) -> Schedule:
    """λ times a factor, its steps moved; no value exceeds `_MAX_LAMBDA`, or the paper's own if that is larger."""
    raised = accumulate((by for _, by in recipe.lambda_steps), mul, initial=factor * recipe.strength_lambda)
    values = [min(value, max(value / factor, _MAX_LAMBDA)) for value in raised]
    steps = tuple(
        (epoch * fraction, by if before * by == after else after / before)
        for (epoch, by), (before, after) in zip(recipe.lambda_steps, pairwise(values), strict=True)
    )
    return Steps(value=values[0], factors=steps) if steps else Constant(value=values[0])
