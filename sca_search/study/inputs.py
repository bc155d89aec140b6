"""Checksums of what a study starts from: all its commands and machines must have the same data and network.

data: inputs and targets of training and validation as they are read, of inputs that do not fit into memory a sample.
network: names and shapes of its tensors, and the source files of its classes and of the function that makes it, without
those of installed packages.
initial weights: the tensors that do not depend on the seed. Random ones may differ in their last bits between
processors.
"""

import contextlib
import inspect
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from sca_search.config.references import is_installed, load_object
from sca_search.config.study import StudySpec
from sca_search.data import checksum
from sca_search.training.task import Task


def inputs_of(spec: StudySpec, task: Task) -> dict[str, str]:
    """The checksum of each input; ModelError if the user's weights do not fit."""
    network, again = (_start(task, seed) for seed in (0, 1))
    first, second = network.state_dict(), again.state_dict()
    fixed = [value for name, value in first.items() if torch.equal(value, second[name])]
    return {
        "data": task.data.checksum,
        "network": _network_checksum(network, first, spec.references.get("model.name")),
        "initial weights": checksum(fixed),
    }


def _start(task: Task, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return task.start_model()


def _network_checksum(network: nn.Module, state: dict[str, Tensor], reference: str | None) -> str:
    found = zlib.crc32(repr([(key, tuple(value.shape)) for key, value in state.items()]).encode())
    for source in sorted(path.read_bytes() for path in set(_source_files(network, reference))):
        found = zlib.crc32(source, found)
    return f"{found:08x}"


def _source_files(network: nn.Module, reference: str | None) -> Iterator[Path]:
    """The user's files that define the network; a class of an interactive session has none."""
    makers = [load_object(reference, "model")] if reference else []
    for made in (*makers, *{type(module) for module in network.modules()}):
        with contextlib.suppress(OSError, TypeError):
            file = inspect.getsourcefile(made)  # type: ignore[arg-type]  # TypeError for an object without a file
            if file is not None and not is_installed(file):
                yield Path(file).resolve()
