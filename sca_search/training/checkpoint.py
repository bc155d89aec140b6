"""The state of an unfinished training in one safetensors file.

A digest over the whole content detects files that are truncated or corrupt.

Tensors: the network's state (Θ, float weights, normalization), the optimizer's state, the random state. As JSON in the
metadata: the epoch, the numbers of the method (thresholds, planned sparsities), the history and the histograms so far.
No pickle: a run folder may be untrusted.
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
from sca_search.system.files import require_loadable, save_tensors

FORMAT = "sca-search/checkpoint"
VERSION = "3"
_GROUPS = ("model", "memory", "random")
_PROGRESS = ("epoch", "method", "history", "snapshots")
# The errors that an invalid or damaged file may raise; RuntimeError: of torch, about shapes and types, and recursion.
_UNREADABLE = (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError, OverflowError, RuntimeError)


@dataclass(frozen=True)
class Checkpoint:
    """A training between two of its epochs."""

    epoch: int  # completed epochs
    method: dict[str, float]  # its state besides the network
    history: list[dict[str, Any]]
    model: dict[str, Tensor]
    memory: dict[str, Tensor]  # the optimizer's state
    random: Tensor  # torch's generator, as bytes
    snapshots: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file atomically."""
    groups = {"model": checkpoint.model, "memory": checkpoint.memory, "random": {"torch": checkpoint.random}}
    tensors = {f"{group}/{name}": value for group in _GROUPS for name, value in groups[group].items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: getattr(checkpoint, name) for name in _PROGRESS})
    metadata = {"format": FORMAT, "version": VERSION, "progress": text, "digest": _digest(tensors, text)}
    save_tensors(path, tensors, metadata)


def _digest(tensors: Mapping[str, Tensor], progress: str) -> str:
    """Over names, types, shapes and bytes."""
    digest = hashlib.sha256(progress.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a file that `save_checkpoint` wrote; CheckpointError if it is invalid."""
    require_loadable(path, CheckpointError)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is not a mapping
        _require_whole(path, metadata, tensors)
        progress = json.loads(metadata["progress"])
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
        for key, tensor in tensors.items():
            group, _, name = key.partition("/")
            groups[group][name] = tensor
        return Checkpoint(
            epoch=int(progress["epoch"]),
            method={str(name): float(value) for name, value in progress["method"].items()},
            history=[dict(epoch) for epoch in progress["history"]],
            model=groups["model"],
            memory=groups["memory"],
            random=groups["random"]["torch"],
            snapshots=[dict(each) for each in progress["snapshots"]],
        )
    except _UNREADABLE as error:
        raise CheckpointError(f"{path}: must be a readable checkpoint, got: {error}") from error


def _require_whole(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(f"{path}: must be a checkpoint of version {VERSION}, got {metadata.get('format')!r}")
    if metadata.get("digest") != _digest(tensors, metadata.get("progress", "")):
        raise CheckpointError(f"{path}: is damaged: its digest does not match its content")
