"""The paper's own figures, for reference: share of zeros and test accuracy of SCA, by data set and network.

Tables 2, 6 and 7. They are test accuracies after 200 epochs and more; a study's own are on its validation split.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperFigures:
    """Points (sparsity, accuracy) where the paper varied α, and the accuracy that it leads with."""

    points: tuple[tuple[float, float], ...]
    accuracy: float


_MNIST = """
0.008 99.47  0.096 99.48  2.89 99.45  29.69 99.56  61.31 99.47  99.63 99.49  99.89 99.36  99.97 60.9
0.21 99.53  0.48 99.56  3.25 99.40  11.00 99.48  15.15 99.50  43.39 99.50  93.94 99.40  97.44 99.42
11.48 99.39  12.65 99.53  13.41 99.50  18.30 99.47  25.86 99.55  33.46 99.56  51.99 99.44  67.21 99.41
"""
_VGG_S = """
0.0143 92.77  0.099 92.66  1.001 92.42  2.411 92.83  6.278 92.68  29.17 92.61  79.65 93.23  93.31 92.36  97.21 91.11
0.29 93.38  0.32 93.25  1.58 93.14  3.91 93.41  5.38 93.00  8.56 93.29  33.92 93.15  70.28 93.36  85.77 92.75
3.02 93.05  3.05 92.90  4.34 92.97  7.10 92.96  11.60 92.94  12.89 93.05  22.62 92.63  40.04 93.38  59.35 92.67
"""


def _pairs(table: str) -> tuple[tuple[float, float], ...]:
    numbers = [float(number) / 100 for number in table.split()]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


PAPER = {
    ("mnist", "lenet"): PaperFigures(_pairs(_MNIST), 0.9956),
    ("cifar10", "vgg-s"): PaperFigures(_pairs(_VGG_S), 0.9341),
    ("cifar10", "resnet20"): PaperFigures((), 0.9128),
    ("cifar10", "vgg-variate"): PaperFigures((), 0.9275),
}


def paper_figures(data: str, model: str) -> PaperFigures | None:
    """Those of the same network on the same data; others could not be compared."""
    return PAPER.get((data, model))
