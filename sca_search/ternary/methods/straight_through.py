"""The straight-through estimator at the quantile that gives each layer its planned sparsity.

    W = sign θ where |θ| > t, else 0,  t the planned quantile of |θ|;  ∂W/∂θ = 1

Not one of the paper's methods: the baseline at a chosen sparsity. Bengio, Léonard & Courville, Estimating or
Propagating Gradients Through Stochastic Neurons for Conditional Computation.
"""

from torch import nn

from sca_search.config.candidate import Candidate
from sca_search.config.schedule import Constant, Tracked
from sca_search.ternary.methods.base import MethodTask
from sca_search.ternary.methods.sca import Sca


class StraightThrough(Sca):
    """SCA's latents and tracked threshold, with an estimator instead of a gradient."""

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        fixed = {"form": "straight-through", "alpha": Tracked(), "strength": Constant(value=0.0)}
        super().__init__(model, candidate.model_copy(update=fixed), task)
