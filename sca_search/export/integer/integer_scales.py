"""How large the values of a model become, seen on training images: the scales of integer activations follow from it."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from sca_search.export.graph.records import INPUT, Floats, Graph
from sca_search.export.graph.torch_module import RecordNetwork

CALIBRATION_IMAGES = 512
_PORTION = 64


def largest_values(graph: Graph, images: Iterable[Floats]) -> dict[str, float]:
    """The largest absolute value of each record, and of the input, over batches of images as a user gives them."""
    network = RecordNetwork(graph)
    largest = dict.fromkeys([INPUT, *(record.name for record in graph.records)], 0.0)

    def see(name: str, value: Tensor) -> None:
        largest[name] = max(largest[name], float(value.abs().max()))

    for record, step in zip(graph.records, network.steps, strict=True):
        step.register_forward_hook(_hook(record.name, see))
    with torch.inference_mode():
        for batch in images:
            for part in torch.split(torch.from_numpy(batch), _PORTION):
                see(INPUT, (part - network.mean) / network.std)
                network(part)
    return largest


def _hook(name: str, see: Callable[[str, Tensor], None]) -> Callable[[nn.Module, object, Tensor], None]:
    return lambda _module, _inputs, value: see(name, value)
