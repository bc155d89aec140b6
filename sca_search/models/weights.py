"""The user's pretrained weights: a safetensors file, or a state dict saved by torch, loaded without running code."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sca_search.errors import ModelError
from sca_search.system.files import require_loadable

_SHOWN = 3  # names of each kind in a message
# The key of the teacher logits in a study's file of dense weights: no module can have this name.
TEACHER_LOGITS = "(answers)"


def load_weights(network: nn.Module, path: Path) -> None:
    """Load a file into a network, in place; ModelError lists what does not match."""
    expected = network.state_dict()
    # Counters of BatchNorm, which old states lack and no result depends on.
    state = {name: value for name, value in expected.items() if name.endswith(".num_batches_tracked")}
    state |= {name: value for name, value in read_weights(path).items() if name != TEACHER_LOGITS}
    faults = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "of another shape": [
            f"{name} {tuple(state[name].shape)} instead of {tuple(value.shape)}"
            for name, value in expected.items()
            if name in state and state[name].shape != value.shape
        ],
    }
    found = []
    for what, names in faults.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        found += [f"{what}: {', '.join(names[:_SHOWN])}{more}"] if names else []
    if found:
        raise ModelError(f"--weights {path}: must match the network; {'; '.join(found)}")
    network.load_state_dict(state)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name."""
    if not path.is_file():
        raise ModelError(f"--weights {path}: there is no such file")
    require_loadable(path, ModelError)
    state = _loaded(path)
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        got = f"a value of type {type(state).__name__}"
        if isinstance(state, Mapping):
            got = f"a dict with {', '.join(map(str, list(state)[:_SHOWN]))}" if state else "an empty dict"
        raise ModelError(
            f"--weights {path}: must contain a state dict, names to tensors, as torch.save(model.state_dict(), FILE) "
            f"writes it; got {got}"
        )
    for name, value in state.items():
        if not _is_stored(value):
            raise ModelError(f"--weights {path}: all weights must be plain dense tensors, {name} is not")
        if not bool(torch.isfinite(value).all()):
            raise ModelError(f"--weights {path}: all weights must be finite, {name} is not")
    return state


def _is_stored(value: Tensor) -> bool:
    """Whether every element is stored: a sparse or expanded tensor of a few bytes could be arbitrarily large."""
    is_plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    return is_plain and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _loaded(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol
            is_safe = path.suffix == ".safetensors"
            return load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"--weights {path}: contains more than tensors, which could run code when loaded, or is damaged; "
            "only a state dict is accepted: torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # the errors of a damaged pickle have no common base class
        raise ModelError(f"--weights {path}: must be a safetensors file or a state dict saved by torch") from error
