"""Opens the formats of an export folder: a function that runs each, and the zeros counted in the file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sca_search.errors import ExportError, ScaError
from sca_search.export.c.compiler import PORTABLE, find_compiler, require_compiler, run_program
from sca_search.export.c.count_zeros import count_zeros_c
from sca_search.export.graph.agreement import Run
from sca_search.export.graph.network import Images, Zeros
from sca_search.export.graph.records import Floats, TestVectors
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.graph.trace import record_name
from sca_search.export.layout import FILES, ONNX, PACKED, PROGRAM, STATE, C
from sca_search.export.onnx import onnxruntime_missing
from sca_search.export.packed.format import read_packed
from sca_search.export.state_dict import count_zeros


@dataclass(frozen=True)
class Check:
    """One line of the table; `holds` is None if something could not be checked, which is not a failure."""

    file: str
    what: str
    found: str
    holds: bool | None


@dataclass
class Opened:
    """The formats that could be opened, and checks that report the others."""

    scratch: Path  # for compiled programs
    written_here: bool  # a .pt2 is loaded only by the process that wrote it
    runs: dict[str, Run] = field(default_factory=dict)
    zeros: dict[str, Zeros] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def not_run(self, file: str, why: str) -> None:
        self.checks.append(Check(file, "not run", why, None))

    @contextmanager
    def failures_of(self, file: str) -> Iterator[None]:
        """A format that cannot be opened fails; the others are still checked."""
        try:
            yield
        except ScaError as error:
            self.checks.append(Check(file, "opened", str(error), False))


@dataclass(frozen=True, eq=False)
class Reference:
    """The reference that the files of an export are compared with."""

    vectors: TestVectors
    claim: Zeros
    network: nn.Module | None  # takes images before normalization; None: there are only test vectors
    described: str
    images: Images | None = None
    no_images: str = "there is none"
    state_network: nn.Module | None = None  # the original architecture with normalization and state
    files: tuple[str, ...] = FILES  # the only ones to open
    exact: bool = False  # whether logits must be equal bit for bit
    original: nn.Module | None = None  # another network, whose classes and accuracy are reported as well
    has_classes: bool = True  # otherwise only values are compared


def open_folder(folder: Path, reference: Reference, scratch: Path, *, written_here: bool) -> Opened:
    """Opens every format in the folder that is compared with the reference."""
    opened = Opened(scratch, written_here)
    openers = {PACKED: _open_packed, C: _open_c, ONNX: _open_onnx, PROGRAM: _open_program, STATE: _open_state}
    for file, opener in openers.items():
        if file in reference.files and (folder / file).exists():
            with opened.failures_of(file):
                opener(folder / file, reference, opened)
    return opened


def torch_run(network: nn.Module, dtype: torch.dtype = torch.float32) -> Run:
    """A module as a function of numpy arrays."""

    def run(images: Floats) -> NDArray[Any]:
        with torch.inference_mode():
            answers: NDArray[Any] = network(torch.from_numpy(np.array(images)).to(dtype)).numpy()
        return answers

    return run


def _open_packed(path: Path, _reference: Reference, opened: Opened) -> None:
    graph, _ = read_packed(path)
    opened.zeros[PACKED] = graph.zeros
    opened.runs[PACKED] = torch_run(RecordNetwork(graph))


def _open_c(path: Path, reference: Reference, opened: Opened) -> None:
    opened.zeros[C] = count_zeros_c(path.parent)
    if find_compiler() is None:
        opened.not_run(C, "there is no C compiler on this machine")
        return
    opened.runs[C] = _compiled(path.parent, opened.scratch, reference.vectors.logits.shape[1])
    opened.checks.append(Check(C, "make check", "its self-test passes", True))


def _compiled(source: Path, scratch: Path, classes: int) -> Run:
    """The compiled example, after its self-test has passed.

    The example is built for this machine and the self-test for any, as `make check` builds it, so that both the fast
    and the portable code are tested.
    """
    compiler = require_compiler()
    model, check = scratch / "model", scratch / "check-model"
    for program, example, flags in ((model, "main.c", compiler.native()), (check, "check.c", PORTABLE)):
        compiler.run([*flags, "-o", str(program), str(source / example), str(source / "model.c"), "-lm"])
    run_program([str(check)])

    def run(images: Floats) -> Floats:
        output = run_program([str(model)], np.ascontiguousarray(images, dtype=np.float32).tobytes())
        logits = np.frombuffer(output, dtype=np.float32)
        if logits.size != len(images) * classes:
            raise ExportError(f"the C program printed {logits.size} logits for {len(images)} images")
        return logits.reshape(len(images), classes)

    return run


def _open_onnx(path: Path, _reference: Reference, opened: Opened) -> None:
    missing = onnxruntime_missing()
    if missing:
        opened.not_run(ONNX, missing)
        return
    # here, because the package onnx is an extra
    from sca_search.export.onnx.write import count_zeros_onnx, open_onnx  # noqa: PLC0415

    opened.zeros[ONNX] = count_zeros_onnx(path)
    opened.runs[ONNX] = open_onnx(path)


def _open_program(path: Path, reference: Reference, opened: Opened) -> None:
    if not opened.written_here:
        opened.not_run(PROGRAM, "a .pt2 is loaded only by the process that wrote it")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(path).module()
    state = program.state_dict()
    named = {record_name(key.removeprefix("network.").removesuffix(".weight")): value for key, value in state.items()}
    trits = torch.tensor([-1.0, 0.0, 1.0])
    opened.zeros[PROGRAM] = {
        layer: (int((named[layer] == 0).sum()), named[layer].numel())
        for layer in reference.claim
        if layer in named and bool(torch.isin(named[layer], trits).all())
    }
    opened.runs[PROGRAM] = torch_run(program)


def _open_state(path: Path, reference: Reference, opened: Opened) -> None:
    opened.zeros[STATE] = {record_name(name): (each.zeros, each.weights) for name, each in count_zeros(path).items()}
    if reference.state_network is None:
        opened.not_run(STATE, "the network's own code is not available")
        return
    opened.runs[STATE] = torch_run(reference.state_network)


# Allowed difference from a file's own test vectors, relative to the largest logit: float32 sums in another order stay
# below 1e-5, a wrong model is far above.
_TOLERANCE = 1e-4


def load(path: str | Path) -> RecordNetwork:
    """A packed model as a torch module in evaluation mode.

    It takes batches of images before normalization (float32) and returns logits; `class_names` has the names of its
    outputs. ExportError unless the file is complete and the network reproduces its test vectors.
    """
    graph, vectors = read_packed(Path(path))
    network = RecordNetwork(graph)
    answers = torch_run(network)(vectors.images)
    largest = float(np.abs(vectors.logits).max())
    difference = float(np.abs(answers - vectors.logits).max())
    if not difference <= _TOLERANCE * largest:  # rejects NaN as well
        raise ExportError(f"{path} does not reproduce its own test vectors: the logits differ by {difference:.3g}")
    return network
