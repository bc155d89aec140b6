"""Any network made ready to be searched: its attention opened, its layers chosen, output scales put in.

There is one way from what makes a network to what a study trains, and one way back from a state: whatever the network
is, a name, a function of the user's or a module made in Python.
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
from sca_search.models.levels import shaped_as
from sca_search.models.scales import put_output_scales, scaled_layers
from sca_search.models.weights import load_weights


@dataclass(frozen=True)
class PreparedNetwork:
    """What a task needs to know of its network."""

    make_model: Maker
    make_start: Maker | None  # the same with the user's weights, where there are some
    choices: tuple[LayerChoice, ...]


def prepared(make: Maker, input_shape: Sequence[int], outputs: int, spec: ModelSpec) -> PreparedNetwork:
    """Chooses the layers of what `make` makes; ModelError for a network that cannot be searched.

    `input_shape` is without the batch, of any number of sizes; `outputs` is how many numbers answer an input.
    """
    network = make()
    _refuse_unusable(network)
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

    def make_model() -> nn.Module:
        return put_output_scales(open_attention(make()), scaled)

    def make_start(weights: Path) -> nn.Module:
        given = make()
        load_weights(given, weights)
        return put_output_scales(open_attention(given), scaled)

    start = None if spec.weights is None else partial(make_start, spec.weights)
    return PreparedNetwork(make_model, start, tuple(choices))


def rebuilt(make: Maker, state: Mapping[str, Tensor]) -> nn.Module:
    """The network with a state that was trained, in evaluation mode; RuntimeError if it is of another one.

    Which layers have an output scale, or levels of their own, is what the state says.
    """
    network = open_attention(make())
    try:
        put_output_scales(shaped_as(network, state), scaled_layers(state))
    except AttributeError as error:  # a layer that this network has not
        raise RuntimeError(str(error)) from error
    network.load_state_dict(dict(state))
    return network.eval()


def _refuse_unusable(network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if is_lazy(parameter):
            raise ModelError(
                f"the network's {name} is lazy: a layer must know its sizes when it is made, not at its first input"
            )
    if not any(True for _ in network.parameters()):
        raise ModelError("the network has no parameters: there is nothing to train or to make ternary")


def _require_rows_in_training(network: nn.Module, input_shape: Sequence[int], outputs: int) -> None:
    """Some networks give more than one tensor while they train, which no loss here can take."""
    trained = copy.deepcopy(network).train()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            answer = trained(torch.zeros(2, *input_shape))
        except USER_ERRORS as error:  # whatever it raises
            raise ModelError(f"the network fails in training mode: {describe_error(error)}") from error
    require_rows(answer, outputs, " in training mode")
