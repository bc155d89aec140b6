"""Runs every exported format and compares it with a torch network of the same stored values.

The reference is torch in float64, so that any difference is the rounding of the format. Test vectors and the validation
split are compared; zeros are counted in the exported bytes and compared with what the study claims.
"""

import copy
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sca_search.errors import ExportError
from sca_search.export.graph import agreement as agree
from sca_search.export.graph.network import Images, Network, Zeros
from sca_search.export.graph.records import Floats, Graph, TestVectors
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.integer.model import IntegerModel
from sca_search.export.integer.reference import IntegerNetwork, evaluate_integer
from sca_search.export.layout import FILES, PACKED, C
from sca_search.export.open import Check, Opened, Reference, open_folder, torch_run
from sca_search.export.packed.format import round_to_half
from sca_search.export.packed.test_vectors import on_grid, vector_count

# Time limit per format on the validation split; plain C is slow for a large network.
USUAL_SECONDS = 15.0
# Batch size: small, so that a slow format stops soon after its time limit.
_PORTION = 16


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
        opened = open_folder(folder, reference, Path(scratch), written_here=written_here)
        expected = None if reference.network is None else torch_run(reference.network.double(), torch.float64)
        checks = [_zero_check(file, zeros, reference.claim) for file, zeros in opened.zeros.items()]
        checks += _vector_checks(opened, expected, reference)
        checks += _image_checks(opened, expected, reference, seconds)
        return [*opened.checks, *checks]


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
    """A layer that the network calls twice has two records with the same trits, but one claim."""
    first, _, number = layer.rpartition("_")
    return layer not in claim and number.isdigit() and first in claim and counted[layer] == counted.get(first)


def _agreement_check(file: str, what: str, found: agree.Agreement, *, exact: bool) -> Check:
    if exact and found.difference == 0:
        return Check(file, what, "equal bit for bit", True)
    return Check(file, what, str(found), found.holds and not exact)


def _vector_checks(opened: Opened, expected: agree.Run | None, reference: Reference) -> list[Check]:
    """The stored logits are compared with the reference, and every format with the stored logits."""
    vectors = reference.vectors
    runs = {"torch": expected, **opened.runs} if expected is not None else dict(opened.runs)
    checks = []
    for file, run in runs.items():
        opened.runs.pop(file, None)  # a format that fails here is not run again
        with opened.failures_of(file):
            found = agree.agreement(run(vectors.images), vectors.logits, has_classes=reference.has_classes)
            checks.append(_agreement_check(file, f"{found.images} test vectors", found, exact=reference.exact))
            opened.runs |= {file: run} if file in FILES else {}
    return checks


def _image_checks(opened: Opened, expected: agree.Run | None, reference: Reference, seconds: float) -> list[Check]:
    images = reference.images
    if images is None or expected is None:
        why = reference.no_images if images is None else "there is no torch model to compare with"
        return [Check("torch", "validation split", f"not compared: {why}", None)]

    def batches() -> Iterable[Floats]:
        return agree.portions(images.batches(), _PORTION)

    compared = agree.compare(opened.runs, expected, batches(), seconds, has_classes=reference.has_classes)
    examples = "images" if reference.vectors.images.ndim == 4 else "examples"
    checks = []
    for file, found in compared.items():
        some = f"all {images.count}" if found.images == images.count else f"{found.images} of {images.count}"
        checks.append(_agreement_check(file, f"{some} validation {examples}", found, exact=reference.exact))
    if reference.original is not None:
        original = torch_run(reference.original.double(), torch.float64)
        for file, run in opened.runs.items():  # the difference of integer activations has no limit; it is reported
            runs = (run, original)
            comparison = (
                agree.compare_classes(runs, batches(), images.labels, seconds)
                if reference.has_classes
                else agree.compare_values(runs, batches(), seconds)
            )
            checks.append(Check(file, "compared with float activations", comparison, True))
    return checks


ALL_BUT_PACKED = tuple(file for file in FILES if file != PACKED)


def choose_vectors(graph: Graph, images: Images | None) -> Floats:
    """Test images: some of the validation split, spread over it; noise with the input's statistics if there is none."""
    count = vector_count(graph)
    if images is None or images.count < count:
        noise = np.random.default_rng(0).standard_normal((count, *graph.input_shape))
        shape = (-1, *[1] * (len(graph.input_shape) - 1))
        return on_grid((noise * graph.std.reshape(shape) + graph.mean.reshape(shape)).astype(np.float32))
    chosen = {index * images.count // count for index in range(count)}
    every = enumerate(chain.from_iterable(images.batches()))
    return on_grid(np.stack([image for index, image in every if index in chosen]))


def references_of(network: Network, graph: Graph, *, half: bool) -> tuple[Reference, ...]:
    """torch with the values in the files; a packed file in float16 has different values and comes last."""
    images = choose_vectors(graph, network.images)
    rest = _reference(network, network.normalized(), images, "the trained network in torch, in float64")
    if not half:
        return (rest,)
    rounded = RecordNetwork(round_to_half(graph))
    described = f"for {PACKED} the same with its float numbers rounded to float16"
    packed = _reference(network, rounded, images, described)
    return replace(rest, files=ALL_BUT_PACKED), replace(packed, files=(PACKED,))


def without_c(references: Sequence[Reference]) -> tuple[Reference, ...]:
    """The references for the other files: C with integer activations has one of its own."""
    return tuple(replace(each, files=tuple(file for file in each.files if file != C)) for each in references)


def with_integers(references: Sequence[Reference], model: IntegerModel) -> tuple[Reference, ...]:
    """The references; C is compared with the integer reference model, which comes last."""
    first = references[0]
    vectors = TestVectors(first.vectors.images, evaluate_integer(model, first.vectors.images))
    described = f"for {C} its model in integers in torch, bit for bit"
    integers = replace(first, vectors=vectors, network=IntegerNetwork(model), described=described, files=(C,))
    return *without_c(references), replace(integers, exact=True, original=first.network)


def _reference(network: Network, module: nn.Module, images: Floats, described: str) -> Reference:
    exact = copy.deepcopy(module).eval().double()  # the caller's network is not changed
    logits = torch_run(exact, torch.float64)(images).astype(np.float32)
    vectors, has_classes = TestVectors(images, logits), network.input.kind == "classes"
    found = Reference(vectors, network.claimed_zeros(), exact, described, network.images, has_classes=has_classes)
    return replace(found, state_network=network.normalized())
