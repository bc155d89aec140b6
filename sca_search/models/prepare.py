"""Prepares any network for a study: replaces its attention, chooses its layers, adds output scales.

Named networks, the user's functions and modules made in Python all become what a study trains here, and are restored
from a state here.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sca_search.config.references import USER_ERRORS, describe_error
from sca_search.config.study import ModelSpec
from sca_search.errors import ModelError
from sca_search.models import Maker
from sca_search.models.attention import open_attention
from sca_search.models.layers import LayerChoice, choose_layers, require_rows, weight_layers
from sca_search.models.scales import put_output_scales, scaled_layers, shaped_like_state
from sca_search.models.weights import load_weights


@dataclass(frozen=True)
class PreparedNetwork:
    """A network that a study can train."""

    make_model: Maker
    make_start: Maker | None  # with the user's weights, where there are any
    choices: tuple[LayerChoice, ...]


def prepared(make: Maker, input_shape: Sequence[int], outputs: int, spec: ModelSpec) -> PreparedNetwork:
    """Choose the layers of the network that `make` makes; ModelError for a network that cannot be searched.

    `input_shape` is without the batch, of any rank; `outputs` is the number of outputs per input.
    """
    network = make()
    for name, parameter in network.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"the network's {name} is lazy: a layer must have its sizes when it is created, not at its first input"
            )
    if not any(True for _ in network.parameters()):
        raise ModelError("the network has no parameters to train")
    network = open_attention(network)
    choices = choose_layers(
        weight_layers(network, input_shape, outputs),
        keep_first=spec.keep_first,
        keep_last=spec.keep_last,
        skip=spec.skip,
        only=spec.only,
    )
    _require_rows_in_training(network, input_shape, outputs)
    scaled = [choice.layer.name for choice in choices if choice.ternary and not choice.layer.scale_is_free]

    def make_model(weights: Path | None = None) -> nn.Module:
        network = make()
        if weights is not None:
            load_weights(network, weights)
        return put_output_scales(open_attention(network), scaled)

    start = None if spec.weights is None else partial(make_model, spec.weights)
    return PreparedNetwork(make_model, start, tuple(choices))


def rebuilt(make: Maker, state: Mapping[str, Tensor]) -> nn.Module:
    """The network with a trained state, in evaluation mode; RuntimeError if the state is of another network.

    The state determines which layers have an output scale or level scale.
    """
    network = open_attention(make())
    try:
        put_output_scales(shaped_like_state(network, state), scaled_layers(state))
    except AttributeError as error:  # a layer that this network does not have
        raise RuntimeError(str(error)) from error
    network.load_state_dict(dict(state))
    return network.eval()


def _require_rows_in_training(network: nn.Module, input_shape: Sequence[int], outputs: int) -> None:
    """ModelError for networks that return more than one tensor in training mode, which losses do not support."""
    trained = copy.deepcopy(network).train()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            output = trained(torch.zeros(2, *input_shape))
        except USER_ERRORS as error:
            raise ModelError(f"the network fails in training mode: {describe_error(error)}") from error
    require_rows(output, outputs, " in training mode")
