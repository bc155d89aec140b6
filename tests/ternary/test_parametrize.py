"""The method itself: the paper's equations and propositions, the sharpened form, rounding and counting.

Expected values come from the formulas restated in numpy, in double precision.
"""

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sca_search.ternary.parametrize import (
    TernaryWeight,
    Widened,
    ZeroCount,
    alpha_of_threshold,
    bake_trits,
    latent_of_dense,
    latents,
    nearest_trits_of,
    parametrize_layers,
    rounding,
    soft_weight,
    soft_weights,
    straight_through,
    ternary_weights,
    threshold_of_alpha,
    total,
    trits_at,
    wdr,
    zero_counts,
)

quick = settings(max_examples=50, deadline=None, derandomize=True)
thetas = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=12)
alphas = st.floats(0, 1.98)
basin_alphas = st.floats(0.05, 1.9)
sharpnesses = st.floats(0.5, 50)


def sparsity(model: nn.Module) -> ZeroCount:
    """Zeros if the network were rounded now."""
    return total(zero_counts(nearest_trits_of(model)))


def ternary_linear(theta, form="paper", alpha=0.0, sharpness=1.0, dtype=torch.float64):
    """A network of one ternary layer with one output, its latent weights as given."""
    theta = torch.as_tensor(np.asarray(theta), dtype=dtype).reshape(1, -1)
    model = nn.Sequential(nn.Linear(theta.numel(), 1, bias=False, dtype=dtype))
    parametrize_layers(model, {"0": 1.0}, form)
    with torch.no_grad():
        latents(model)["0"].copy_(theta)
    weight = ternary_weights(model)["0"]
    weight.alpha, weight.sharpness = alpha, sharpness
    return model


def gradient_of_wdr(theta, **settings_of_layer):
    """dR/dθ as training gets it: one forward pass, then the regularizer alone."""
    model = ternary_linear(theta, **settings_of_layer)
    model(torch.zeros(1, len(theta), dtype=torch.float64))
    ternary_weights(model)["0"].wdr().backward()
    return latents(model)["0"].grad.numpy().ravel()


def descend(theta, alpha, steps=1000, rate=0.25):
    """Where gradient descent on R alone takes each θ: tanh of it."""
    model = ternary_linear(theta, alpha=alpha)
    latent, weight = latents(model)["0"], ternary_weights(model)["0"]
    optimizer = torch.optim.SGD([latent], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        assert model[0].weight.shape == latent.shape  # a pass over the weight is what the regularizer needs
        weight.wdr().backward()
        optimizer.step()
    return np.tanh(latent.detach().numpy().ravel())


def numpy_sharpened(theta, beta, t):
    return 0.5 * (np.tanh(beta * (theta - t)) + np.tanh(beta * (theta + t)))


class CountCurves(TorchFunctionMode):
    """Counts the calls of tanh and of its logistic twin made within."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += func in {torch.tanh, torch.Tensor.tanh, torch.Tensor.tanh_, torch.sigmoid, torch.Tensor.sigmoid}
        return func(*args, **(kwargs or {}))


# The paper's equations


@quick
@given(thetas)
def test_soft_weight_is_tanh_in_the_papers_form(theta):
    theta = np.array(theta)
    weight = ternary_linear(theta)[0].weight
    np.testing.assert_allclose(weight.detach().numpy().ravel(), np.tanh(theta), rtol=1e-14)


def test_task_gradient_reaches_theta_by_the_chain_rule():
    rng = np.random.default_rng(0)
    theta, x, y = rng.normal(size=5), rng.normal(size=(7, 5)), rng.normal(size=7)
    model = ternary_linear(theta)
    loss = (model(torch.from_numpy(x)).squeeze(1) - torch.from_numpy(y)).square().sum()
    loss.backward()
    weight = np.tanh(theta)
    over_weight = 2 * x.T @ (x @ weight - y)
    assert float(loss.detach()) == pytest.approx(np.sum((x @ weight - y) ** 2))
    np.testing.assert_allclose(latents(model)["0"].grad.numpy().ravel(), over_weight * (1 - weight**2), rtol=1e-10)


@quick
@given(thetas, st.floats(0, 5))
def test_wdr_is_the_sum_of_eq_4(theta, alpha):
    square = np.tanh(np.array(theta)) ** 2
    r = wdr(torch.tanh(torch.tensor(theta, dtype=torch.float64)), alpha)
    assert r.shape == ()
    assert float(r) == pytest.approx(float(((alpha - square) * square).sum()), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.7, 2.0, 4.0])
def test_wdr_at_its_stationary_points_by_hand(alpha):
    r = lambda *soft: float(wdr(torch.tensor(soft, dtype=torch.float64), alpha))  # noqa: E731
    assert r(0.0) == 0.0
    assert r(1.0) == r(-1.0) == alpha - 1
    assert r(1.0, -1.0, 0.0) == 2 * (alpha - 1)  # a sum, not a mean
    if alpha <= 2:
        assert r(math.sqrt(alpha / 2)) == pytest.approx(alpha**2 / 4)


@quick
@given(thetas, st.floats(0, 5))
def test_gradient_of_wdr_is_eq_9(theta, alpha):
    soft = np.tanh(np.array(theta))
    expected = 2 * soft * (1 - soft**2) * (alpha - 2 * soft**2)
    np.testing.assert_allclose(gradient_of_wdr(theta, alpha=alpha), expected, rtol=1e-9, atol=1e-13)


# Propositions 1 to 3

STARTS = np.linspace(-2, 2, 41)


def test_proposition_1_without_alpha_every_weight_leaves_zero():
    moving = STARTS[np.abs(STARTS) > 0.01]
    np.testing.assert_allclose(descend(moving, 0.0), np.sign(moving), atol=5e-3)
    assert descend([0.0], 0.0).tolist() == [0.0]  # the maximum: no gradient, but not where anything is pulled
    grid = np.linspace(-3, 3, 60)  # without 0 itself
    assert (np.sign(gradient_of_wdr(grid, alpha=0.0)) == -np.sign(grid)).all()


@pytest.mark.parametrize("alpha", [2.0, 3.0, 10.0])
def test_proposition_2_from_alpha_2_on_every_weight_goes_to_zero(alpha):
    rate = 0.5 / alpha  # R's curvature at 0 is 2α
    np.testing.assert_allclose(descend(STARTS, alpha, rate=rate), 0.0, atol=5e-3)
    grid = np.linspace(-3, 3, 60)
    assert (np.sign(gradient_of_wdr(grid, alpha=alpha)) == np.sign(grid)).all()


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 1.5])
def test_proposition_3_basins_end_at_zero_and_at_plus_minus_one(alpha):
    border = np.sqrt(alpha / 2)
    starts = STARTS[np.abs(np.abs(np.tanh(STARTS)) - border) > 0.02]
    expected = np.where(np.abs(np.tanh(starts)) < border, 0.0, np.sign(starts))
    np.testing.assert_allclose(descend(starts, alpha), expected, atol=5e-3)


@quick
@given(basin_alphas)
def test_proposition_3_gradient_changes_sign_at_the_border(alpha):
    border = np.arctanh(np.sqrt(alpha / 2))
    at, inside, outside = gradient_of_wdr([border, border * 0.99, border * 1.01], alpha=alpha)
    assert at == pytest.approx(0, abs=1e-14)
    assert inside > 0 > outside  # uphill before it, downhill behind it: a maximum
    assert (gradient_of_wdr([-border * 0.99, -border * 1.01], alpha=alpha) * [-1, 1] > 0).all()


def test_proposition_3_zeros_grow_with_alpha():
    starts = np.random.default_rng(1).uniform(0.05, 1.5, size=200) * np.resize([-1, 1], 200)
    shares = []
    for alpha in (0.0, 0.2, 0.6, 1.0, 1.4, 2.0):
        inside = np.abs(np.tanh(starts)) < np.sqrt(alpha / 2)
        zeros = np.abs(descend(starts, alpha)) < 0.5
        # Starts next to the border may not have left it after so few steps.
        assert abs(int(zeros.sum()) - int(inside.sum())) <= 2
        shares.append(zeros.mean())
    assert shares[0] == 0
    assert shares[-1] == 1
    assert (np.diff(shares) > 0.1).all()


# The border and its inverse


def test_threshold_of_alpha_by_hand():
    assert threshold_of_alpha(0.0) == 0.0
    assert threshold_of_alpha(0.5) == pytest.approx(math.log(3) / 2)  # atanh ½
    assert threshold_of_alpha(2.0) == threshold_of_alpha(7.0) == math.inf
    assert alpha_of_threshold(0.0) == 0.0
    assert alpha_of_threshold(math.log(3) / 2) == pytest.approx(0.5)
    assert alpha_of_threshold(math.inf) == 2.0


@quick
@given(alphas)
def test_threshold_and_alpha_are_inverse(alpha):
    assert alpha_of_threshold(threshold_of_alpha(alpha)) == pytest.approx(alpha, rel=1e-12, abs=1e-300)


# The two forms


@quick
@given(thetas)
def test_sharpness_1_and_threshold_0_are_the_papers_form_bit_for_bit(theta):
    upstream = torch.linspace(-1, 1, len(theta))
    papers = torch.tensor(theta, requires_grad=True)
    ours = torch.tensor(theta, requires_grad=True)
    expected, got = torch.tanh(papers), soft_weight(ours, 1.0, 0.0)
    assert torch.equal(got, expected)
    (expected * upstream).sum().backward()
    (got * upstream).sum().backward()
    assert torch.equal(ours.grad, papers.grad)


@quick
@given(thetas)
def test_sharpened_form_with_alpha_0_is_the_papers_network_bit_for_bit(theta):
    x = torch.linspace(-1, 1, 3 * len(theta)).reshape(3, -1)
    plain = torch.tensor([theta], requires_grad=True)
    soft = torch.tanh(plain)
    expected = F.linear(x, soft)
    (expected.square().sum() + 0.01 * ((0.0 - soft * soft) * (soft * soft)).sum()).backward()
    for form in ("paper", "sharpened"):
        model = ternary_linear(theta, form=form, dtype=torch.float32)
        got = model(x)
        (got.square().sum() + 0.01 * ternary_weights(model)["0"].wdr()).backward()
        assert torch.equal(got, expected)
        assert torch.equal(latents(model)["0"].grad, plain.grad)


@quick
@given(thetas, sharpnesses, alphas)
def test_sharpened_weight_against_numpy(theta, beta, alpha):
    theta, t = np.array(theta), np.arctanh(np.sqrt(alpha / 2))
    latent = torch.tensor(theta, requires_grad=True)
    soft = soft_weight(latent, beta, threshold_of_alpha(alpha))
    np.testing.assert_allclose(soft.detach().numpy(), numpy_sharpened(theta, beta, t), rtol=1e-9, atol=1e-12)
    soft.sum().backward()
    slope = (1 - np.tanh(beta * (theta - t)) ** 2) + (1 - np.tanh(beta * (theta + t)) ** 2)
    np.testing.assert_allclose(latent.grad.numpy(), beta / 2 * slope, rtol=1e-6, atol=1e-9)


@quick
@given(thetas, sharpnesses, alphas)
def test_sharpened_layer_computes_with_the_threshold_of_alpha(theta, beta, alpha):
    weight = ternary_linear(theta, form="sharpened", alpha=alpha, sharpness=beta)[0].weight
    expected = numpy_sharpened(np.array(theta), beta, np.arctanh(np.sqrt(alpha / 2)))
    np.testing.assert_allclose(weight.detach().numpy().ravel(), expected, rtol=1e-9, atol=1e-12)


@quick
@given(thetas, sharpnesses, alphas)
def test_soft_weight_is_odd_and_rises(theta, beta, alpha):
    theta = torch.tensor(sorted(theta), dtype=torch.float64)
    t = threshold_of_alpha(alpha)
    soft = soft_weight(theta, beta, t)
    assert torch.equal(soft_weight(-theta, beta, t), -soft)
    assert (soft.diff() >= -1e-15).all()
    assert (soft.abs() <= 1).all()


@quick
@given(thetas, st.floats(0.1, 1.9))
def test_large_sharpness_is_rounding_at_the_border(theta, alpha):
    border = np.arctanh(np.sqrt(alpha / 2))
    theta = np.array([each for each in theta if abs(abs(each) - border) > 1e-3] or [0.0])
    trits = np.where(np.abs(theta) < border, 0.0, np.sign(theta))
    soft = soft_weight(torch.tensor(theta), 1e4, border)
    np.testing.assert_allclose(soft.numpy(), trits, atol=1e-6)
    assert soft.round().tolist() == trits.tolist()


def test_large_sharpness_without_threshold_is_the_sign():
    soft = soft_weight(torch.tensor([-1.0, -0.01, 0.0, 0.01, 1.0]), 1e4, 0.0)
    assert soft.tolist() == [-1, -1, 0, 1, 1]


def test_alpha_2_gives_zeros_and_no_nan_in_the_sharpened_form():
    model = ternary_linear([-30.0, -1.0, 0.0, 2.0], form="sharpened", alpha=2.0, sharpness=5.0)
    model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    assert soft_weights(model)["0"].tolist() == [[0, 0, 0, 0]]
    assert latents(model)["0"].grad.tolist() == [[0, 0, 0, 0]]


@quick
@given(thetas, st.floats(0.5, 5), st.floats(1, 200), alphas)
def test_a_widened_weight_is_sharp_forwards_and_has_the_wide_ones_gradient(theta, wide, factor, alpha):
    t = threshold_of_alpha(alpha)
    latent = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    soft = Widened.apply(latent, wide * factor, wide, t)
    exact = np.array(theta)
    value = (np.tanh(wide * factor * (exact - t)) + np.tanh(wide * factor * (exact + t))) / 2
    np.testing.assert_allclose(soft.detach().numpy(), value, atol=1e-12)
    soft.sum().backward()
    slope = wide / 2 * (2 - np.tanh(wide * (exact - t)) ** 2 - np.tanh(wide * (exact + t)) ** 2)
    np.testing.assert_allclose(latent.grad.numpy(), slope, atol=1e-12)


@pytest.mark.parametrize("gradient_sharpness", [2.0, 8.0, 100.0])
def test_a_layers_gradient_is_its_own_until_it_is_sharper_than_told(gradient_sharpness):
    model = ternary_linear([0.3, -0.6, 0.9], form="sharpened", alpha=0.5)
    weight = ternary_weights(model)["0"]
    weight.sharpness, weight.gradient_sharpness = 8.0, gradient_sharpness
    model[0].weight.sum().backward()
    theta = latents(model)["0"].detach().clone().requires_grad_()
    soft_weight(theta, min(8.0, gradient_sharpness), weight.threshold).sum().backward()
    torch.testing.assert_close(latents(model)["0"].grad, theta.grad)
    torch.testing.assert_close(soft_weights(model)["0"], soft_weight(theta, 8.0, weight.threshold).detach())


# The straight-through form


@quick
@given(thetas, st.floats(0, 3, width=32))
def test_straight_through_is_trits_forwards_and_1_backwards(theta, threshold):
    latent = torch.tensor(theta, requires_grad=True)
    soft = straight_through(trits_at(latent.detach(), threshold), latent)
    trits = np.where(np.abs(theta) > threshold, np.sign(theta), 0.0)
    assert soft.tolist() == trits.tolist()
    upstream = torch.linspace(-1, 2, len(theta))
    (soft * upstream).sum().backward()
    assert torch.equal(latent.grad, upstream)


@quick
@given(thetas, alphas)
def test_a_straight_through_layer_rounds_at_the_border_of_alpha(theta, alpha):
    model = ternary_linear(theta, form="straight-through", alpha=alpha)
    trits = np.where(np.abs(theta) > threshold_of_alpha(alpha), np.sign(theta), 0.0)
    assert model[0].weight.detach().numpy().ravel().tolist() == trits.tolist()
    with rounding(ternary_weights(model).values()):
        assert model[0].weight.detach().numpy().ravel().tolist() == trits.tolist()
    assert sparsity(model).zeros == int((trits == 0).sum())


def test_a_straight_through_layers_task_gradient_ignores_the_rounding():
    rng = np.random.default_rng(0)
    theta, x, y = rng.normal(size=5), rng.normal(size=(7, 5)), rng.normal(size=7)
    model = ternary_linear(theta, form="straight-through", alpha=2 * np.tanh(0.5) ** 2)
    (model(torch.from_numpy(x)).squeeze(1) - torch.from_numpy(y)).square().sum().backward()
    trits = np.where(np.abs(theta) > 0.5, np.sign(theta), 0.0)
    expected = 2 * x.T @ (x @ trits - y)
    np.testing.assert_allclose(latents(model)["0"].grad.numpy().ravel(), expected, rtol=1e-10)


def test_an_infinite_basin_leaves_a_straight_through_layer_nothing():
    assert not trits_at(torch.tensor([-30.0, 0.0, 2.0]), math.inf).any()


# Θ from a dense weight


@quick
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=10), st.floats(0.1, 2))
def test_latent_of_dense_rescales_to_the_spread(weights, spread):
    weights = np.array(weights)
    root_mean_square = np.sqrt(np.mean(weights**2))
    if root_mean_square < 1e-15:  # squares of float32 numbers below that are gone
        return
    latent = latent_of_dense(torch.tensor(weights, dtype=torch.float32), spread).double().numpy()
    np.testing.assert_allclose(latent, weights * spread / root_mean_square, rtol=1e-4, atol=1e-30)
    assert np.sqrt(np.mean(latent**2)) == pytest.approx(spread, rel=1e-4)


@quick
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=10), st.floats(0.1, 2))
def test_latent_of_dense_is_always_finite_and_keeps_signs(weights, spread):
    latent = latent_of_dense(torch.tensor(weights), spread).numpy()
    assert np.isfinite(latent).all()
    assert (latent * np.sign(weights) >= 0).all()
    assert (latent[np.array(weights) == 0] == 0).all()


def test_latent_of_dense_leaves_all_zero_weights_at_zero():
    weight = torch.zeros(2, 3)
    latent = latent_of_dense(weight, 0.6)
    assert latent.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert latent is not weight


# The regularizer and the pass before it


@pytest.mark.parametrize(("form", "curves"), [("paper", 1), ("sharpened", 2)])
def test_wdr_takes_the_very_weight_of_the_forward_pass(form, curves):
    model = ternary_linear([0.2, -1.0, 0.4], form=form, alpha=0.5, sharpness=3.0 if form == "sharpened" else 1.0)
    weight = ternary_weights(model)["0"]
    used = []
    model[0].parametrizations.weight.register_forward_hook(lambda _module, _inputs, output: used.append(output))
    with CountCurves() as count:
        model(torch.ones(1, 3, dtype=torch.float64))
        r = weight.wdr()
    assert count.calls == curves  # of the forward pass: the regularizer adds none
    assert len(used) == 1
    expected = (used[0] ** 2 * (weight.alpha_of_soft() - used[0] ** 2)).sum()
    assert r.item() == pytest.approx(expected.item(), rel=1e-12)
    (over_used,) = torch.autograd.grad(r, used[0])  # raises if R were not computed from it
    assert over_used.abs().sum() > 0


def test_take_soft_gives_the_weight_itself_once():
    model = ternary_linear([0.2, -1.0])
    used = model[0].weight
    weight = ternary_weights(model)["0"]
    assert weight.pop_soft_weight() is used
    with pytest.raises(RuntimeError, match="forward pass"):
        weight.pop_soft_weight()
    with pytest.raises(RuntimeError, match="forward pass"):
        weight.wdr()


def test_wdr_rejects_before_any_forward_pass():
    model = nn.Sequential(nn.Linear(3, 2))
    parametrize_layers(model, {"0": 0.6})
    with pytest.raises(RuntimeError, match="forward pass"):
        ternary_weights(model)["0"].wdr()


def test_a_new_pass_replaces_the_weight_of_the_last():
    model = ternary_linear([0.5, 0.5], alpha=1.0)
    x = torch.ones(1, 2, dtype=torch.float64)
    model(x)
    with torch.no_grad():
        latents(model)["0"].fill_(0.0)
    model(x)
    assert ternary_weights(model)["0"].wdr().item() == 0.0


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
def test_a_pass_without_gradients_keeps_nothing(quiet):
    model = ternary_linear([0.5, -0.5])
    weight = ternary_weights(model)["0"]
    model(torch.ones(1, 2, dtype=torch.float64))
    weight.pop_soft_weight()
    with quiet():
        model(torch.ones(1, 2, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="forward pass"):
        weight.pop_soft_weight()


def test_a_rounded_pass_is_not_mistaken_for_a_training_pass():
    model = ternary_linear([0.5, -0.5])
    weight = ternary_weights(model)["0"]
    model(torch.ones(1, 2, dtype=torch.float64))
    weight.pop_soft_weight()
    with rounding(ternary_weights(model).values()):
        model(torch.ones(1, 2, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="forward pass"):
        weight.pop_soft_weight()


@quick
@given(basin_alphas, sharpnesses)
def test_alpha_of_soft_puts_the_maximum_at_the_sharpened_border(alpha, beta):
    border = np.arctanh(np.sqrt(alpha / 2))
    weight = TernaryWeight("sharpened")
    weight.alpha, weight.sharpness = alpha, beta
    at_border = numpy_sharpened(border, beta, border)
    assert math.sqrt(weight.alpha_of_soft() / 2) == pytest.approx(at_border, rel=1e-9)
    grid = np.linspace(0, 2 * border, 2001)  # its middle is the border
    soft = numpy_sharpened(grid, beta, border)
    r = (weight.alpha_of_soft() - soft**2) * soft**2
    assert r[1000] == pytest.approx(r.max(), rel=1e-12)
    below, above = gradient_of_wdr([border * 0.98, border * 1.02], form="sharpened", alpha=alpha, sharpness=beta)
    assert below >= 0 >= above


def test_alpha_of_soft_is_alpha_in_the_papers_form():
    weight = TernaryWeight("paper")
    weight.alpha = 0.7
    assert weight.alpha_of_soft() == 0.7


# Networks


class Mixed(nn.Module):
    """Every kind of weight layer, nested, with biases and a normalization between them."""

    def __init__(self):
        super().__init__()
        self.signal = nn.ModuleDict({"conv": nn.Conv1d(1, 2, 3, padding=1)})
        self.plane = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3))
        self.volume = nn.Conv3d(3, 2, 2, groups=1)
        self.head = nn.Linear(2 * 3 * 3, 4)

    def forward(self, x):
        x = self.signal["conv"](x.unsqueeze(1))  # batch, 2, 16
        x = self.plane(x[:, :1].reshape(-1, 1, 4, 4))
        x = self.volume(torch.stack([x, x], dim=2))
        return self.head(x.flatten(1))


MIXED = {"signal.conv": (2, 1, 3), "plane.0": (3, 1, 3, 3), "volume": (2, 3, 2, 2, 2), "head": (4, 18)}


def mixed_network(seed=0, form="paper", spread=0.6):
    torch.manual_seed(seed)
    model = Mixed()
    dense = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parametrize_layers(model, dict.fromkeys(MIXED, spread), form)
    return model, dense


def test_ternarize_takes_every_kind_of_weight_layer():
    model, dense = mixed_network(spread=0.6)
    assert {name: tuple(latent.shape) for name, latent in latents(model).items()} == MIXED
    assert list(ternary_weights(model)) == list(MIXED)
    for name in MIXED:
        assert isinstance(latents(model)[name], nn.Parameter)
        weight = dense[f"{name}.weight"].double().numpy()
        expected = np.tanh(weight * 0.6 / np.sqrt(np.mean(weight**2)))
        np.testing.assert_allclose(model.get_submodule(name).weight.detach().numpy(), expected, atol=1e-6)
    for name in ("signal.conv.bias", "head.bias", "plane.1.weight"):
        assert torch.equal(model.get_parameter(name), dense[name])
    assert model(torch.randn(2, 16)).shape == (2, 4)


def test_ternarize_takes_only_the_layers_named_each_with_its_spread():
    model = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 30), nn.Linear(30, 2))
    untouched = model[2].weight
    parametrize_layers(model, {"0": 0.5, "1": 1.5}, "sharpened")
    assert model[2].weight is untouched
    for name, spread in {"0": 0.5, "1": 1.5}.items():
        assert np.sqrt(np.mean(latents(model)[name].detach().numpy() ** 2)) == pytest.approx(spread, rel=1e-5)
        assert ternary_weights(model)[name].form == "sharpened"


def test_every_latent_of_a_network_gets_a_gradient():
    model, _ = mixed_network()
    loss = model(torch.randn(3, 16)).square().sum()
    (loss + sum(weight.wdr() for weight in ternary_weights(model).values())).backward()
    assert all(latent.grad.abs().sum() > 0 for latent in latents(model).values())


def test_rounded_computes_with_trits_and_only_within():
    theta = np.array([0.2, 0.6, -0.9, -0.5, 2.0])
    model = ternary_linear(theta)
    x = np.array([[1.0, 10, 100, 1000, 10000]])
    with rounding(ternary_weights(model).values()):
        assert model(torch.from_numpy(x)).item() == 10 - 100 + 10000
        assert model[0].weight.tolist() == [[0, 1, -1, 0, 1]]
    assert model(torch.from_numpy(x)).item() == pytest.approx((x @ np.tanh(theta)).item())


def test_rounded_ends_with_an_error_too():
    model = ternary_linear([0.2, 2.0])
    with pytest.raises(KeyError), rounding(ternary_weights(model).values()):
        raise KeyError
    assert model[0].weight.tolist() == pytest.approx(np.tanh([[0.2, 2.0]]))


def test_rounded_may_be_nested():
    model = ternary_linear([0.2, 2.0])
    with rounding(ternary_weights(model).values()):
        with rounding(ternary_weights(model).values()):
            pass
        assert model[0].weight.tolist() == [[0, 1]]


@pytest.mark.parametrize("form", ["paper", "sharpened"])
def test_bake_leaves_a_plain_network_with_the_rounded_outputs(form):
    model, dense = mixed_network(seed=3, form=form)
    for weight in ternary_weights(model).values():
        weight.alpha, weight.sharpness = 0.4, 1.0 if form == "paper" else 30.0
    model.eval()
    x = torch.randn(5, 16)
    with torch.no_grad(), rounding(ternary_weights(model).values()):
        expected = model(x)
    trits = {name: soft.round() for name, soft in soft_weights(model).items()}

    assert bake_trits(model) is model
    assert ternary_weights(model) == {}
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    for name in MIXED:
        layer = model.get_submodule(name)
        assert type(layer) is type(Mixed().get_submodule(name))
        assert type(layer.weight) is nn.Parameter
        assert not layer.weight.requires_grad
        assert set(layer.weight.unique().tolist()) <= {-1, 0, 1}
        assert torch.equal(layer.weight, trits[name])
        assert layer.bias is None or layer.bias.requires_grad
    assert model.state_dict().keys() == dense.keys()


def test_a_baked_network_can_be_copied_saved_and_loaded_into_a_dense_one():
    model, _ = mixed_network(seed=4)
    bake_trits(model).eval()
    x = torch.randn(2, 16)
    expected = model(x)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = Mixed().eval()
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(fresh(x), expected)
    assert not torch.equal(Mixed().eval()(x), expected)


def test_bake_puts_in_the_trits_given():
    model = ternary_linear([0.1, 0.2, 3.0])
    bake_trits(model, {"0": torch.tensor([[-1.0, 0.0, 0.0]])})
    assert model[0].weight.tolist() == [[-1, 0, 0]]
    assert model[0].weight.dtype == torch.float64


def test_training_after_bake_leaves_the_trits():
    model, _ = mixed_network()
    bake_trits(model)
    before = {name: model.get_submodule(name).weight.clone() for name in MIXED}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    model(torch.randn(4, 16)).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(model.get_submodule(name).weight, before[name]) for name in MIXED)


# Counting


def test_sparsity_is_counted_by_layer_and_overall():
    # tanh crosses ½ at ½ ln 3 = 0.5493
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(6, 1), nn.Linear(3, 3))
    parametrize_layers(model, {"0": 1.0, "1": 1.0})
    with torch.no_grad():
        latents(model)["0"].copy_(torch.tensor([[0.0, 0.5], [0.6, -2.0]]))
        latents(model)["1"].copy_(torch.tensor([[0.54, 0.55, -0.54, -0.55, 3.0, 0.0]]))
    counts = zero_counts({name: soft.round() for name, soft in soft_weights(model).items()})
    assert counts == {"0": ZeroCount(2, 4), "1": ZeroCount(3, 6)}
    assert total(counts) == ZeroCount(5, 10)
    assert sparsity(model) == ZeroCount(5, 10)
    assert [count.sparsity for count in counts.values()] == [0.5, 0.5]
    assert sparsity(model).sparsity == 0.5


def test_sparsity_of_the_sharpened_form_follows_its_border():
    model = ternary_linear([0.1, 0.29, -0.31, 0.6], form="sharpened", alpha=2 * np.tanh(0.3) ** 2, sharpness=500.0)
    assert sparsity(model) == ZeroCount(2, 4)


def test_sparsity_is_the_one_that_baking_leaves():
    model, _ = mixed_network(seed=5)
    expected = sparsity(model)
    bake_trits(model)
    trits = np.concatenate([model.get_submodule(name).weight.detach().numpy().ravel() for name in MIXED])
    assert expected == ZeroCount(int((trits == 0).sum()), 2 * 3 + 3 * 9 + 2 * 3 * 8 + 4 * 18)


def test_nothing_has_no_zeros():
    assert total({}) == ZeroCount(0, 0)
    assert total({}).sparsity == 0.0
