"""Do ternary networks see what dense ones see? Mean feature maps of both beside each other, and linear CKA a layer.

The paper compares the mean map of every odd layer of two networks by eye. Beside the maps stands a figure:

    CKA(X, Y) = ‖Xᵀ Y‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖)

with a row an image and a column an activation, centred, and Frobenius norms: 1 where one layer's activations are the
other's up to rotation and scale, near 0 where they have nothing in common.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.data import Batch
from sca_search.models.layers import NORMALISATIONS, weight_layers

# Every second layer of a deep network, as the paper shows them; a shallow one has few enough to show all.
MOST_SHOWN_WHOLE = 8
SHOWN_IMAGES = 4
CKA_IMAGES = 512
LEAST_IMAGES = 8
# Activations of both networks are held at once; wide networks are compared on fewer images.
MEMORY_BYTES = 1 << 29
# Wider maps are averaged down: a page has no room for more, and the eye no need.
LARGEST_SIDE = 32


@dataclass(frozen=True)
class Maps:
    """Bytes of some images' maps, row by row, from the lowest value of each map (0) to its highest (255)."""

    height: int
    width: int
    pixels: tuple[str, ...]  # an image each, base64


@dataclass(frozen=True)
class LayerFeatures:
    """One layer of both networks; a fully connected one has no maps."""

    layer: str
    number: int  # among the weight layers, from 1
    ternary: bool
    cka: float
    dense_maps: Maps | None
    ternary_maps: Maps | None


@dataclass(frozen=True)
class Features:
    """What both networks make of the same validation images."""

    images: Maps
    labels: tuple[str, ...]
    compared: int  # images that CKA was taken over
    layers: tuple[LayerFeatures, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def compare_features(
    dense: nn.Module,
    ternary: nn.Module,
    batches: Iterable[Batch],
    name_of: Callable[[Tensor], str],
    ternary_layers: Sequence[str],
    memory_bytes: int = MEMORY_BYTES,
) -> Features:
    """Both networks on the first images of a split."""
    images, labels = _first(batches, CKA_IMAGES)
    shown = _shown_layers(dense, images)
    names = [name for _, name in shown]
    images = images[: _affordable(activations(dense, images[:1], names), memory_bytes)]
    seen = [activations(network, images, names) for network in (dense, ternary)]
    layers = tuple(
        LayerFeatures(
            name,
            number,
            name in ternary_layers,
            linear_cka(seen[0][name], seen[1][name]),
            _mean_maps(seen[0][name]),
            _mean_maps(seen[1][name]),
        )
        for number, name in shown
    )
    named = tuple(name_of(label) for label in labels[:SHOWN_IMAGES])
    return Features(_maps(images[:SHOWN_IMAGES].mean(1)), named, len(images), layers)


def _shown_layers(network: nn.Module, images: Tensor) -> list[tuple[int, str]]:
    """The weight layers to show, with their numbers in order of execution, from 1."""
    names = [layer.name for layer in weight_layers(network, images.shape[1:]) if layer.executed]
    return [(number, name) for number, name in enumerate(names, 1) if len(names) <= MOST_SHOWN_WHOLE or number % 2]


def _affordable(of_one_image: dict[str, Tensor], memory_bytes: int) -> int:
    """How many images' activations fit into memory, twice, as float32."""
    values = sum(activation.numel() for activation in of_one_image.values())
    return max(LEAST_IMAGES, memory_bytes // (2 * 4 * values))


def linear_cka(one: Tensor, other: Tensor) -> float:
    """The similarity of two layers' activations for the same images; 0 where one does not react to them at all."""
    grams = [_centred_gram(activation) for activation in (one, other)]
    norm = grams[0].norm() * grams[1].norm()
    return float((grams[0] * grams[1]).sum() / norm) if norm > 0 else 0.0


def _centred_gram(activation: Tensor) -> Tensor:
    """X Xᵀ of the centred activations: images by images, however many activations there are."""
    flat = activation.flatten(1).double()
    flat = flat - flat.mean(0)
    return flat @ flat.T


def activations(network: nn.Module, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """What each layer gives, behind its normalisation where it has one: trits have no scale before it."""
    modules = dict(network.named_modules())
    found: dict[str, Tensor] = {}
    owner: dict[int, str] = {}

    def take(name: str, output: Tensor) -> None:
        found[name] = output
        owner[id(output)] = name

    def follow(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if (name := owner.get(id(inputs[0]))) is not None and found[name] is inputs[0]:
            found[name] = output.clone()  # a ReLU in place would change it

    hooks = [modules[name].register_forward_hook(lambda *told, name=name: take(name, told[2])) for name in names]
    hooks += [module.register_forward_hook(follow) for module in modules.values() if isinstance(module, NORMALISATIONS)]
    try:
        network.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _first(batches: Iterable[Batch], count: int) -> tuple[Tensor, Tensor]:
    taken: list[tuple[Tensor, Tensor]] = []
    for images, labels, *_ in islice(batches, count):
        taken.append((images, labels))
        if sum(len(each) for each, _ in taken) >= count:
            break
    images, labels = (torch.cat(part)[:count] for part in zip(*taken, strict=True))
    return images, labels


def _mean_maps(activation: Tensor) -> Maps | None:
    return _maps(activation[:SHOWN_IMAGES].mean(1)) if activation.ndim == 4 else None


def _maps(images: Tensor) -> Maps:
    """Each map stretched to its own range: what is compared is where a network looks, not how loud it is."""
    images = images.float()
    side = max(images.shape[1:])
    if side > LARGEST_SIDE:
        height, width = (max(1, round(length * LARGEST_SIDE / side)) for length in images.shape[1:])
        images = F.adaptive_avg_pool2d(images[:, None], (height, width))[:, 0]
    low, high = images.amin((1, 2), keepdim=True), images.amax((1, 2), keepdim=True)
    levels = ((images - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    pixels = tuple(base64.b64encode(level.numpy().tobytes()).decode() for level in levels)
    return Maps(images.shape[1], images.shape[2], pixels)
