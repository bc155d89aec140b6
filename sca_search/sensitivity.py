"""What rounding one layer costs: from the warm start, one layer at a time, nothing trained.

The layer's weights become trits at a sparsity, the others stay dense, BatchNorm statistics are re-estimated on a few
batches, and the validation loss is compared with the dense network's. It takes a few forward passes a layer and tells
which layers a split should spare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from sca_search.measure import EVALUATION_BATCH, reestimate_normalisation
from sca_search.prior import border
from sca_search.task import Task, WarmStart

GRID = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
# Statistics of a few hundred images are within a few percent of those of all, which is far below the losses compared.
_BATCHES = 4


@dataclass(frozen=True)
class LayerCost:
    """What a layer at a sparsity costs the untrained network."""

    layer: str
    sparsity: float
    loss: float  # above the dense network's
    accuracy: float  # below the dense network's


def measure_sensitivity(task: Task, start: WarmStart, grid: Sequence[float] = GRID) -> list[LayerCost]:
    """The cost of every ternary layer at every sparsity of the grid."""
    return [_cost(task, start, layer, sparsity) for layer in task.ternary_layers for sparsity in grid]


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
