"""Attention by layers of its own: the numbers are torch's, whatever is asked."""

import pytest
import torch
from torch import nn

from sca_search.models.prepare import Attention, open_attention


def torchs(seed=0, **settings):
    torch.manual_seed(seed)
    attention = nn.MultiheadAttention(8, 2, **settings).eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return attention


def assert_same(ours, theirs):
    assert torch.allclose(ours[0], theirs[0], atol=1e-5)
    assert (ours[1] is None) == (theirs[1] is None)
    if theirs[1] is not None:
        assert torch.allclose(ours[1], theirs[1], atol=1e-5)


PADDING = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1]]).bool()
CAUSAL = torch.triu(torch.ones(4, 6), diagonal=1).bool()
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "places": {"attn_mask": CAUSAL},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
    "numbers": {"attn_mask": torch.linspace(-2, 1, 24).view(4, 6)},
    "numbers of each head": {"attn_mask": torch.linspace(-2, 1, 144).view(6, 4, 6)},
}


SETTINGS = {"plain": {}, "no bias": {"bias": False}, "widths": {"kdim": 5, "vdim": 7}}
WEIGHTS = ({"need_weights": False}, {}, {"average_attn_weights": False})
# Every mask with every setting, and every pair of values of the other parameters with them and with each other.
PAIRWISE = [
    (mask, settings, WEIGHTS[(i + j) % 3], (i + j) % 2 == 0)
    for i, mask in enumerate(MASKS)
    for j, settings in enumerate(SETTINGS)
]


@pytest.mark.parametrize(("mask", "settings", "weights", "batch_first"), PAIRWISE, ids=str)
def test_the_result_is_that_of_torch(mask, settings, weights, batch_first):
    sizes = SETTINGS[settings]
    theirs = torchs(batch_first=batch_first, **sizes)
    torch.manual_seed(1)
    query = torch.randn(3, 4, 8)
    key, value = (torch.randn(3, 6, sizes.get(width, 8)) for width in ("kdim", "vdim"))
    inputs = (query, key, value) if batch_first else tuple(each.transpose(0, 1) for each in (query, key, value))
    assert_same(Attention(theirs)(*inputs, **MASKS[mask], **weights), theirs(*inputs, **MASKS[mask], **weights))


def test_without_a_batch_it_is_the_same():
    theirs = torchs()
    given = torch.randn(5, 8)
    assert_same(Attention(theirs)(given, given, given), theirs(given, given, given))


def test_dropout_works_in_training_only():
    ours = Attention(torchs(dropout=0.5, batch_first=True))
    given = torch.randn(2, 5, 8)
    for asked in (True, False):
        still = ours.eval()(given, given, given, need_weights=asked)[0]
        assert torch.equal(still, ours(given, given, given, need_weights=asked)[0])
        assert not torch.allclose(ours.train()(given, given, given, need_weights=asked)[0], still)


def test_a_causal_hint_without_a_mask_is_rejected():
    given = torch.randn(2, 5, 8)
    with pytest.raises(RuntimeError, match="attn_mask"):
        Attention(torchs())(given, given, given, is_causal=True)


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_computes_the_same_and_goes_through_its_layers(norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    given = torch.randn(3, 6, 8)
    with torch.no_grad():
        expected = [encoder(given), encoder(given, src_key_padding_mask=PADDING)]
        open_attention(encoder)
        called = []
        for name, module in encoder.named_modules():
            if isinstance(module, nn.Linear):
                # Not by a hook, which alone would keep torch from its other path.
                plain = module.forward
                module.forward = lambda x, name=name, plain=plain: (called.append(name), plain(x))[1]
        found = [encoder(given), encoder(given, src_key_padding_mask=PADDING)]
    assert torch.allclose(found[0], expected[0], atol=1e-5)
    assert torch.allclose(found[1][~PADDING], expected[1][~PADDING], atol=1e-5)
    assert len(called) == 2 * 2 * 6  # passes, layers of the encoder, full layers in each


def test_what_is_frozen_stays_frozen():
    theirs = torchs().requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in Attention(theirs).parameters())


def test_attention_that_adds_keys_of_its_own_stays_torchs():
    model = nn.ModuleDict(
        {
            "plain": nn.MultiheadAttention(8, 2),
            "biased": nn.MultiheadAttention(8, 2, add_bias_kv=True),
            "zero": nn.MultiheadAttention(8, 2, add_zero_attn=True),
        }
    )
    open_attention(model)
    kinds = {name: type(module) for name, module in model.items()}
    assert kinds == {"plain": Attention, "biased": nn.MultiheadAttention, "zero": nn.MultiheadAttention}


def test_a_shared_attention_stays_shared():
    shared = nn.MultiheadAttention(8, 2)
    model = nn.ModuleDict({"a": nn.ModuleList([shared]), "b": nn.ModuleList([shared])})
    open_attention(model)
    assert model["a"][0] is model["b"][0]
    assert isinstance(model["a"][0], Attention)
