"""What an export is compared with: the trained network in torch, and the test vectors that it answered."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sca_search.export.graph.network import Images, Network
from sca_search.export.graph.records import Floats, Graph, TestVectors
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.integer.model import IntegerModel
from sca_search.export.integer.reference import IntegerNetwork, evaluate_integer
from sca_search.export.layout import FILES, PACKED, C
from sca_search.export.open import torch_run
from sca_search.export.packed.format import round_to_half
from sca_search.export.packed.test_vectors import on_grid, vector_count
from sca_search.export.verify import Reference

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
