"""The names that a study may use: data sets, networks, methods, losses and metrics. Needs no torch.

Registries, shell completion and help texts all read these lists.
"""

from dataclasses import dataclass
from typing import Literal

from sca_search.config.metrics import METRIC_TABLE

# Data sets with their loaders, module.function in sca_search.data. A name that ends in a colon is followed by a path.
DATA = {
    "digits": "digits.load_digits",
    "mnist": "archives.load_archive",
    "cifar10": "archives.load_archive",
    "cifar100": "archives.load_archive",
    "tiny-imagenet": "imagenet.load_imagenet",
    "imagenet": "imagenet.load_imagenet",
    "folder:": "image_folder.load_folder",
    "npz:": "npz.load_npz",
    "hf-disk:": "hf_disk.load_hf_disk",
}
MODEL_PREFIXES = ("torchvision:", "timm:")  # followed by the name of a network of that package
MODELS = ("lenet-small", "lenet-medium", "lenet", "vgg-s", "vgg-variate", "resnet20", "resnet18", "alexnet")
# The keys of a study that may refer to user code, and the prefixes of names that do not.
REFERENCE_KEYS: dict[str, tuple[str, ...]] = {
    "data.name": tuple(name for name in DATA if name.endswith(":")),
    "model.name": MODEL_PREFIXES,
    "train.loss": (),
    "train.metric": (),
}
Augmentation = Literal["none", "crop-flip", "scale-aspect"]

Kind = Literal["classes", "multi-label", "regression"]  # of a task
# Losses and metrics by kind; the first of each kind is the default.
LOSSES = {
    "classes": ("cross-entropy", "balanced-cross-entropy"),
    "multi-label": ("binary-cross-entropy",),
    "regression": ("mse", "mae", "huber"),
}
METRICS = {
    kind: tuple(name for name, info in METRIC_TABLE.items() if kind in info.kinds)
    for kind in ("classes", "multi-label", "regression")
}
ACCURACY = "accuracy"

Levels = Literal["{-1,0,+1}", "{-1,+1}", "{-a,0,+a}", "{-a,+a}", "{-a,0,+b}", "float"]
SCA, STRAIGHT_THROUGH, PRUNING = "sca", "straight-through", "pruning"


@dataclass(frozen=True)
class MethodName:
    """The properties of a method that are needed before torch is loaded.

    A method that does not plan its sparsity keeps the one that training gives. A method with a strength has a factor λ,
    mostly of a term of the loss, which a study searches.
    """

    weights: Levels
    place: str  # module.Class in sca_search.ternary.methods
    plans_sparsity: bool = False
    strength: tuple[float, float, float] | None = None  # dimensionless: lowest, highest, first value tried


METHODS = {
    SCA: MethodName("{-1,0,+1}", "sca.Sca", plans_sparsity=True),
    STRAIGHT_THROUGH: MethodName("{-1,0,+1}", "sca.Sca", plans_sparsity=True),
    "tang": MethodName("{-1,0,+1}", "regularized.Tang", strength=(0.001, 10.0, 0.03)),
    "lr-net": MethodName("{-1,0,+1}", "random_weights.LrNet"),
    "twn": MethodName("{-a,0,+a}", "thresholds.Twn"),
    "bnn-plus-l1": MethodName("{-a,0,+a}", "regularized.BnnPlusL1", strength=(0.001, 10.0, 0.03)),
    "bnn-plus-l2": MethodName("{-a,0,+a}", "regularized.BnnPlusL2", strength=(0.001, 10.0, 0.03)),
    "inq": MethodName("{-a,0,+a}", "incremental.Inq"),
    "elb": MethodName("{-a,0,+a}", "regularized.Elb", strength=(0.1, 100.0, 3.0)),
    "elq": MethodName("{-a,0,+a}", "incremental.Elq", strength=(0.01, 10.0, 0.3)),
    "parq": MethodName("{-a,0,+a}", "proximal.Parq"),
    "ttq": MethodName("{-a,0,+b}", "thresholds.Ttq", plans_sparsity=True),
    "ec2t": MethodName("{-a,0,+b}", "thresholds.Ec2t", strength=(0.02, 0.5, 0.15)),
    "binary-connect": MethodName("{-1,+1}", "binary.BinaryConnect"),
    "bayes-binn": MethodName("{-1,+1}", "random_weights.BayesBinn"),
    "bwn": MethodName("{-a,+a}", "binary.Bwn"),
    "dorefa": MethodName("{-a,+a}", "binary.Dorefa"),
    PRUNING: MethodName("float", "pruning.Pruning", plans_sparsity=True),
    "full-precision": MethodName("float", "base.FullPrecision"),
}


def is_fraction(metric: str) -> bool:
    """Whether a metric lies between 0 and 1 and is shown in percent."""
    return metric in METRIC_TABLE and METRIC_TABLE[metric].is_fraction


def at_most_one(metric: str | None) -> bool:
    """Whether 1 is the best possible value. None stands for the default of a kind; all of these are."""
    return metric is None or (metric in METRIC_TABLE and METRIC_TABLE[metric].at_most_one)


def short_name(reference: str) -> str:
    """The displayed name: of a user's function, the part after the colon."""
    return reference.rpartition(":")[2]


def format_metric(metric: str, value: float) -> str:
    """A value with its unit: fractions in percent, others unchanged."""
    return f"{value:.2%}" if is_fraction(metric) else f"{value:.5g}"


def format_spread(metric: str, value: float) -> str:
    """A difference of two values; two significant digits if the metric has its own unit."""
    return f"{value:.2%}" if is_fraction(metric) else f"{value:.2g}"


def metric_scale(metric: str, level: float) -> float:
    """The scale by which a difference of values is small or large.

    1 for fractions and r2; for a metric with its own unit, the magnitude of an observed value.
    """
    return 1.0 if at_most_one(metric) else abs(level) or 1.0
