"""Size of exports, and time of export and verification.

Sizes depend only on shapes and the number of zeros, so the trits are random and not trained. On the digits the whole
command is timed after a short study; on VGG-S the export of a network with random trits, verified on noise instead of
images.

    python -m benchmarks.size
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.report import README, RESULTS, provenance, table, write_section
from sca_search.data.input_spec import InputSpec
from sca_search.export.folder import ExportOptions, export_network
from sca_search.export.graph.network import Images, Network
from sca_search.export.graph.records import TestVectors
from sca_search.export.model_card import Sizes, sizes
from sca_search.export.packed.format import packed_bytes
from sca_search.export.verify import choose_vectors
from sca_search.models import Shape, build_model
from sca_search.training.evaluate import reestimate_normalization

NETWORKS: dict[str, tuple[str, Shape]] = {
    "LeNet": ("lenet", (1, 28, 28)),
    "ResNet-20": ("resnet20", (3, 32, 32)),
    "VGG-S": ("vgg-s", (3, 32, 32)),
}
SPARSITIES = (0.0, 0.5, 0.9)
NOISE_IMAGES = 5_000  # size of CIFAR-10's validation split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-times", action="store_true", help="measure only sizes, which do not need an idle machine")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(name, sparsity) for name in NETWORKS for sparsity in SPARSITIES]
    times = "" if arguments.no_times else f"{_times()}\n\n"
    write_section(RESULTS, "size", f"## Size of an export\n\n{full_table(rows)}\n\n{times}{provenance()}")
    write_section(README, "size", f"{short_table(rows)}  \n{provenance()}")


def random_network(name: str, sparsity: float) -> Network:
    """A network with dense first and last layer, all others with exactly this fraction of zeros."""
    model_name, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build_model(model_name, num_classes=10, input_shape=shape)
    layers = [layer for layer, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)][1:-1]
    with torch.no_grad():
        for layer in layers:
            weight = model.get_parameter(f"{layer}.weight")
            trits = torch.ones(weight.numel())
            trits[: weight.numel() // 2] = -1
            trits = trits[torch.randperm(len(trits))]
            trits[torch.randperm(len(trits))[: round(sparsity * len(trits))]] = 0
            weight.copy_(trits.view_as(weight))
    reestimate_normalization(model, [(torch.randn(64, *shape), torch.zeros(64))])
    classes = tuple(str(number) for number in range(10))
    return Network(model, InputSpec(shape, classes), tuple(layers), images=_noise(shape))


def _noise(shape: Shape) -> Images:
    def batches() -> list[np.ndarray]:
        noise = np.random.default_rng(0)
        return [noise.standard_normal((250, *shape), dtype=np.float32) for _ in range(NOISE_IMAGES // 250)]

    return Images(NOISE_IMAGES, batches)


@dataclass(frozen=True)
class Row:
    """One network at one sparsity."""

    network: str
    sparsity: float
    size: Sizes
    file_bytes: int

    @property
    def ternary_cells(self) -> list[str]:
        size = self.size
        return [_kilobytes(count) for count in (size.fp32, size.int8, size.two_bit, size.packed, size.bound)]


def measured(name: str, sparsity: float) -> Row:
    """The sizes of a random network and of its packed file."""
    network = random_network(name, sparsity)
    graph = network.graph()
    images = choose_vectors(graph, network.images)
    logits = np.zeros((len(images), len(graph.class_names)), dtype=np.float32)
    row = Row(name, sparsity, sizes(graph), len(packed_bytes(graph, TestVectors(images, logits))))
    print(row, flush=True)
    return row


KINDS = ["float32", "int8", "2 bits", "packed", "bound"]


def full_table(rows: list[Row]) -> str:
    """The table for RESULTS.md."""
    headings = [
        "network",
        "sparsity",
        "weights",
        *KINDS,
        "over the bound",
        "whole model as float32",
        "model.safetensors",
    ]
    cells = [
        [
            row.network,
            f"{row.sparsity:g}",
            f"{row.size.int8:,}",
            *row.ternary_cells,
            f"{row.size.packed / row.size.bound - 1:.2%}",
            _kilobytes(row.size.fp32 + row.size.others),
            _kilobytes(row.file_bytes),
        ]
        for row in rows
    ]
    return (
        f"{table(headings, cells)}\n\nKB are 1,024 bytes. The columns up to *over the bound* count only ternary "
        "weights; the bound is H(s) + (1 - s) bits per weight. The last two count the whole model: with first and last "
        "layer, scales and biases in float32 and, in the file, the description and the test vectors."
    )


def short_table(rows: list[Row]) -> str:
    """The table for the README."""
    headings = ["network", "sparsity", *(f"ternary weights: {KINDS[0]}", *KINDS[1:]), "whole file"]
    cells = [[row.network, f"{row.sparsity:g}", *row.ternary_cells, _kilobytes(row.file_bytes)] for row in rows]
    return f"{table(headings, cells)}\n\nKB are 1,024 bytes; the bound is H(s) + (1 - s) bits per weight."


def _kilobytes(count: float) -> str:
    return f"{count / 1024:,.1f}"


def _times() -> str:
    headings = ["model", "what", "seconds", "CPU seconds", "verified on", "agrees"]
    return (
        f"{table(headings, [_digits_row(), _vgg_row()])}\n\nAll four formats, one thread, C compiled by the system's "
        "compiler; at most 15 s of validation images per format."
    )


class Stopwatch:
    """Wall-clock seconds, and CPU seconds including child processes."""

    def __init__(self) -> None:
        self._began = os.times()

    @property
    def cells(self) -> list[str]:
        now = os.times()
        busy = sum(now[:4]) - sum(self._began[:4])
        return [f"{now.elapsed - self._began.elapsed:.1f}", f"{busy:.1f}"]


def _digits_row() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sca_search"]
        short = ["--trials", "1", "--refits", "0", "--epochs", "2", "--dense-epochs", "4", "--threads", "1"]
        subprocess.run([*command, "--name", "d", *short], cwd=folder, check=True, capture_output=True)
        watch = Stopwatch()
        done = subprocess.run([*command, "export", "runs/d"], cwd=folder, check=False, capture_output=True)
        times = watch.cells
    agrees = "yes" if done.returncode == 0 else "NO"
    return ["digits, LeNet small", "the whole command", *times, "270 validation images", agrees]


def _vgg_row() -> list[str]:
    network = random_network("VGG-S", 0.5)
    with tempfile.TemporaryDirectory() as folder:
        watch = Stopwatch()
        exported = export_network(Path(folder) / "vgg", network, ExportOptions(say=print))
        times = watch.cells
    checks = exported.verification.checks
    for check in checks:
        print(check)
    compared = ", ".join(
        f"{check.file} {check.what.split(' validation')[0]}" for check in checks if "validation images" in check.what
    )
    agrees = "yes" if exported.verification.holds else "NO"
    return ["VGG-S, s = 0.5", "export and verify", *times, f"noise: {compared}", agrees]


if __name__ == "__main__":
    main()
