"""Inputs as stored, in numpy arrays, to inputs as trained on: float32, channels first, images of the size asked for."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sca_search.data.splits import Split
from sca_search.data.stratify import Rows

# Images a step: the float copy of a step must not add up to a second copy of the set.
_STEP = 1024


def split_from_arrays(
    images: NDArray[Any],
    labels: NDArray[Any],
    rows: Rows | None = None,
    *,
    image_size: int | None = None,
    channels_first: bool = False,
) -> Split:
    """The chosen rows (all by default) of uint8 (then scaled to 0..1) or float inputs, and of targets.

    Images are (N, H, W) or (N, H, W, C); where `channels_first`, inputs of any rank stay as they are.
    """
    if rows is None:
        rows = np.arange(len(labels))

    def tensor(some: Rows) -> Tensor:
        values = _to_float(images[some])
        return values if channels_first else _to_images(values, image_size)

    filled = torch.empty(len(rows), *tensor(rows[:1]).shape[1:])
    for start in range(0, len(rows), _STEP):
        part = slice(start, start + _STEP)
        filled[part] = tensor(rows[part])
    return Split(filled, torch.from_numpy(labels[rows]))


def fit_size(images: Tensor, size: int) -> Tensor:
    """Resize so that the shorter side is `size`, then cut the centre square."""
    height, width = images.shape[2:]
    scale = size / min(height, width)
    resized = (max(size, round(height * scale)), max(size, round(width * scale)))
    images = F.interpolate(images, resized, mode="bilinear", align_corners=False, antialias=True)
    top, left = (resized[0] - size) // 2, (resized[1] - size) // 2
    return images[:, :, top : top + size, left : left + size]


def _to_float(given: NDArray[Any]) -> Tensor:
    tensor = torch.from_numpy(given.astype(np.float32))
    return tensor / 255 if given.dtype == np.uint8 else tensor


def _to_images(tensor: Tensor, image_size: int | None) -> Tensor:
    tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
    if image_size is None or tuple(tensor.shape[2:]) == (image_size, image_size):
        return tensor
    return fit_size(tensor, image_size)
