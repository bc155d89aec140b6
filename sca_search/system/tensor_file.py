"""Tensors as one safetensors file, whole or absent."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from sca_search.system.files import atomic_path


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes tensors under their names.

    The format refuses tensors that share their memory, as tied weights do: each is written as if it had its own.
    """
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, value in tensors.items():
        memory = value.untyped_storage().data_ptr()
        plain = value.detach().contiguous().cpu()
        apart[name] = plain.clone() if memory in seen and plain.data_ptr() == value.data_ptr() else plain
        seen.add(memory)
    with atomic_path(path) as temporary:
        save_file(apart, temporary, metadata=metadata)
