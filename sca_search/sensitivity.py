"""What rounding one layer costs: from the warm start, one layer at a time, nothing trained.

The layer's weights become trits at a sparsity, the others stay dense, BatchNorm statistics are re-estimated on a few
batches, and the validation loss is compared with the dense network's. It takes a few forward passes a layer and tells
which layers a split should spare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from sklearn.isotonic import IsotonicRegression
from torch import Tensor, nn

from sca_search.allocation import LayerShape, weighting_of_split
from sca_search.measure import EVALUATION_BATCH, reestimate_normalisation
from sca_search.prior import border
from sca_search.task import Task, WarmStart

GRID = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
# Statistics of a thousand images are within a few percent of those of all, far below the differences compared.
_BATCHES = 4
# Parts into which a layer's way from dense to its floor is cut when zeros are handed out.
_STRETCHES = 100


@dataclass(frozen=True)
class LayerCost:
    """What a layer at a sparsity costs the untrained network."""

    layer: str
    sparsity: float
    loss: float  # above the dense network's
    accuracy: float  # below the dense network's


def measure_sensitivity(task: Task, start: WarmStart) -> list[LayerCost]:
    """The cost of every ternary layer at every sparsity of the grid, up to the layer's floor."""
    costs = []
    for layer in task.layer_shapes:
        sparsest = 1.0 - layer.least_density
        grid = [sparsity for sparsity in GRID if sparsity < sparsest] + [sparsest]
        costs += [_cost(task, start, layer.name, sparsity) for sparsity in grid]
    return costs


def sparing_weighting(costs: Sequence[LayerCost], layers: Sequence[LayerShape], sparsity: float) -> dict[str, float]:
    """The weighting of the split that loses least by these costs.

    Each layer's loss is made convex in its zeros (slopes fitted to rise), so that handing zeros to the flattest
    stretch first, until the budget is used up, is the exact optimum.
    """
    stretches = sorted((slope, layer.name, zeros) for layer in layers for slope, zeros in _stretches(layer, costs))
    left = sparsity * sum(layer.weights for layer in layers)
    given = dict.fromkeys((layer.name for layer in layers), 0.0)
    for _, name, zeros in stretches:
        taken = min(left, zeros)
        given[name] += taken
        left -= taken
    return weighting_of_split(layers, {layer.name: given[layer.name] / layer.weights for layer in layers})


def _stretches(layer: LayerShape, costs: Sequence[LayerCost]) -> list[tuple[float, float]]:
    """(loss a zero, zeros) of short stretches of a layer's zeros, the losses a zero rising.

    Between two sparsities measured, the loss follows a monotone cubic in the logarithm of the density: straight lines
    would let every layer stop at the same points of the grid.
    """
    points = [(cost.sparsity, cost.loss) for cost in costs if cost.layer == layer.name]
    measured = np.array([-np.log(max(1.0 - sparsity, layer.least_density)) for sparsity, _ in points])
    losses = PchipInterpolator(measured, [loss for _, loss in points])
    depths = np.unique(np.concatenate([np.linspace(measured[0], measured[-1], _STRETCHES + 1), measured]))
    zeros = np.diff(-np.expm1(-depths)) * layer.weights
    slopes = np.diff(losses(depths)) / zeros
    rising = IsotonicRegression().fit_transform(np.arange(len(slopes)), slopes, sample_weight=zeros)
    return list(zip(rising.tolist(), zeros.tolist(), strict=True))


def _cost(task: Task, start: WarmStart, layer: str, sparsity: float) -> LayerCost:
    model = task.model_with(start.state)
    weight = model.get_submodule(layer).weight
    assert isinstance(weight, nn.Parameter)
    with torch.no_grad():
        weight.copy_(scaled_trits(weight, sparsity))
    reestimate_normalisation(model, islice(task.data.train.batches(EVALUATION_BATCH, seed=0), _BATCHES))
    score = task.validate(model)
    return LayerCost(layer, sparsity, score.loss - start.score.loss, start.score.accuracy - score.accuracy)


def scaled_trits(weight: Tensor, sparsity: float) -> Tensor:
    """Trits of a dense weight at a sparsity, times the mean magnitude of what stays.

    Behind a normalisation the factor changes nothing; elsewhere it keeps the layer's output at its size.
    """
    kept = weight.abs() > border(weight, sparsity)
    scale = weight.abs()[kept].mean() if bool(kept.any()) else torch.tensor(0.0)
    return torch.where(kept, weight.sign() * scale, 0.0)
