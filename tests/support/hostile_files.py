"""Every reader of a file that somebody may have been sent, with a good file to spoil."""

import hashlib
import io
import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from sca_search.config.candidate import Candidate
from sca_search.config.load import resolve
from sca_search.config.recipe import describe_scaling, recipe_candidate
from sca_search.errors import SpecError
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.count_zeros import count_zeros_c
from sca_search.export.c.source import stamped_steps, write_c
from sca_search.export.graph.records import INPUT, Graph, TestVectors
from sca_search.export.graph.reference import evaluate
from sca_search.export.latency.model import latency_model
from sca_search.export.latency.program import kernels_hash, network_hash
from sca_search.export.latency.table import read_calibration
from sca_search.export.metadata import read_metadata
from sca_search.export.onnx.write import count_zeros_onnx, write_onnx
from sca_search.export.packed.format import packed_bytes, read_packed
from sca_search.export.packed.test_vectors import on_grid, read_vectors, write_vectors
from sca_search.export.state_dict import load_plain
from sca_search.models.weights import read_weights
from sca_search.ternary.allocation import LayerShape
from sca_search.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tests.support.fuzzing import Mutator, Reader, through
from tests.support.hostile_runs import BYTES, JSON, RUN, TENSORS, TEXT, run_readers
from tests.support.random_records import Builder, every_operation, random_images

# Every number that its shortening works with, and Lightning's settings.
RECIPE = b"""
[data]
train_limit = 20000

[train]
epochs = 4

[recipe]
epochs = 370
images = 60000
alpha = 1e-4
strength_lambda = 5e-8
lambda_steps = [[270, 50], [300, 0.5]]
learning_rate = 0.01
learning_rate_steps = [[100, 0.1], [160, 0.1]]
spread = 0.6

[trainer]
accumulate_grad_batches = 2
precision = "bf16-mixed"
"""
LAYERS = (LayerShape("conv2", (32, 16, 5, 5)), LayerShape("fc1", (64, 128)))


def signed(mutator: Mutator) -> Mutator:
    """By somebody who can sign a packed file again."""

    def forged(content: bytes, dice: random.Random) -> bytes:
        changed = mutator(content, dice)
        mark = b'"checksum": "' if b'"checksum": "' in changed else b'"checksum":"'
        place = changed.find(mark) + len(mark)
        blank = changed[:place] + b"0" * 64 + changed[place + 64 :]
        return blank[:place] + hashlib.sha256(blank).hexdigest().encode() + blank[place + 64 :]

    return forged


def readers(folder: Path) -> list[Reader]:
    """All of them; `folder` is for the files that they read."""
    return [*_models(folder), *_programs(folder), *_study_files(folder), *run_readers(folder)]


def _models(folder: Path) -> list[Reader]:
    graph, _ = every_operation((3, 5, 5), 0)
    images = on_grid(random_images(graph, 1))
    vectors = TestVectors(images, evaluate(graph, images))
    write_vectors(folder / "vectors.safetensors", vectors)
    forged = tuple(map(signed, TENSORS))
    weights = {"0.weight": torch.ones(4, 3), "0.bias": torch.zeros(4)}
    saved = io.BytesIO()
    torch.save(weights, saved)
    plain = (RUN / "candidates/000/model.safetensors").read_bytes()
    return [
        Reader("packed model", packed_bytes(graph, vectors), through(folder / "a.packed", read_packed), TENSORS),
        Reader("packed model, signed", packed_bytes(graph, vectors), through(folder / "b", read_packed), forged),
        Reader(
            "test vectors",
            (folder / "vectors.safetensors").read_bytes(),
            through(folder / "v.safetensors", read_vectors),
            (*TENSORS, *forged),
        ),
        Reader("plain model", plain, through(folder / "plain.safetensors", load_plain), TENSORS),
        Reader("weights, safetensors", save(weights), through(folder / "w.safetensors", read_weights), TENSORS),
        Reader("weights, torch", saved.getvalue(), through(folder / "w.pt", read_weights), BYTES),
        Reader("checkpoint", _checkpoint(folder), through(folder / "c.safetensors", load_checkpoint), TENSORS),
        Reader(
            "metadata of an export",
            _facts(),
            through(folder / "export.json", lambda path: read_metadata(path.parent)),
            JSON,
        ),
    ]


def _programs(folder: Path) -> list[Reader]:
    """What an export holds beside data: its C source, and its ONNX model."""
    graph = _small_graph()
    images = on_grid(random_images(graph, 1))
    vectors = TestVectors(images, evaluate(graph, images))
    found = []
    for name, options in (("C source", COptions()), ("C source, stored", COptions(stored=True))):
        place = folder / name
        place.mkdir()
        write_c(place, graph, vectors, options)
        path = place / "model.c"
        found.append(Reader(name, path.read_bytes(), through(path, lambda path: count_zeros_c(path.parent)), TEXT))
    write_onnx(folder / "model.onnx", graph)
    content = (folder / "model.onnx").read_bytes()
    return [*found, Reader("ONNX model", content, through(folder / "o.onnx", count_zeros_onnx), BYTES)]


def _checkpoint(folder: Path) -> bytes:
    path = folder / "checkpoint.safetensors"
    kept = Checkpoint(
        epoch=5,
        method={"unit": 0.25, "threshold of conv2": 0.2},
        history=[{"phase": "ternary", "epoch": 1, "soft_metric": 0.1}],
        model={"conv2.weight": torch.ones(3, 2)},
        memory={"0.step": torch.tensor(35.0)},
        random=torch.get_rng_state(),
        snapshots=[{"epoch": 1, "tanh": [1, 2], "soft": [1, 2], "alphas": {"conv2": 0.1}}],
    )
    save_checkpoint(path, kept)
    return path.read_bytes()


def _facts() -> bytes:
    metadata = {
        "version": 2,
        "input": {
            "input_shape": [1, 8, 8],
            "classes": ["0", "1"],
            "mean": [0.5],
            "std": [0.25],
            "kind": "classes",
            "target_mean": [],
            "target_std": [],
        },
        "ternary_layers": ["conv2"],
        "zeros": {"conv2": [1, 2]},
        "half": False,
        "largest_values": {"conv2": 3.5},
        "state_file": "../model.safetensors",
        "about": {"study": "a"},
    }
    return json.dumps(metadata).encode()


def _study_files(folder: Path) -> list[Reader]:
    graph = _small_graph()
    study = (RUN / "study.toml").read_bytes()
    return [
        Reader("study file", study, through(folder / "study.toml", lambda path: resolve(path, {}).to_toml()), TEXT),
        Reader("recipe", RECIPE, through(folder / "recipe.toml", _point), TEXT),
        Reader(
            "latency table",
            json.dumps(_latencies(graph)).encode(),
            through(folder / "l.json", lambda path: _asked(path, graph)),
            JSON,
        ),
    ]


def _point(path: Path) -> Candidate:
    """A recipe, in words and as the one point that is trained."""
    spec = resolve(path, {})
    if spec.recipe is None:
        raise SpecError("no recipe is left")
    describe_scaling(spec)
    return recipe_candidate(spec, seed=0)


def _asked(path: Path, graph: Graph) -> float:
    """A latency table, and its model at half of the weights."""
    model = latency_model(read_calibration(path, graph))
    return model.predict_us({name: layer.weights / 2 for name, layer in model.layers.items()})


def _small_graph() -> Graph:
    builder = Builder((2, 6, 5), np.random.default_rng(1))
    first = builder.convolution(INPUT, 4, (3, 3), "trits")
    return builder.graph([builder.linear(first, 3, "trits"), builder.linear(INPUT, 2, "floats")])


def _latencies(graph: Graph) -> dict[str, object]:
    weights = {layer.name: layer.weight.size for layer in graph.ternary_layers}
    variants = []
    for sparsity in (0.0, 0.5, 0.75):
        steps: list[dict[str, object]] = []
        for name in stamped_steps(graph):
            steps.append({"step": name, "low_us": 4.0 - sparsity, "spread": 0.001})
            if name in weights:
                count = int((1 - sparsity) * weights[name])
                steps[-1] |= {"kernel": "lists", "weights": weights[name], "nonzeros": count}
        variants.append({"sparsity": sparsity, "low_us": 20.0 - sparsity, "spread": 0.01, "steps": steps})
    return {
        "format": "sca-search/latency",
        "version": 1,
        "network": network_hash(graph),
        "kernels": kernels_hash(),
        "threads": 1,
        "batch": 1,
        "cpu": "a cpu",
        "compiler": "a compiler",
        "samples": 10,
        "noisy_samples": 3,
        "variants": variants,
    }
