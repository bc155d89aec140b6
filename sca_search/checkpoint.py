"""A training that pauses: everything it needs to go on, in one safetensors file.

Tensors: the network's state (Θ, float weights, normalisation), the optimizer's memory, the random state. Facts, as JSON
in the file's metadata: the epoch, λ's unit, α a layer, the history and the weights' distributions so far. No pickle: a
run folder may come from somebody else.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sca_search.errors import RunError
from sca_search.tensor_file import save_tensors

FORMAT = "sca-search/checkpoint"
VERSION = "1"
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
    save_tensors(path, tensors, {"format": FORMAT, "version": VERSION, "facts": json.dumps(facts)})


def load_checkpoint(path: Path) -> Checkpoint:
    """What `save_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
                raise RunError(f"{path}: must be a checkpoint of version {VERSION}, got {metadata.get('format')!r}")
            facts = json.loads(metadata["facts"])
            groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
            for key in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
                group, _, name = key.partition("/")
                groups[group][name] = file.get_tensor(key)
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
        raise RunError(f"{path}: is no checkpoint that can be read: {error}") from error
