"""Runs every exported format and compares it with torch holding the same stored values.

The reference is torch in float64, so that what differs is a format's own rounding. Compared are the test vectors and
the validation split; zeros are counted in the exported bytes and compared with what the study claims.
"""

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sca_search.errors import ExportError
from sca_search.export.graph.agreement import (
    Agreement,
    Run,
    agreement,
    classes_beside,
    compare,
    portions,
    values_beside,
)
from sca_search.export.graph.network import Images, Network, Zeros
from sca_search.export.graph.records import Floats, Graph, TestVectors
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.integer.model import IntegerModel
from sca_search.export.integer.reference import IntegerNetwork, evaluate_integer
from sca_search.export.layout import FILES, PACKED, C
from sca_search.export.open import Check, HowToOpen, Opened, open_folder, torch_run
from sca_search.export.packed.format import round_to_half
from sca_search.export.packed.test_vectors import on_grid, vector_count

# Seconds that each format may spend on the validation split; plain C takes long over a large network.
USUAL_SECONDS = 15.0
# Images at a time: few, so that a slow format stops soon after its time is up.
_PORTION = 16


@dataclass(frozen=True, eq=False)
class Reference:
    """What files of an export are compared with."""

    vectors: TestVectors
    claim: Zeros
    network: nn.Module | None  # takes images as they are; None: the test vectors are all there is
    described: str
    images: Images | None = None
    no_images: str = "there is none"
    state_network: Callable[[], nn.Module] | None = None
    files: tuple[str, ...] = FILES
    exact: bool = False  # whether logits must be equal bit for bit
    original: nn.Module | None = None  # another network, whose classes and accuracy are told beside
    kind: str = "classes"  # what the answers are

    @property
    def has_classes(self) -> bool:
        return self.kind == "classes"


@dataclass(frozen=True)
class Verification:
    """All checks of an export folder."""

    checks: tuple[Check, ...]
    described: str  # what was compared with

    @property
    def holds(self) -> bool:
        """Whether something was compared and nothing differs."""
        return all(check.holds is not False for check in self.checks) and any(check.holds for check in self.checks)


def verify(
    folder: Path, references: Sequence[Reference], *, written_here: bool = False, seconds: float = USUAL_SECONDS
) -> Verification:
    """Checks every format in a folder, each for at most `seconds` on the validation split."""
    if not any((folder / file).exists() for file in FILES):
        raise ExportError(f"{folder} holds none of the files {', '.join(FILES)}")
    checks = [check for reference in references for check in _checks(folder, reference, written_here, seconds)]
    # sorting is stable: the checks of a file stay in their order
    checks.sort(key=lambda check: FILES.index(check.file) if check.file in FILES else -1)
    return Verification(tuple(checks), "; ".join(reference.described for reference in references))


def _checks(folder: Path, reference: Reference, written_here: bool, seconds: float) -> list[Check]:
    with tempfile.TemporaryDirectory() as scratch:
        classes = reference.vectors.logits.shape[1]
        how = HowToOpen(
            classes, reference.files, tuple(reference.claim), Path(scratch), written_here, reference.state_network
        )
        opened = open_folder(folder, how)
        expected = _reference_run(reference)
        checks = [_zero_check(file, zeros, reference.claim) for file, zeros in opened.zeros.items()]
        checks += _vector_checks(opened, expected, reference)
        checks += _image_checks(opened, expected, reference, seconds)
        return [*opened.checks, *checks]


def _reference_run(reference: Reference) -> Run | None:
    return None if reference.network is None else torch_run(reference.network.double(), torch.float64)


def _zero_check(file: str, found_zeros: Zeros, claim: Zeros) -> Check:
    counted = {layer: count for layer, count in found_zeros.items() if not _is_second_call(layer, found_zeros, claim)}
    zeros, weights = (sum(count[index] for count in counted.values()) for index in (0, 1))
    found = f"{zeros:,} of {weights:,} ternary weights" + (f", {zeros / weights:.3%}" if weights else "")
    wrong = sorted(layer for layer in {*counted, *claim} if counted.get(layer) != claim.get(layer))
    if wrong:
        layer = wrong[0]
        found += f"; {layer} has (zeros, weights) {counted.get(layer)}, claimed is {claim.get(layer)}"
    return Check(file, "zeros as claimed", found, not wrong)


def _is_second_call(layer: str, counted: Zeros, claim: Zeros) -> bool:
    """A layer that the network calls twice has two records with the same trits, and is claimed once."""
    first, _, number = layer.rpartition("_")
    return layer not in claim and number.isdigit() and first in claim and counted[layer] == counted.get(first)


def _agreement_check(file: str, what: str, found: Agreement, *, exact: bool) -> Check:
    if exact and found.difference == 0:
        return Check(file, what, "equal bit for bit", True)
    return Check(file, what, str(found), found.holds and not exact)


def _vector_checks(opened: Opened, expected: Run | None, reference: Reference) -> list[Check]:
    """The stored answers are themselves compared with the reference, and then every format with them."""
    vectors = reference.vectors
    runs = {"torch": expected, **opened.runs} if expected is not None else dict(opened.runs)
    checks = []
    for file, run in runs.items():
        opened.runs.pop(file, None)  # what fails on these is not asked again
        with opened.failures_of(file):
            found = agreement(run(vectors.images), vectors.logits, has_classes=reference.has_classes)
            checks.append(_agreement_check(file, f"{found.images} test vectors", found, exact=reference.exact))
            opened.runs |= {file: run} if file in FILES else {}
    return checks


def _image_checks(opened: Opened, expected: Run | None, reference: Reference, seconds: float) -> list[Check]:
    if reference.images is None or expected is None:
        why = reference.no_images if reference.images is None else "there is no torch model to compare with"
        return [Check("torch", "validation split", f"not compared: {why}", None)]
    classes = {"has_classes": reference.has_classes}
    found = compare(opened.runs, expected, portions(reference.images.batches(), _PORTION), seconds, **classes)
    checks = []
    examples = "images" if reference.vectors.images.ndim == 4 else "examples"
    for file, each in found.items():
        what = f"{_share(each.images, reference.images.count)} validation {examples}"
        checks.append(_agreement_check(file, what, each, exact=reference.exact))
    if reference.original is not None:
        original = torch_run(reference.original.double(), torch.float64)
        checks += [_beside(file, (run, original), reference, seconds) for file, run in opened.runs.items()]
    return checks


def _beside(file: str, runs: tuple[Run, Run], reference: Reference, seconds: float) -> Check:
    """No rule says how far integer activations may be from others: it is told."""
    images = reference.images
    assert images is not None
    if not reference.has_classes:
        told = values_beside(runs, portions(images.batches(), _PORTION), seconds)
        return Check(file, "beside float activations", told, True)
    labels = None if images.labels is None else images.labels()
    found = classes_beside(runs, portions(images.batches(), _PORTION), labels, seconds)
    return Check(file, "beside float activations", str(found), True)


def _share(seen: int, count: int) -> str:
    return f"all {count}" if seen == count else f"{seen} of {count}"


TRAINED = "the trained network in torch, in float64"
INTEGER = f"for {C} its model in integers in torch, bit for bit"
ROUNDED = f"for {PACKED} the same with its float numbers rounded to float16"
ALL_BUT_PACKED = tuple(file for file in FILES if file != PACKED)


def choose_vectors(graph: Graph, images: Images | None) -> Floats:
    """Test images: some of the validation split, spread over it; noise like the input's where there is none."""
    count = vector_count(graph)
    if images is None or images.count < count:
        noise = np.random.default_rng(0).standard_normal((count, *graph.input_shape))
        shape = (-1, *[1] * (len(graph.input_shape) - 1))
        return on_grid((noise * graph.std.reshape(shape) + graph.mean.reshape(shape)).astype(np.float32))
    wanted = {index * images.count // count for index in range(count)}
    chosen, seen = [], 0
    for batch in images.batches():
        chosen += [batch[index - seen] for index in sorted(wanted) if seen <= index < seen + len(batch)]
        seen += len(batch)
    return on_grid(np.stack(chosen))


def references_of(network: Network, graph: Graph, *, half: bool) -> tuple[Reference, ...]:
    """torch with the values that the files hold; a packed file in float16 holds others than the rest, and is last."""
    images = choose_vectors(graph, network.images)
    rest = _reference(network, network.normalised(), images, TRAINED)
    if not half:
        return (rest,)
    rounded = RecordNetwork(round_to_half(graph))
    packed = _reference(network, rounded, images, ROUNDED)
    return replace(rest, files=ALL_BUT_PACKED), replace(packed, files=(PACKED,))


def with_integers(references: Sequence[Reference], model: IntegerModel) -> tuple[Reference, ...]:
    """The references, but for C, which is compared with the model in integers: that is the last."""
    others = tuple(replace(each, files=tuple(file for file in each.files if file != C)) for each in references)
    integers = IntegerNetwork(model)
    images = references[0].vectors.images
    made = replace(
        references[0],
        vectors=TestVectors(images, evaluate_integer(model, images)),
        network=integers,
        described=INTEGER,
        files=(C,),
        exact=True,
        original=references[0].network,
    )
    return *others, made


def _reference(network: Network, module: nn.Module, images: Floats, described: str) -> Reference:
    exact = copy.deepcopy(module).eval().double()  # the network that was given keeps its type and mode
    logits = torch_run(exact, torch.float64)(images).astype(np.float32)
    return Reference(
        vectors=TestVectors(images, logits),
        claim=network.claimed_zeros(),
        network=exact,
        described=described,
        images=network.images,
        kind=network.kind,
        state_network=lambda: copy.deepcopy(network.normalised()).eval(),
    )
