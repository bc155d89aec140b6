"""Exports a ternary network that was trained anywhere: after `sca.bake`, or after a training with the callback."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from sca_search.api.loop import ternary_layers
from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError
from sca_search.export.folder import FORMATS, Exported, ExportOptions, export_network, parse_formats
from sca_search.export.graph.network import Images, Network
from sca_search.ternary.parametrize import ternary_weights


def export_baked(
    model: nn.Module,
    out: str | Path,
    inputs: Tensor,
    formats: Sequence[str] = FORMATS,
    *,
    names: Iterable[str] | None = None,
    replace: bool = False,
    **options: Any,
) -> Exported:
    """Writes a baked network as files to use elsewhere, and verifies them.

    `inputs`, a batch as the network takes it, gives the input's shape, is what the files' answers are compared on, and
    what the scales of integer activations are taken from. `names` are those of the outputs; `options` are those of the
    command: half, int2, tune, stored, activations, seconds.
    """
    if ternary_weights(model):
        raise ExportError("export_baked: the network still has latent weights; call bake first")
    layers = ternary_layers(model)
    if not layers:
        raise ExportError("export_baked: the network has no ternary layer")
    chosen = ExportOptions(parse_formats(",".join(formats)), replace=replace, **options)
    numbers = inputs.detach().cpu().numpy().astype(np.float32)
    given = Images(len(numbers), lambda: iter([numbers]))
    was_training = model.training
    try:
        model.cpu().eval()
        classes = tuple(names) if names is not None else tuple(map(str, range(_outputs(model, inputs))))
        network = Network(model, InputSpec(tuple(inputs.shape[1:]), classes), layers, images=given, training=given)
        return export_network(Path(out), network, chosen)
    finally:
        model.train(was_training)


def _outputs(model: nn.Module, inputs: Tensor) -> int:
    answer = model(inputs[:1].cpu())
    if not isinstance(answer, Tensor) or answer.ndim != 2:
        given = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise ExportError(f"export_baked: the network must answer an input with a row of numbers, it gave {given}")
    return int(answer.shape[1])
