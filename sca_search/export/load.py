"""A packed file as a torch module, refused unless it reproduces its own test vectors."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from sca_search.errors import ExportError
from sca_search.export.graph.records import TestVectors
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.packed.format import read_packed

# What a file's own test vectors must be answered with, relative to the largest logit: float32 sums in another order
# stay below 1e-5, a wrong model does not come near.
_TOLERANCE = 1e-4


def load(path: str | Path) -> RecordNetwork:
    """A packed model as a torch module in evaluation mode.

    It takes images as they are (float32, a batch first), normalises them itself, and gives logits; `class_names`
    says what they stand for. A file is refused with ExportError unless it is whole and answers its own test vectors.
    """
    graph, vectors = read_packed(Path(path))
    network = RecordNetwork(graph)
    _require_answers(Path(path), network, vectors)
    return network


def _require_answers(path: Path, network: nn.Module, vectors: TestVectors) -> None:
    with torch.inference_mode():
        answers = network(torch.from_numpy(vectors.images)).numpy()
    largest = float(np.abs(vectors.logits).max())
    difference = float(np.abs(answers - vectors.logits).max())
    if not difference <= _TOLERANCE * largest:  # so that NaN is refused, too
        raise ExportError(f"{path} does not answer its own test vectors: the logits differ by {difference:.3g}")
