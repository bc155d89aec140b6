"""Similarity of the features of a dense and a ternary network: mean feature maps and linear CKA per layer.

The paper compares the mean map of every odd layer of two networks by eye. CKA is a number for it:

    CKA(X, Y) = ‖Xᵀ Y‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖)

with one row per image and one column per activation, centered, and Frobenius norms: 1 if the activations are equal up
to rotation and scale, near 0 if they are unrelated.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.data import Batch
from sca_search.models.layers import NORMALIZATIONS, weight_layers

# Deeper networks show every second layer, as the paper does.
MAX_LAYERS_SHOWN = 8
SHOWN_IMAGES = 4
CKA_IMAGES = 512
MIN_IMAGES = 8
# Activations of both networks are in memory at once; wide networks are compared on fewer images.
MEMORY_BYTES = 1 << 29
# Wider maps are downsampled for the page.
MAX_SIDE = 32


@dataclass(frozen=True)
class Maps:
    """Maps of some images as bytes, row by row, from the minimum of each map (0) to its maximum (255)."""

    height: int
    width: int
    pixels: tuple[str, ...]  # one per image, base64


@dataclass(frozen=True)
class LayerFeatures:
    """One layer of both networks; fully connected layers have no maps."""

    layer: str
    number: int  # among the weight layers, from 1
    ternary: bool
    cka: float
    dense_maps: Maps | None
    ternary_maps: Maps | None


@dataclass(frozen=True)
class Features:
    """Features of both networks on the same validation images."""

    images: Maps
    labels: tuple[str, ...]
    compared: int  # number of images for CKA
    layers: tuple[LayerFeatures, ...]


@torch.no_grad()
def compare_features(
    dense: nn.Module,
    ternary: nn.Module,
    batches: Iterable[Batch],
    name_of: Callable[[Tensor], str],
    ternary_layers: Sequence[str],
    memory_bytes: int = MEMORY_BYTES,
) -> Features:
    """Compare both networks on the first images of a split."""
    images, labels = _first(batches, CKA_IMAGES)
    executed = [layer.name for layer in weight_layers(dense, images.shape[1:]) if layer.executed]
    step = 1 if len(executed) <= MAX_LAYERS_SHOWN else 2
    names = executed[::step]
    values = sum(activation.numel() for activation in activations(dense, images[:1], names).values())
    images = images[: max(MIN_IMAGES, memory_bytes // (2 * 4 * values))]  # those of both networks, as float32
    ones, others = (activations(network, images, names) for network in (dense, ternary))
    layers = tuple(
        LayerFeatures(
            name,
            1 + step * index,
            name in ternary_layers,
            linear_cka(ones[name], others[name]),
            _mean_maps(ones[name]),
            _mean_maps(others[name]),
        )
        for index, name in enumerate(names)
    )
    named = tuple(name_of(label) for label in labels[:SHOWN_IMAGES])
    return Features(_maps(images[:SHOWN_IMAGES].mean(1)), named, len(images), layers)


def linear_cka(one: Tensor, other: Tensor) -> float:
    """Similarity of the activations of two layers for the same images; 0 if one of them is constant."""
    centered = [flat - flat.mean(0) for flat in (one.flatten(1).double(), other.flatten(1).double())]
    grams = [flat @ flat.T for flat in centered]  # X Xᵀ, images by images
    norm = grams[0].norm() * grams[1].norm()
    return float((grams[0] * grams[1]).sum() / norm) if norm > 0 else 0.0


def activations(network: nn.Module, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Output of each layer, after its normalization if it has one: before it, trits have no scale."""
    modules = dict(network.named_modules())
    found: dict[str, Tensor] = {}

    def follow(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        for name in [name for name, known in found.items() if known is inputs[0]]:
            found[name] = output.clone()  # an in-place ReLU would change it

    hooks = [
        modules[name].register_forward_hook(lambda _module, _inputs, output, name=name: found.update({name: output}))
        for name in names
    ]
    hooks += [module.register_forward_hook(follow) for module in modules.values() if isinstance(module, NORMALIZATIONS)]
    try:
        network.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _first(batches: Iterable[Batch], count: int) -> tuple[Tensor, Tensor]:
    parts: list[tuple[Tensor, ...]] = []
    for batch in batches:
        parts.append(batch[:2])
        if sum(len(images) for images, _ in parts) >= count:
            break
    images, labels = (torch.cat(part)[:count] for part in zip(*parts, strict=True))
    return images, labels


def _mean_maps(activation: Tensor) -> Maps | None:
    return _maps(activation[:SHOWN_IMAGES].mean(1)) if activation.ndim == 4 else None


def _maps(images: Tensor) -> Maps:
    """Each map scaled to its own range: locations are compared, not magnitudes."""
    images = images.float()
    side = max(images.shape[1:])
    if side > MAX_SIDE:
        height, width = (max(1, round(length * MAX_SIDE / side)) for length in images.shape[1:])
        images = F.adaptive_avg_pool2d(images[:, None], (height, width))[:, 0]
    low, high = images.amin((1, 2), keepdim=True), images.amax((1, 2), keepdim=True)
    levels = ((images - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    pixels = tuple(base64.b64encode(level.numpy().tobytes()).decode() for level in levels)
    return Maps(images.shape[1], images.shape[2], pixels)
