"""A training that pauses: everything it needs to go on, in one safetensors file.

A digest over all of it tells a file that was cut off, or in which a bit has changed, from one that is whole.

Tensors: the network's state (Θ, float weights, normalisation), the optimizer's memory, the random state. Facts, as JSON
in the file's metadata: the epoch, λ's unit, α a layer, the history and the weights' distributions so far. No pickle: a
run folder may come from somebody else.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sca_search.errors import CheckpointError
from sca_search.system.files import save_tensors

FORMAT = "sca-search/checkpoint"
VERSION = "2"
_WITHOUT_DIGEST = "1"
_GROUPS = ("model", "memory", "random")
# What a file that is no checkpoint, or a damaged one, may raise on its way.
_UNREADABLE = (
    OSError,
    SafetensorError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    RuntimeError,  # torch's, of shapes and kinds
)


@dataclass(frozen=True)
class Checkpoint:
    """A training between two of its epochs."""

    epoch: int  # how many are over
    unit: float  # λ for a strength of 1
    alphas: dict[str, float]
    history: list[dict[str, Any]]
    model: dict[str, Tensor]
    memory: dict[str, Tensor]  # the optimizer's
    random: Tensor  # torch's generator, as bytes
    snapshots: list[dict[str, Any]] = field(default_factory=list)  # older files have none


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the file; a reader sees the old one or the new one."""
    groups = {"model": checkpoint.model, "memory": checkpoint.memory, "random": {"torch": checkpoint.random}}
    tensors = {f"{group}/{name}": value for group in _GROUPS for name, value in groups[group].items()}
    facts = {
        "epoch": checkpoint.epoch,
        "unit": checkpoint.unit,
        "alphas": checkpoint.alphas,
        "history": checkpoint.history,
        "snapshots": checkpoint.snapshots,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    told = json.dumps(facts)
    metadata = {"format": FORMAT, "version": VERSION, "facts": told, "digest": _digest(tensors, told)}
    save_tensors(path, tensors, metadata)


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Of names, kinds, shapes and bytes."""
    seen = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        seen.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return seen.hexdigest()


def load_checkpoint(path: Path) -> Checkpoint:
    """What `save_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
        _require_whole(path, metadata, tensors)
        facts = json.loads(metadata["facts"])
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
        for key, tensor in tensors.items():
            group, _, name = key.partition("/")
            groups[group][name] = tensor
        return Checkpoint(
            epoch=int(facts["epoch"]),
            unit=float(facts["unit"]),
            alphas={str(name): float(alpha) for name, alpha in facts["alphas"].items()},
            history=[dict(epoch) for epoch in facts["history"]],
            model=groups["model"],
            memory=groups["memory"],
            random=groups["random"]["torch"],
            snapshots=[dict(each) for each in facts.get("snapshots", [])],
        )
    except _UNREADABLE as error:
        raise CheckpointError(f"{path}: is no checkpoint that can be read: {error}") from error


def _require_whole(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    version = metadata.get("version")
    if metadata.get("format") != FORMAT or version not in {VERSION, _WITHOUT_DIGEST}:
        raise CheckpointError(f"{path}: must be a checkpoint of version {VERSION}, got {metadata.get('format')!r}")
    if version == VERSION and metadata.get("digest") != _digest(tensors, metadata.get("facts", "")):
        raise CheckpointError(f"{path}: is damaged: what it holds is not what was written")
