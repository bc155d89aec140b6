"""Images per second of our training compared with a bare PyTorch loop, and the effect of each design choice.

    python -m benchmarks.throughput lenet-medium --data-dir DIR
    python -m benchmarks.throughput resnet20 --images 2560

The bare loop has the same network, batches, memory layout and optimizer, and nothing else: no learning rate schedule
and no monitoring of the loss. Ours is `fit` as a study calls it. All run interleaved in one process. Without --data-dir
the images are random, which does not affect the time. Two workers with one thread each are separate processes, each
with half of the images.
"""

import argparse
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader

from benchmarks.interleave import TimedTask, interleaved
from benchmarks.report import RESULTS, provenance, write_section
from benchmarks.throughput_report import VARIANTS, speeds_of, text_of
from sca_search.config.candidate import Candidate, Form
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.data import Split
from sca_search.data.dataset import assemble
from sca_search.models.prepare import PreparedNetwork, prepared
from sca_search.study.space import Space
from sca_search.ternary.methods.sca import Sca
from sca_search.training.fit import FitPlan, fit, layout
from sca_search.training.task import BY_NAME, Task

SPARSITY = 0.9
RATE = 1e-3
# By network: data set, image shape, batch size, and images per round (a few seconds).
NETWORKS = {
    "lenet": ("mnist", (1, 28, 28), 64, 3_200),
    "lenet-medium": ("mnist", (1, 28, 28), 64, 12_800),
    "resnet20": ("cifar10", (3, 32, 32), 128, 2_560),
}


@dataclass(frozen=True)
class Bench:
    """The network and images that all variants train."""

    spec: StudySpec
    network: PreparedNetwork
    split: Split
    batch: int
    threads: int

    def batches(self) -> Iterable[tuple[Tensor, ...]]:
        return self.split.batches(self.batch, seed=0)

    def bare(
        self,
        memory_format: torch.memory_format | None = None,
        fused: bool = True,
        batches: Iterable[tuple[Tensor, ...]] | None = None,
    ) -> TimedTask:
        """One epoch of the minimal loop."""
        model = self.network.make_model().train()
        model.to(memory_format=memory_format or layout(model))
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=fused)
        rows = batches or self.batches()

        def work() -> None:
            for images, labels in rows:
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()

        return work

    def bare_ternary(self, form: Form) -> TimedTask:
        """The same for the ternary network, by the plain formulas, at the end of its schedules."""
        candidate = self.candidate(form)
        end = float(candidate.epochs)
        model = self.network.make_model().train()
        alpha = 0.5
        softs = []
        for name in (choice.layer.name for choice in self.network.choices if choice.ternary):
            softs.append(_Soft(alpha, candidate.strength_of("", end) if form == "decoupled" else 0.0))
            parametrize.register_parametrization(model.get_submodule(name), "weight", softs[-1])
        model.to(memory_format=layout(model))
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

        def work() -> None:
            for images, labels in self.batches():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                if form == "paper":
                    loss = loss + 1e-9 * sum(((alpha - soft.last**2) * soft.last**2).sum() for soft in softs)
                loss.backward()
                optimizer.step()

        return work

    def dense(self) -> TimedTask:
        model = self.network.make_model()
        return lambda: fit(model, self.split.batches(self.batch, seed=0), FitPlan(1, RATE))

    def ternary(self, form: Form) -> TimedTask:
        """The first guess of a study for this form."""
        candidate = self.candidate(form)
        model = self.network.make_model()
        data = assemble("images", tuple("0123456789"), self.split, self.split, lambda: self.split, normalize=False)
        method = Sca(model, candidate, Task(data, self.network.make_model, self.network.choices, self.batch))
        plan = FitPlan(1, candidate.learning_rate, candidate.latent_learning_rate)
        return lambda: fit(model, self.split.batches(self.batch, seed=0), plan, method=method)

    def candidate(self, form: Form) -> Candidate:
        spec = self.spec.model_copy(update={"search": self.spec.search.model_copy(update={"form": form})})
        space = Space(spec)
        return space.candidate(space.first_guess(), SPARSITY, seed=0)

    def two_threads(self) -> TimedTask:
        work = self.bare()

        def with_two() -> None:
            torch.set_num_threads(2)
            try:
                work()
            finally:
                torch.set_num_threads(self.threads)

        return with_two

    def loaded(self) -> TimedTask:
        """Images through torch's DataLoader, converted and normalized one by one."""
        loader = DataLoader(_Pictures(self.split), batch_size=self.batch, shuffle=True)
        return self.bare(batches=loader)


class _Soft(nn.Module):
    """Θ to W by the formula, with the straight-through gradient after a flow; stores W for the regularizer."""

    last: Tensor

    def __init__(self, alpha: float, time: float) -> None:
        super().__init__()
        self.basin, self.time = alpha / 2, time

    def forward(self, latent: Tensor) -> Tensor:
        self.last = torch.tanh(latent)
        if self.time:
            square = self.last.detach() ** 2
            inverse = 1 + math.expm1(self.time) / self.basin * (self.basin - square)
            flowed = self.last / torch.maximum(inverse, square).sqrt()
            self.last = latent + (flowed - latent).detach()
        return self.last


@contextmanager
def _two_workers(arguments: argparse.Namespace) -> Iterator[Callable[[], TimedTask]]:
    """Two processes with one thread, which train the bare loop on half of the images each when signalled."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    workers = [
        context.Process(target=_half, args=(arguments, half, theirs), daemon=True)
        for half, (_, theirs) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()

    def make_ready() -> TimedTask:
        for ours, _ in pipes:
            ours.send("make ready")
        for ours, _ in pipes:
            ours.recv()
        return work

    def work() -> None:
        for ours, _ in pipes:
            ours.send("train")
        for ours, _ in pipes:
            ours.recv()

    try:
        yield make_ready
    finally:
        for worker in workers:
            worker.terminate()


def _half(arguments: argparse.Namespace, half: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    bench = _bench(arguments)
    images, labels = (part.chunk(2)[half] for part in (bench.split.images, bench.split.labels))
    mine = replace(bench, split=Split(images, labels))
    while True:
        pipe.recv()
        work = mine.bare()
        pipe.send("ready")
        pipe.recv()
        work()
        pipe.send("done")


class _Pictures(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A split like those of torchvision: bytes become a PIL image, then a tensor, then normalized."""

    def __init__(self, split: Split) -> None:
        from torchvision import transforms  # noqa: PLC0415 - `fit` has healed it by now

        lowest, highest = split.images.min(), split.images.max()
        shares = (split.images - lowest) / (highest - lowest)
        self.bytes = (255 * shares).byte().permute(0, 2, 3, 1).squeeze(-1).numpy()
        self.labels = split.labels.tolist()
        self.turn: Callable[[Image.Image], Tensor] = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize(0.5, 0.5)]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.turn(Image.fromarray(np.ascontiguousarray(self.bytes[row]))), self.labels[row]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    bench = _bench(arguments)
    with _two_workers(arguments) as two_workers:
        timings = interleaved(_works(bench, two_workers), arguments.rounds)
    images = "real images" if arguments.data_dir else "random images"
    heading = f"Throughput of training: {arguments.network}"
    text = f"## {heading}\n\n{text_of(speeds_of(timings, len(bench.split)), _setting(bench, images))}\n\n{provenance()}"
    print(text)
    write_section(RESULTS, f"throughput of {arguments.network}", text)


def _works(bench: Bench, two_workers: Callable[[], TimedTask]) -> dict[str, Callable[[], TimedTask]]:
    works = {
        "bare": bench.bare,
        "dense": bench.dense,
        "bare decoupled": lambda: bench.bare_ternary("decoupled"),
        "decoupled": lambda: bench.ternary("decoupled"),
        "bare paper": lambda: bench.bare_ternary("paper"),
        "paper": lambda: bench.ternary("paper"),
        "contiguous": lambda: bench.bare(memory_format=torch.contiguous_format),
        "loader": bench.loaded,
        "unfused": lambda: bench.bare(fused=False),
        "two threads": bench.two_threads,
        "two workers": two_workers,
    }
    assert works.keys() == VARIANTS
    return works


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--images", type=int, help="images per round")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="real images instead of random ones")
    return parser.parse_args()


def _bench(arguments: argparse.Namespace) -> Bench:
    data, shape, batch, images = NETWORKS[arguments.network]
    batch = arguments.batch or batch
    whole = max(1, (arguments.images or images) // batch) * batch  # no smaller last batch
    flags = {"model": arguments.network, "data": data, "target_sparsity": SPARSITY, "epochs": 1, "batch": batch}
    spec = resolve(None, {**flags, "data_dir": arguments.data_dir})
    split = _real(spec, whole) if arguments.data_dir else _random(shape, whole)
    return Bench(spec, prepared(BY_NAME.maker(spec, 10, shape), shape, 10, spec.model), split, batch, threads=1)


def _real(spec: StudySpec, images: int) -> Split:
    train = BY_NAME.load(spec).train
    assert isinstance(train, Split)
    return Split(train.images[:images].clone(), train.labels[:images].clone())


def _random(shape: tuple[int, ...], images: int) -> Split:
    generator = torch.Generator().manual_seed(0)
    return Split(torch.randn(images, *shape, generator=generator), torch.randint(10, (images,), generator=generator))


def _setting(bench: Bench, images: str) -> str:
    return f"{len(bench.split):,} {images} per round, batch size {bench.batch}"


if __name__ == "__main__":
    main()
