"""Training: the task, the Lightning loop, losses, metrics, evaluation, checkpoints and sensitivity. Imported lazily."""

from typing import TYPE_CHECKING

from sca_search.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from sca_search.training.evaluate import score
    from sca_search.training.losses import loss_of
    from sca_search.training.metrics import metric_of
    from sca_search.training.sensitivity import measure_sensitivity
    from sca_search.training.task import Task, WarmStart
    from sca_search.training.train import train_candidate, train_dense

__all__ = [
    "Task",
    "WarmStart",
    "loss_of",
    "measure_sensitivity",
    "metric_of",
    "score",
    "train_candidate",
    "train_dense",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Task": "task",
        "WarmStart": "task",
        "loss_of": "losses",
        "measure_sensitivity": "sensitivity",
        "metric_of": "metrics",
        "score": "evaluate",
        "train_candidate": "train",
        "train_dense": "train",
    },
)
