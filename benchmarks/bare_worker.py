"""Trains the paper's LeNet on random images by a loop as short as it can be: python bare_worker.py IMAGES EPOCHS

Started by memory.py; imports torch and nothing else of any size. Prints as JSON what was in memory after the imports,
and the most since.
"""

import json
import sys

import torch
from resident import peak_bytes, resident_bytes
from torch import nn
from torch.nn import functional as F


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * 7 * 7, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 10)),
    )


def random_images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 1, 28, 28, generator=generator), torch.randint(10, (count,), generator=generator)


def main() -> None:
    count, epochs = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    base = resident_bytes()
    (images, labels), (others, _) = random_images(count), random_images(count // 10)
    model = network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(epochs):
        for rows in torch.randperm(count).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model.train()(images[rows]), labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            for batch in others.split(256):
                model.eval()(batch)
    print(json.dumps({"base": base, "peak": peak_bytes()}))


if __name__ == "__main__":
    main()
