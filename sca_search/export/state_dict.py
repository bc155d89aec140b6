"""The plain export: a safetensors file with ternary weights as int8 trits and everything else as trained.

Zeros are counted in this file, not in the network in memory. A pruned network has none but float weights; the file
names the layers whose zeros count.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from sca_search.data.input_spec import InputSpec
from sca_search.errors import RunError
from sca_search.models.scales import merged_trits
from sca_search.system.files import require_loadable, save_tensors
from sca_search.ternary.parametrize import ZeroCount, total, zero_counts

FORMAT = "sca-search/plain"
VERSION = "1"

_SPEC = TypeAdapter(InputSpec)
_NAMES = TypeAdapter(tuple[str, ...])
_PRUNED = "pruned_layers"


def save_plain(
    path: Path, model: nn.Module, ternary_layers: tuple[str, ...], spec: InputSpec, pruned_layers: tuple[str, ...] = ()
) -> None:
    """Writes a baked network; `spec` goes into the file's metadata as JSON."""
    ternary = {f"{name}.weight" for name in ternary_layers}
    state = model.state_dict()
    for name in ternary:
        if not _all_trits(state[name]):
            raise ValueError(f"{name} is not ternary: it must be baked before it is saved")
    tensors = {name: value.to(torch.int8) if name in ternary else value for name, value in state.items()}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "ternary_layers": json.dumps(ternary_layers),
        "about": json.dumps(asdict(spec)),
        **({_PRUNED: json.dumps(pruned_layers)} if pruned_layers else {}),
    }
    save_tensors(path, tensors, metadata)


def load_plain(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...], InputSpec]:
    """State dict with float weights, names of the ternary layers, and the input of the network."""
    require_loadable(path, RunError)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
                raise RunError(f"{path} is not a {FORMAT} file of version {VERSION}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            layers = _NAMES.validate_json(metadata["ternary_layers"])
            spec = _SPEC.validate_json(metadata["about"])
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read as a model: {error}") from error
    for name in layers:
        weight = tensors.get(f"{name}.weight")
        if weight is None or weight.dtype != torch.int8 or not _all_trits(weight):
            raise RunError(f"{path}: {name}.weight must hold int8 values in {{-1, 0, 1}}")
    state = {name: value.float() if value.dtype == torch.int8 else value for name, value in tensors.items()}
    return state, layers, spec


def count_zeros(path: Path) -> dict[str, ZeroCount]:
    """Zeros per layer, counted in the file."""
    state, layers, _ = load_plain(path)
    return zero_counts({name: state[f"{name}.weight"] for name in layers})


def counted_sparsity(path: Path) -> float:
    """The fraction of zeros among the ternary or pruned weights, counted in the file; two layers that were split from
    one count as one."""
    state, layers, _ = load_plain(path)
    with safe_open(path, framework="pt") as file:
        layers += _NAMES.validate_json(file.metadata().get(_PRUNED, "[]"))
    return total(zero_counts(merged_trits({name: state[f"{name}.weight"] for name in layers}))).sparsity


def _all_trits(weight: Tensor) -> bool:
    # Not through abs(): in int8, that of -128 is -128.
    return bool(((weight == 0) | (weight == 1) | (weight == -1)).all())
