"""Which layers become ternary: order of execution, conventions, patterns, and what normalizes what."""

import pytest
import torch
from torch import nn

from sca_search.errors import ModelError
from sca_search.models.layers import LayerChoice, WeightLayer, choose_layers, weight_layers


class Wired(nn.Module):
    """Named layers, run by a function of (layers, input)."""

    def __init__(self, run, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = run

    def forward(self, x):
        return self.run(self, x)


def free_scales(model, shape):
    return {layer.name: layer.scale_is_free for layer in weight_layers(model, shape)}


def layers_named(*names, idle=()):
    return [WeightLayer(name, (10,), scale_is_free=True, executed=name not in idle) for name in names]


def ternary_names(choices):
    return [choice.layer.name for choice in choices if choice.ternary]


def why(choices):
    return {choice.layer.name: choice.why for choice in choices}


# Order of execution


def test_layers_come_in_order_of_execution():
    model = Wired(
        lambda m, x: m.c(m.a(m.b(x))),
        a=nn.Linear(3, 4),
        b=nn.Linear(2, 3),
        c=nn.Linear(4, 5),
    )
    assert weight_layers(model, (2,)) == [
        WeightLayer("b", (3, 2), False),
        WeightLayer("a", (4, 3), False),
        WeightLayer("c", (5, 4), False),
    ]


def test_first_and_last_follow_execution_not_definition():
    model = Wired(
        lambda m, x: m.head(m.middle(m.stem(x))),
        head=nn.Linear(4, 2),
        middle=nn.Linear(3, 4),
        stem=nn.Linear(2, 3),
    )
    choices = choose_layers(weight_layers(model, (2,)))
    assert why(choices)["stem"] == "first weight layer"
    assert why(choices)["head"] == "last weight layer"
    assert ternary_names(choices) == ["middle"]


def test_every_kind_of_layer_is_seen_with_its_weights_but_not_its_bias():
    model = nn.Sequential(
        nn.Conv1d(2, 3, 5, padding=2),
        nn.Unflatten(2, (2, 4)),
        nn.Conv2d(3, 4, (1, 3), groups=1),
        nn.Unflatten(3, (2, 1)),
        nn.Conv3d(4, 6, 1, groups=2),
        nn.Flatten(),
        nn.Linear(24, 7),
    )
    assert [(layer.name, layer.weights) for layer in weight_layers(model, (2, 8))] == [
        ("0", 3 * 2 * 5),
        ("2", 4 * 3 * 3),
        ("4", 6 * 4 // 2),
        ("6", 24 * 7),
    ]


def test_a_layer_that_runs_twice_is_one_layer_and_stays_dense():
    model = Wired(lambda m, x: m.b(m.a(m.a(x))), a=nn.Linear(2, 2), b=nn.Linear(2, 3))
    layers = weight_layers(model, (2,))
    assert [(layer.name, layer.bound) for layer in layers] == [("a", "is called 2 times per pass"), ("b", "")]
    assert ternary_names(choose_layers(layers, keep_first=False, keep_last=False)) == ["b"]


def test_transposed_convolutions_have_their_outputs_after_their_inputs():
    model = nn.Sequential(nn.Conv2d(1, 6, 1), nn.ConvTranspose2d(6, 4, 3, groups=2), nn.ConvTranspose2d(4, 5, 1))
    layers = weight_layers(model, (1, 4, 4))
    assert [(layer.shape, layer.outputs) for layer in layers] == [
        ((6, 1, 1, 1), 6),
        ((6, 2, 3, 3), 4),
        ((4, 5, 1, 1), 5),
    ]


# Layers that must stay dense


def chain(**changes):
    model = Wired(
        lambda m, x: m.d(m.c(m.b(m.a(x)))), **{name: nn.Linear(4, 4, bias=False) for name in ("a", "b", "c", "d")}
    )
    for name, change in changes.items():
        change(model, model.get_submodule(name))
    return model


def tie(model, layer):
    layer.weight = model.b.weight


OBSTACLES = {
    "shared": (chain(c=tie), "c", "its weight is shared with b.weight"),
    "frozen": (chain(c=lambda _, layer: layer.requires_grad_(False)), "c", "its weight is frozen"),
    "computed": (
        chain(c=lambda _, layer: nn.utils.parametrizations.weight_norm(layer)),
        "c",
        "its weight is computed from other parameters",
    ),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_a_layer_whose_weight_is_not_its_own_to_change_stays_dense(kind):
    model, name, reason = OBSTACLES[kind]
    layers = weight_layers(model, (4,))
    assert why(choose_layers(layers, keep_first=False))[name] == reason
    assert name not in ternary_names(choose_layers(layers, keep_first=False))
    with pytest.raises(ModelError) as caught:
        choose_layers(layers, only=[name])
    assert str(caught.value) == f"the layer {name!r} cannot become ternary: {reason}"
    assert ternary_names(choose_layers(layers, only=["[acd]"])) == ["a", "d"]  # a pattern may name others, too


# The answer


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (nn.Linear(4, 5), "got the shape (2, 5)"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), "got the shape (6,)"),
        (Wired(lambda m, x: (m.a(x), x), a=nn.Linear(4, 3)), "got a tuple"),
    ],
    ids=["classes", "batch", "tuple"],
)
def test_an_answer_of_another_shape_is_rejected(model, given):
    with pytest.raises(ModelError) as caught:
        weight_layers(model, (4,), outputs=3)
    rule = "the network must return a row of 3 numbers per input, shape (2, 3) for two; "
    assert str(caught.value) == rule + given


def test_the_layer_that_cannot_take_its_input_is_named_with_both_shapes():
    model = nn.Sequential(nn.Sequential(nn.Flatten()), nn.Sequential(nn.ReLU(), nn.Linear(60, 5)))
    with pytest.raises(ModelError) as caught:
        weight_layers(model, (1, 8, 8))
    assert str(caught.value).startswith(
        "the network cannot process an input of shape (1, 8, 8) "
        "(the layer '1.1' got an input of shape (64,) and has a weight of shape (5, 60)): RuntimeError: "
    )


def test_a_layer_that_never_runs_comes_last_and_stays_dense():
    model = Wired(
        lambda m, x: m.c(m.b(m.a(x))),
        idle=nn.Linear(9, 9),
        a=nn.Linear(2, 2),
        b=nn.Linear(2, 2),
        c=nn.Linear(2, 2),
    )
    layers = weight_layers(model, (2,))
    assert layers[-1] == WeightLayer("idle", (9, 9), scale_is_free=False, executed=False)
    choices = choose_layers(layers)
    assert ternary_names(choices) == ["b"]  # and "idle" is not taken for the last layer
    assert why(choices)["idle"] == "is never called as a module"


def test_attention_is_no_module_of_its_own():
    model = Wired(
        lambda m, x: m.out(m.attention(*[m.into(x)] * 3, need_weights=False)[0]),
        into=nn.Linear(3, 8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        out=nn.Linear(8, 2),
    )
    layers = weight_layers(model, (5, 3))
    assert [(layer.name, layer.executed) for layer in layers] == [
        ("into", True),
        ("out", True),
        ("attention.out_proj", False),
    ]
    with pytest.raises(ModelError, match=r"attention\.out_proj: is never called as a module"):
        choose_layers(layers)


def test_a_transformers_fully_connected_layers_run():
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    executed = {layer.name: layer.executed for layer in weight_layers(model, (5, 8))}
    assert executed == {"0.linear1": True, "0.linear2": True, "0.self_attn.out_proj": False}


# Which scale is free


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, affine=False),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4),
        nn.LayerNorm([4, 6, 6]),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_a_normalization_right_after_frees_the_scale(norm):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Conv2d(4, 2, 1))
    assert free_scales(model, (1, 8, 8)) == {"0": True, "2": False}


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Tanh(), nn.MaxPool2d(1)], ids=lambda between: type(between).__name__)
def test_something_between_layer_and_normalization_does_not(between):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), between, nn.BatchNorm2d(4))
    assert free_scales(model, (1, 8, 8)) == {"0": False}


def test_something_between_that_works_in_place_does_not_either():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(4))
    assert free_scales(model, (1, 8, 8)) == {"0": False}


def test_a_normalization_before_the_layer_does_not():
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 4, 3), nn.ReLU())
    assert free_scales(model, (1, 8, 8)) == {"1": False}


def test_order_of_definition_says_nothing_about_normalization():
    model = Wired(
        lambda m, x: m.norm(m.second(m.first(x))),
        first=nn.Linear(2, 3),
        norm=nn.BatchNorm1d(3),
        second=nn.Linear(3, 3),
    )
    assert free_scales(model, (2,)) == {"first": False, "second": True}


def test_a_sum_before_the_normalization_does_not_free_the_scale():
    model = Wired(lambda m, x: m.norm(m.conv(x) + x), conv=nn.Conv2d(2, 2, 1), norm=nn.BatchNorm2d(2))
    assert free_scales(model, (2, 4, 4)) == {"conv": False}


def test_a_sum_in_place_before_the_normalization_does_not_free_the_scale():
    def run(m, x):
        y = m.conv(x)
        y += x
        return m.norm(y)

    model = Wired(run, conv=nn.Conv2d(2, 2, 1), norm=nn.BatchNorm2d(2))
    assert free_scales(model, (2, 4, 4)) == {"conv": False}


def test_a_residual_block_normalizes_before_it_adds():
    model = Wired(
        lambda m, x: torch.relu(m.norm2(m.conv2(torch.relu(m.norm1(m.conv1(x))))) + m.shortcut_norm(m.shortcut(x))),
        conv1=nn.Conv2d(2, 4, 3, padding=1),
        norm1=nn.BatchNorm2d(4),
        conv2=nn.Conv2d(4, 4, 3, padding=1),
        norm2=nn.BatchNorm2d(4),
        shortcut=nn.Conv2d(2, 4, 1),
        shortcut_norm=nn.BatchNorm2d(4),
    )
    assert free_scales(model, (2, 4, 4)) == {"conv1": True, "conv2": True, "shortcut": True}


# Choosing


def test_convention_leaves_first_and_last_dense():
    layers = layers_named("a", "b", "c", "d")
    assert ternary_names(choose_layers(layers)) == ["b", "c"]
    assert ternary_names(choose_layers(layers, keep_first=False)) == ["a", "b", "c"]
    assert ternary_names(choose_layers(layers, keep_last=False)) == ["b", "c", "d"]
    assert ternary_names(choose_layers(layers, keep_first=False, keep_last=False)) == ["a", "b", "c", "d"]


def test_skip_takes_patterns():
    layers = layers_named("stem", "block1.conv", "block1.shortcut", "block2.conv", "block2.shortcut", "head")
    choices = choose_layers(layers, skip=["*.shortcut"])
    assert ternary_names(choices) == ["block1.conv", "block2.conv"]
    assert why(choices)["block1.shortcut"] == "skipped by name"
    assert why(choices)["stem"] == "first weight layer"


def test_only_overrules_the_convention():
    layers = layers_named("stem", "conv", "fc", "head")
    choices = choose_layers(layers, only=["stem", "f?"])
    assert ternary_names(choices) == ["stem", "fc"]
    assert why(choices)["conv"] == why(choices)["head"] == "not among the layers named"


def test_skip_takes_away_from_only():
    layers = layers_named("a1", "a2", "b1", "b2")
    assert ternary_names(choose_layers(layers, only=["a*", "b*"], skip=["*2"])) == ["a1", "b1"]


def test_patterns_mind_upper_and_lower_case():
    with pytest.raises(ModelError, match=r"'CONV\*' matches no weight layer"):
        choose_layers(layers_named("stem", "conv1", "head"), skip=["CONV*"])


@pytest.mark.parametrize("option", ["skip", "only"])
def test_a_pattern_without_a_layer_is_rejected_with_the_names_there_are(option):
    with pytest.raises(ModelError) as caught:
        choose_layers(layers_named("stem", "conv", "head"), **{option: ["conv", "cnov*"]})
    assert str(caught.value) == "the layer pattern 'cnov*' matches no weight layer: there are stem, conv, head"


def test_choices_say_why():
    free = WeightLayer("b", (10,), scale_is_free=True)
    bound = WeightLayer("c", (10,), scale_is_free=False)
    choices = choose_layers([*layers_named("a"), free, bound, *layers_named("d")])
    assert choices[1] == LayerChoice(free, True, "normalization follows: Θ rescaled")
    assert choices[2].ternary
    assert choices[2].why.startswith("no normalization follows")


def test_no_ternary_layer_is_rejected_with_each_reason():
    with pytest.raises(ModelError) as caught:
        choose_layers(layers_named("stem", "conv", "head", "spare", idle={"spare"}), skip=["conv"])
    assert str(caught.value) == (
        "the network has no layer to make ternary (stem: first weight layer; conv: skipped by name; "
        "head: last weight layer; spare: is never called as a module)"
    )


def test_a_single_layer_is_first_and_last():
    with pytest.raises(ModelError, match="only: first weight layer"):
        choose_layers(layers_named("only"))
    assert ternary_names(choose_layers(layers_named("only"), keep_first=False, keep_last=False)) == ["only"]
    with pytest.raises(ModelError, match="only: last weight layer"):
        choose_layers(layers_named("only"), keep_first=False)


def test_a_network_without_weight_layers_is_rejected():
    layers = weight_layers(nn.Sequential(nn.Flatten(), nn.ReLU()), (3,))
    assert layers == []
    with pytest.raises(ModelError, match="it has no weight layer"):
        choose_layers(layers)


# The forward pass that finds all this


def test_a_wrong_input_shape_is_the_users_mistake():
    with pytest.raises(ModelError, match=r"cannot process an input of shape \(5,\)"):
        weight_layers(nn.Sequential(nn.Linear(3, 2)), (5,))


def refuse(_model, x):
    raise ValueError(f"images wanted, got {x.dim() - 1} dimensions")


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)), Wired(refuse, a=nn.Linear(3, 2))],
    ids=["normalization first", "own check"],
)
def test_a_network_that_rejects_its_input_with_a_value_error_is_the_users_mistake_too(model):
    with pytest.raises(ModelError, match=r"cannot process an input of shape \(3,\)"):
        weight_layers(model, (3,))


def hooks_in(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(1, 8, 8), (7, 8, 8)], ids=["fits", "does not fit"])
def test_the_network_is_left_as_it_was(training, shape):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Conv2d(4, 2, 1)).train(training)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        weight_layers(model, shape)
    except ModelError:
        assert shape[0] == 7
    assert hooks_in(model) == 0
    assert all(module.training is training for module in model.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_part_held_in_evaluation_stays_there():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    model[1].eval()
    weight_layers(model, (1, 8, 8))
    assert [module.training for module in model] == [True, False, True]


def test_the_users_own_hooks_stay():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: None)
    weight_layers(model, (2,))
    assert hooks_in(model) == 1
