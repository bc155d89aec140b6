"""Layer sensitivity: the increase of the validation loss when only one layer is ternarized, without retraining.

The layer's weights become trits at a sparsity, the others stay dense, BatchNorm statistics are re-estimated on a few
batches, and the validation loss is compared with that of the dense network. It takes a few forward passes per layer and
shows which layers should have fewer zeros. For deep networks fewer images and sparsities are measured, so that it stays
a small fraction of a study.
"""

import math
from collections.abc import Callable
from itertools import islice

from torch import Tensor, nn

from sca_search.ternary.allocation import LayerCost
from sca_search.ternary.parametrize import trits_at
from sca_search.ternary.prior import border
from sca_search.training.evaluate import EVALUATION_BATCH, Score, reestimate_normalization
from sca_search.training.fit import layout
from sca_search.training.task import Task, WarmStart

GRID = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
COARSE_GRID = (0.0, 0.8, 0.95, 0.99)
# Two thousand images give statistics and losses within a few percent, far below the differences compared.
_BATCHES = 8


def measure_sensitivity(
    task: Task,
    start: WarmStart,
    most_images: float = math.inf,
    on_layer: Callable[[int, int], None] = lambda _layer, _layers: None,
) -> list[LayerCost]:
    """The cost of every ternary layer at every sparsity of the grid, up to the layer's floor.

    About `most_images` are evaluated, but at least one batch each time and four sparsities per layer. `on_layer` is
    called with the number of layers done and their total.
    """
    layers = task.layer_shapes
    a_batch = 2 * EVALUATION_BATCH  # for the statistics, and for the loss
    grid = GRID if most_images >= a_batch * len(layers) * len(GRID) else COARSE_GRID
    batches = max(1, math.floor(min(_BATCHES, most_images / (a_batch * len(layers) * len(grid)))))
    model = task.model_with(start.state)  # one for all: building a deep network takes longer than evaluating it
    dense = _score(task, model, batches)
    costs = []
    for number, layer in enumerate(layers, start=1):
        weight = model.get_parameter(f"{layer.name}.weight").data
        original = weight.clone()
        for sparsity in (sparsity for sparsity in grid if sparsity <= 1.0 - layer.least_density):
            weight.copy_(scaled_trits(original, sparsity))
            rounded = _score(task, model, batches)
            cost = LayerCost(layer.name, sparsity, rounded.loss - dense.loss, dense.accuracy - rounded.accuracy)
            costs.append(cost)
        weight.copy_(original)
        on_layer(number, len(layers))
    return costs


def _score(task: Task, model: nn.Module, batches: int) -> Score:
    model.to(memory_format=layout(model))  # type: ignore[call-overload]
    reestimate_normalization(model, islice(task.data.training.batches(EVALUATION_BATCH, seed=0), batches))
    # Batches of a long split are shuffled: its first ones might be all of one class.
    seed = 0 if len(task.data.val) > batches * EVALUATION_BATCH else None
    return task.score(model, islice(task.data.val.batches(EVALUATION_BATCH, seed=seed), batches))


def scaled_trits(weight: Tensor, sparsity: float) -> Tensor:
    """Trits of a dense weight at a sparsity, times the mean magnitude of the non-zeros.

    Before a normalization the factor changes nothing; elsewhere it preserves the magnitude of the layer's output.
    """
    trits = trits_at(weight, border(weight, sparsity))
    return trits * weight.abs()[trits != 0].mean() if bool(trits.any()) else trits
