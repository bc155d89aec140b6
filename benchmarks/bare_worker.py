"""Trains a network on random images in a minimal loop: python -m benchmarks.bare_worker NETWORK IMAGES EPOCHS

Started by memory.py; imports torch and nothing else of significant size. Prints the memory after the imports and the
peak since then, as JSON.
"""

import json
import sys
from dataclasses import dataclass

import torch
import torch._dynamo  # imported by every torch optimizer at its first step
from torch import Tensor
from torch.nn import functional as F

from benchmarks.resident import peak_bytes, resident_bytes
from sca_search.models import MODELS

# Repeated from the package, because importing its module would load more than a bare loop needs.
CLASSES, EVALUATION_BATCH = 10, 256


@dataclass(frozen=True)
class Workload:
    """A network and its training data: as many images as its data set has without the validation split."""

    shape: tuple[int, int, int]
    batch: int
    images: int


WORKLOADS = {"lenet": Workload((1, 28, 28), 64, 55_000), "resnet20": Workload((3, 32, 32), 128, 45_000)}


def random_images(shape: tuple[int, int, int], count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, *shape, generator=generator), torch.randint(CLASSES, (count,), generator=generator)


def main() -> None:
    name, count, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    workload = WORKLOADS[name]
    torch.set_num_threads(1)
    base = resident_bytes()
    (images, labels), (others, _) = (random_images(workload.shape, each) for each in (count, count // 10))
    model = MODELS[name](CLASSES, workload.shape, 0.0).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(epochs):
        for rows in torch.randperm(count).split(workload.batch):
            optimizer.zero_grad()
            F.cross_entropy(model.train()(images[rows]), labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            for batch in others.split(EVALUATION_BATCH):
                model.eval()(batch)
    print(json.dumps({"base": base, "peak": peak_bytes()}))


if __name__ == "__main__":
    main()
