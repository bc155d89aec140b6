"""Prepares any network for a study: replaces its attention, chooses its layers, adds output scales.

Named networks, the user's functions and modules made in Python all become what a study trains here, and are restored
from a state here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from sca_search.config.names import MODEL_PREFIXES
from sca_search.config.references import USER_ERRORS, describe_error
from sca_search.config.study import ModelSpec
from sca_search.errors import ModelError
from sca_search.models.builtin import Shape, build_model
from sca_search.models.layers import LayerChoice, choose_layers, copied, require_rows, weight_layers
from sca_search.models.scales import put_output_scales, scaled_layers, shaped_like_state
from sca_search.models.user import Maker, user_maker
from sca_search.models.weights import load_weights
from sca_search.models.zoo import timm_maker, torchvision_maker

_ZOOS = dict(zip(MODEL_PREFIXES, (torchvision_maker, timm_maker), strict=True))


@dataclass(frozen=True)
class PreparedNetwork:
    """A network that a study can train."""

    make_model: Maker
    make_start: Maker | None  # with the user's weights, where there are any
    choices: tuple[LayerChoice, ...]


def find_maker(name: str, *, num_classes: int, input_shape: Shape, dropout: float = 0.0) -> Maker:
    """The function that makes the named network for inputs of this shape; ModelError if there is no such network."""
    source, colon, rest = name.partition(":")
    if not colon:
        return lambda: build_model(name, num_classes=num_classes, input_shape=input_shape, dropout=dropout)
    if dropout:
        raise ModelError(f"model {name}: model.dropout is a setting of the built-in networks, got {dropout}")
    if f"{source}:" in _ZOOS:
        return _ZOOS[f"{source}:"](rest, num_classes, input_shape)
    return user_maker(name, num_classes, input_shape)


def prepared(make: Maker, input_shape: Sequence[int], outputs: int, spec: ModelSpec) -> PreparedNetwork:
    """Choose the layers of the network that `make` makes; ModelError for a network that cannot be searched.

    `input_shape` is without the batch, of any rank; `outputs` is the number of outputs per input.
    """
    network = make()
    _check_values(network)
    network = open_attention(network)
    choices = choose_layers(
        weight_layers(network, input_shape, outputs),
        keep_first=spec.keep_first,
        keep_last=spec.keep_last,
        skip=spec.skip,
        only=spec.only,
    )
    _try_network(network, input_shape, outputs)
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


def _check_values(network: nn.Module) -> None:
    """ModelError for parameters and buffers that cannot be trained or stored."""
    for name, value in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(value):
            raise ModelError(
                f"the network's {name} is lazy: a layer must have its sizes when it is created, not at its first input"
            )
        if value.is_complex():
            raise ModelError(f"the network's {name} must hold real numbers, got {value.dtype}")
    if not any(True for _ in network.parameters()):
        raise ModelError("the network has no parameters to train")


def _try_network(network: nn.Module, input_shape: Sequence[int], outputs: int) -> None:
    """ModelError for networks that would fail during or after a training.

    The last batch of a split may hold one input. Losses do not support more than one tensor in training mode.
    """
    tried = copied(network)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for rows, when in ((1, "for a batch of one input"), (2, "in training mode")):
            try:
                output = tried.train(rows == 2)(torch.zeros(rows, *input_shape))
            except USER_ERRORS as error:
                raise ModelError(f"the network fails {when}: {describe_error(error)}") from error
            require_rows(output, outputs, f" {when}", rows)


class Attention(nn.Module):
    """What nn.MultiheadAttention computes, by four linear layers: q_proj, k_proj, v_proj and out_proj."""

    # With these values, torch's encoder layers do not choose the fast path that bypasses the layers.
    in_proj_weight = None
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, source: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim = source.embed_dim
        self.num_heads = source.num_heads
        self.dropout = source.dropout
        self.batch_first = source.batch_first
        packed, out = source.in_proj_weight, source.out_proj
        weights = (
            (source.q_proj_weight, source.k_proj_weight, source.v_proj_weight) if packed is None else packed.chunk(3)
        )
        biases = (None, None, None) if source.in_proj_bias is None else source.in_proj_bias.chunk(3)
        trained = (source.q_proj_weight if packed is None else packed).requires_grad
        self.q_proj, self.k_proj, self.v_proj = (
            _linear(weight, bias, trained=trained) for weight, bias in zip(weights, biases, strict=True)
        )
        self.out_proj = _linear(out.weight, out.bias, trained=out.weight.requires_grad)
        self.train(source.training)

    def forward(  # noqa: PLR0913, PLR0917 - torch's signature
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """torch's arguments and results; `is_causal` is only a hint there and not needed here, given the mask."""
        if is_causal and attn_mask is None:
            raise RuntimeError("attention requires attn_mask where is_causal is set")
        batched = query.ndim == 3
        first = self.batch_first or not batched
        q, k, v = (
            self._heads(proj(tensor), batched, first)
            for proj, tensor in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        mask = self._mask(attn_mask, key_padding_mask, q)
        rate = self.dropout if self.training else 0.0
        if need_weights:
            scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
            weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), rate)
            joined = weights @ v
        else:
            joined = F.scaled_dot_product_attention(q, k, v, mask, rate)
        output = self.out_proj(joined.transpose(1, 2).flatten(2))
        output = output if first else output.transpose(0, 1)
        output = output if batched else output.squeeze(0)
        if not need_weights:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if batched else weights.squeeze(0)

    def _heads(self, projected: Tensor, batched: bool, first: bool) -> Tensor:
        """(batch, heads, length, width of a head)"""
        batch_first = projected if first else projected.transpose(0, 1)
        batch_first = batch_first if batched else batch_first.unsqueeze(0)
        return batch_first.reshape(*batch_first.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _mask(self, mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
        """Both masks combined, to be added to the scores, (batch or 1, heads or 1, queries or 1, keys)."""
        added = None if mask is None else _as_added(mask, like)
        if added is not None:
            added = added.reshape(-1, self.num_heads, *added.shape[1:]) if added.ndim == 3 else added[None, None]
        if padding is None:
            return added
        keys = _as_added(padding if padding.ndim == 2 else padding[None], like)[:, None, None]
        return keys if added is None else added + keys


def _as_added(mask: Tensor, like: Tensor) -> Tensor:
    """True in a mask marks positions that must not be attended to."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def _linear(weight: Tensor, bias: Tensor | None, *, trained: bool) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=trained)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=trained and bias.requires_grad)
    return layer


def open_attention(network: nn.Module) -> nn.Module:
    """Replace each nn.MultiheadAttention in place.

    Not those that add a key (add_bias_kv, add_zero_attn), nor classes derived from torch's, whose code may differ: they
    are unchanged and stay dense.
    """
    made: dict[nn.Module, nn.Module] = {  # an attention that two modules share stays shared
        module: Attention(module)
        for module in network.modules()
        if type(module) is nn.MultiheadAttention and module.bias_k is None and not module.add_zero_attn
    }
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if child in made:
                setattr(parent, name, made[child])
        if made and isinstance(parent, nn.TransformerEncoder):
            # Nested tensors belong to the fast path, and are chosen when the encoder is created.
            parent.use_nested_tensor = False
    return made.get(network, network)
