"""Splits of arrays in memory: inputs of any shape, resized where they are images, and targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sca_search.config.names import Kind
from sca_search.data.dataset import DataRequest, DataSet, assemble
from sca_search.data.splits import Split
from sca_search.data.targets import Rows, Values, carve_val, limit_rows, require_every_class, strata

# Images per step: the float copies of a step must not add up to a second copy of the set.
_STEP = 1024


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs and targets, which are valid; `where` is for messages.

    Inputs are uint8, which are scaled to 0..1, or float. Images are (N, H, W) or (N, H, W, C); with `channels_first`,
    inputs of any rank keep their layout.
    """

    where: str
    inputs: NDArray[Any]
    targets: Values
    kind: Kind = "classes"
    channels_first: bool = False

    def split(self, image_size: int | None = None, rows: Rows | None = None) -> Split:
        """The selected rows, all by default."""
        rows = np.arange(len(self.targets)) if rows is None else rows
        filled = torch.empty(len(rows), *self._tensor(rows[:1], image_size).shape[1:])
        for start in range(0, len(rows), _STEP):
            part = slice(start, start + _STEP)
            filled[part] = self._tensor(rows[part], image_size)
        return Split(filled, torch.from_numpy(self.targets[rows]))

    def _tensor(self, rows: Rows, image_size: int | None) -> Tensor:
        tensor = torch.from_numpy(self.inputs[rows].astype(np.float32))
        if self.inputs.dtype == np.uint8:
            tensor = tensor / 255
        if self.channels_first:
            return tensor
        tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
        if image_size is None or tuple(tensor.shape[2:]) == (image_size, image_size):
            return tensor
        return fit_size(tensor, image_size)


def data_of_arrays(
    name: str,
    classes: tuple[str, ...],
    train: Arrays,
    val: Arrays | None,
    read_test: Callable[[], Arrays],
    request: DataRequest,
) -> DataSet:
    """The data set; without a validation split, it is taken from training."""
    groups, size = strata(train.targets, train.kind), request.image_size
    rows, val_rows = np.arange(len(groups)), None
    if val is None:
        val_rows, rows = carve_val(groups, request.seed)
        if train.kind == "classes":
            require_every_class(train.where, train.targets[rows], classes)
    rows = rows[limit_rows(groups[rows], request.train_limit, request.seed)]
    splits = train.split(size, rows), (val or train).split(size, val_rows)
    return assemble(
        name, classes, *splits, lambda: read_test().split(size), kind=train.kind, normalize=request.normalize
    )


def fit_size(images: Tensor, size: int) -> Tensor:
    """Resize so that the shorter side is `size`, then crop the center square."""
    height, width = images.shape[2:]
    scale = size / min(height, width)
    resized = (max(size, round(height * scale)), max(size, round(width * scale)))
    images = F.interpolate(images, resized, mode="bilinear", align_corners=False, antialias=True)
    top, left = (resized[0] - size) // 2, (resized[1] - size) // 2
    return images[:, :, top : top + size, left : left + size]
