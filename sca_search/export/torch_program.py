"""A .pt2 program by torch.export: the network as torch itself runs it, without its Python code."""

import warnings
from pathlib import Path

import torch
from torch import nn

from sca_search.errors import ExportError
from sca_search.export.graph.records import Shape
from sca_search.system.files import atomic_path


def write_program(path: Path, network: nn.Module, input_shape: Shape) -> None:
    """Writes a module that takes batches of any size."""
    # Sizes 0 and 1 are special in torch.export's symbolic shapes; the example batch must be larger.
    images = torch.zeros(2, *input_shape)
    batch = torch.export.Dim("batch", min=1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch warns about its own internals, nothing that a user can change
            program = torch.export.export(network.eval(), (images,), dynamic_shapes=({0: batch},))
            with atomic_path(path) as temporary:
                torch.export.save(program, temporary)
    except (RuntimeError, ValueError, torch._dynamo.exc.TorchDynamoException) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(f"torch.export cannot write the network: {reason[0]}") from error


def load_program(path: Path) -> nn.Module:
    """The program as a module. A .pt2 may run code when it is loaded: only load what this process wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: nn.Module = torch.export.load(path).module()
    return module
