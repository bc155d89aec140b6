"""A trained state that a user brings: a safetensors file, or a state dict that torch saved, loaded without code."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sca_search.errors import ModelError

_SHOWN = 3  # names of each kind that a sentence lists
# Beside a study's dense weights, under a name that no module can have: its outputs on the training split.
ANSWERS = "(answers)"


def load_weights(network: nn.Module, path: Path) -> None:
    """Loads a file into a network, in place; ModelError names what does not fit."""
    wanted = network.state_dict()
    # Counters of BatchNorm's, which states of old do not have, and which no figure depends on.
    counters = {name: value for name, value in wanted.items() if name.endswith(".num_batches_tracked")}
    state = counters | {name: value for name, value in read_weights(path).items() if name != ANSWERS}
    _require_fit(path, state, wanted)
    network.load_state_dict(state)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by their names."""
    if not path.is_file():
        raise ModelError(f"--weights {path}: there is no such file")
    try:
        state: Any = load_file(path) if path.suffix == ".safetensors" else _load_torch(path)
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ModelError(f"--weights {path}: is no safetensors file and no state dict that torch saved") from error
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError(
            f"--weights {path}: must hold a state dict, names to tensors, as torch.save(model.state_dict(), FILE) "
            f"writes it; it holds {_described(state)}"
        )
    odd = next((name for name, value in state.items() if not _lies_in_the_file(value)), None)
    if odd is not None:
        raise ModelError(f"--weights {path}: all weights must be plain tensors, each number in the file, {odd} is none")
    broken = next((name for name, value in state.items() if not bool(torch.isfinite(value).all())), None)
    if broken is not None:
        raise ModelError(f"--weights {path}: all weights must be finite, {broken} is not")
    return state


def _lies_in_the_file(value: Tensor) -> bool:
    """A few bytes can stand for a tensor without end: sparse, or one number at every place of it."""
    is_plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    return is_plain and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _load_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another protocol of pickle's: what matters is whether it can be read
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"--weights {path}: holds more than tensors, which could run code when it is loaded, or is damaged; "
            "only a state dict is read: torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # what a damaged pickle raises has no common ancestor
        raise ModelError(f"--weights {path}: is no safetensors file and no state dict that torch saved") from error


def _described(state: Any) -> str:
    if isinstance(state, Mapping):
        return f"a dict with {', '.join(map(str, list(state)[:_SHOWN]))}" if state else "an empty dict"
    return f"a value of the type {type(state).__name__}"


def _require_fit(path: Path, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    shapes = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
        for name in wanted
        if name in given and given[name].shape != wanted[name].shape
    ]
    faults = {
        "missing": [name for name in wanted if name not in given],
        "unexpected": [name for name in given if name not in wanted],
        "of another shape": shapes,
    }
    told = [f"{what}: {_listed(names)}" for what, names in faults.items() if names]
    if told:
        raise ModelError(f"--weights {path}: must fit the network, and does not; {'; '.join(told)}")


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
