"""The method itself: the paper's equations and propositions, the decoupled form, rounding and counting.

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
from scipy.integrate import solve_ivp
from torch import nn
from torch.overrides import TorchFunctionMode

from sca_search.ternary.parametrize import (
    GRADIENT_FLOW,
    TernaryWeight,
    ZeroCount,
    alpha_of_threshold,
    bake_trits,
    gradient_agreement,
    latent_of_dense,
    latents,
    nearest_trits_of,
    parametrize_layers,
    rounding,
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
strengths = st.floats(0, 30)


def sparsity(model: nn.Module) -> ZeroCount:
    """Zeros if the network were rounded now."""
    return total(zero_counts(nearest_trits_of(model)))


def ternary_linear(theta, form="paper", alpha=0.0, strength=0.0, dtype=torch.float64):
    """A network of one ternary layer with one output, its latent weights as given."""
    theta = torch.as_tensor(np.asarray(theta), dtype=dtype).reshape(1, -1)
    model = nn.Sequential(nn.Linear(theta.numel(), 1, bias=False, dtype=dtype))
    parametrize_layers(model, {"0": 1.0}, form)
    with torch.no_grad():
        latents(model)["0"].copy_(theta)
    weight = ternary_weights(model)["0"]
    weight.set_alpha(alpha)
    weight.wdr_strength = strength
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


def decoupled(alpha, strength, **attributes):
    """The parametrization of the decoupled form."""
    weight = TernaryWeight("decoupled")
    weight.set_alpha(alpha)
    weight.wdr_strength = strength
    for name, value in attributes.items():
        setattr(weight, name, value)
    return weight


def numpy_decoupled(theta, alpha, strength):
    """W = sign θ √(n/d) with n = y₀ e^(−u) and d = 1 − 8λ y₀ (1 − e^(−u))/u; ±1 where d ≤ n."""
    y, u = np.tanh(theta) ** 2, 4 * alpha * strength
    n, d = y * np.exp(-u), 1 - 8 * strength * y * (-np.expm1(-u) / u if u else 1.0)
    return np.sign(theta) * np.where(d <= n, 1.0, np.sqrt(n / np.where(d <= n, 1.0, d)))


def solved_flow(theta, alpha, time):
    """dw/dτ = −2w (α − 2w²) from w = tanh θ, by an ODE solver; it stops at ±1."""
    stopped = lambda _, w: abs(w[0]) - 1.0  # noqa: E731
    stopped.terminal = True
    slope = lambda _, w: -2 * w * (alpha - 2 * w * w)  # noqa: E731
    solved = solve_ivp(slope, (0, time), [np.tanh(theta)], "DOP853", events=stopped, rtol=1e-12, atol=1e-14)
    return solved.y[0, -1]


class CountTanh(TorchFunctionMode):
    """Counts the calls of tanh made within."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += func in {torch.tanh, torch.Tensor.tanh, torch.Tensor.tanh_}
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


# The decoupled form


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.4, 1.0, 1.9, 2.0, 2.5])
@pytest.mark.parametrize("strength", [0.0, 0.02, 0.3, 1.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_forward_pass_follows_the_gradient_flow_of_wdr(alpha, strength, dtype):
    theta = np.array([-2.5, -1.1, -0.7, -0.2, -1e-3, 0.0, 0.03, 0.25, 0.4, 0.8, 1.3, 5.0])
    border = threshold_of_alpha(alpha)
    assert np.abs(np.abs(theta) - border).min() > 0.02 or alpha == 0  # the flow amplifies errors at the border
    soft = decoupled(alpha, strength)(torch.tensor(theta, dtype=dtype)).double().numpy()
    expected = [solved_flow(each, alpha, strength) for each in theta]
    np.testing.assert_allclose(soft, expected, rtol=1e-8 if dtype == torch.float64 else 1e-4, atol=1e-10)


@quick
@given(thetas, alphas, st.floats(0, 8))
def test_decoupled_weight_against_numpy(theta, alpha, strength):
    theta = np.array(theta)
    soft = decoupled(alpha, strength)(torch.tensor(theta)).numpy()
    growth = np.exp(4 * alpha * strength)  # of rounding errors at the border
    np.testing.assert_allclose(soft, numpy_decoupled(theta, alpha, strength), rtol=1e-6, atol=1e-15 * (1 + growth))
    layer = ternary_linear(theta, "decoupled", alpha, strength)
    np.testing.assert_array_equal(layer[0].weight.detach().numpy().ravel(), soft)


@quick
@given(thetas, st.floats(0, 2.5), strengths, st.sampled_from([torch.float32, torch.float64]))
def test_decoupled_weight_is_odd_and_rises(theta, alpha, strength, dtype):
    theta = torch.tensor(sorted(theta), dtype=dtype)
    weight, rounding_error = decoupled(alpha, strength), 4 * torch.finfo(dtype).eps
    soft = weight(theta)
    assert torch.equal(weight(-theta), -soft)
    assert (soft.diff() >= -rounding_error).all()
    assert (soft.abs() <= 1 + rounding_error).all()


@quick
@given(thetas, st.floats(0, 2.5))
def test_without_strength_the_decoupled_weight_is_tanh(theta, alpha):
    theta = torch.tensor(theta, dtype=torch.float64)
    torch.testing.assert_close(decoupled(alpha, 0.0)(theta), theta.tanh(), rtol=1e-14, atol=0)


@quick
@given(thetas, st.floats(0.02, 1.9))
def test_a_large_strength_splits_trits_at_the_border(theta, alpha):
    border = threshold_of_alpha(alpha)
    theta = np.array([each for each in theta if abs(abs(each) - border) > 1e-4] or [0.0])
    trits = np.where(np.abs(theta) < border, 0.0, np.sign(theta))
    np.testing.assert_allclose(decoupled(alpha, 1e4)(torch.tensor(theta)).numpy(), trits, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.01, 1.0, 3.9, 8.0, 15.0, 19.0, 40.0, 90.0])
def test_single_precision_has_its_border_at_any_threshold(threshold):
    """The threshold itself is stored: from 19 on, α = 2 tanh²t is 2, whose border is infinite."""
    weight = TernaryWeight("decoupled")
    weight.set_threshold(threshold)
    weight.wdr_strength = 1e6
    theta = torch.tensor([0.0, 0.5, 0.999, 1.001, 1.5]) * threshold
    signed = torch.cat([theta, -theta])
    expected = [0, 0, 0, 1, 1, 0, 0, 0, -1, -1]
    np.testing.assert_allclose(weight(signed).numpy(), expected, atol=1e-5)
    assert trits_at(signed, weight.forward_threshold).tolist() == expected


@pytest.mark.parametrize("threshold", [4.0, 8.0, 15.0, 19.0])
@pytest.mark.parametrize("strength", [0.3, 2.0, 5.0])
def test_large_thresholds_have_the_flow_of_small_ones(threshold, strength):
    """1/W² − 1 = e^u / sinh²θ − (e^u − 1) / sinh²t: the same flow, without tanh² of large numbers."""
    weight = TernaryWeight("decoupled")
    weight.set_threshold(threshold)
    weight.wdr_strength = strength
    theta = np.linspace(0.04, 1.3, 24) * threshold
    u = 8 * np.tanh(threshold) ** 2 * strength
    rest = np.exp(u) / np.sinh(theta) ** 2 - np.expm1(u) / np.sinh(threshold) ** 2
    expected = 1 / np.sqrt(1 + np.maximum(rest, 0))
    np.testing.assert_allclose(weight(torch.tensor(theta)).numpy(), expected, rtol=1e-9)
    single = weight(torch.tensor(theta, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(single, expected, rtol=2e-4)


def test_an_infinite_threshold_leaves_a_decoupled_layer_nothing():
    model = ternary_linear([-30.0, -1.0, 0.0, 2.0], "decoupled", math.inf, strength=1e3)
    for alpha in (2.0, 2.5):
        ternary_weights(model)["0"].set_alpha(alpha)
        model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
        np.testing.assert_allclose(soft_weights(model)["0"], [[0, 0, 0, 0]], atol=1e-12)
        assert latents(model)["0"].grad.isfinite().all()


# Its gradient


def gradient_of(weight, theta):
    """∂W/∂θ as backpropagation has it."""
    latent = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    weight(latent).sum().backward()
    return latent.grad.numpy()


@quick
@given(thetas, st.floats(0, 2.5), st.floats(0, 3))
def test_straight_through_and_tanh_gradients_ignore_the_flow(theta, alpha, strength):
    theta = np.array(theta)
    of = lambda kind: gradient_of(decoupled(alpha, strength, gradient=kind), theta)  # noqa: E731
    np.testing.assert_array_equal(of("straight-through"), 1.0)
    np.testing.assert_allclose(of("tanh"), 1 - np.tanh(theta) ** 2, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.2, 1.9, 2.5])
@pytest.mark.parametrize("strength", [0.0, 0.1, 0.7, 5.0])
def test_flow_gradient_is_that_of_a_short_flow_over_its_growth(alpha, strength):
    """Of at most u = GRADIENT_FLOW; divided by e^u, and at most 1."""
    theta, step = np.concatenate([np.linspace(-2.0, 2.0, 50), np.linspace(-0.14, 0.14, 30)]), 1e-6
    short = min(strength, GRADIENT_FLOW / (4 * alpha))
    values = [numpy_decoupled(theta + side * step, alpha, short) for side in (-1, 1)]
    is_smooth = np.abs(values).max(axis=0) < 1 - 1e-4  # not next to where W stops at ±1
    stopped = np.abs(values).min(axis=0) == 1
    expected = np.minimum((values[1] - values[0]) / (2 * step) / np.exp(4 * alpha * short), 1.0)
    found = gradient_of(decoupled(alpha, strength, gradient="flow"), theta)
    np.testing.assert_allclose(found[is_smooth], expected[is_smooth], rtol=1e-6, atol=1e-8)
    assert (found[stopped] == 0).all()
    assert ((found >= 0) & (found <= 1)).all()
    assert is_smooth.sum() > 20


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, 1.9, 2.5])
@pytest.mark.parametrize("strength", [0.0, 0.05, 1.0])
def test_slope_times_growth_is_the_derivative_of_the_weight(alpha, strength):
    theta, step = np.linspace(-1.5, 1.5, 61), 1e-6
    weight = decoupled(alpha, strength)
    before, after = (weight.flow(torch.tensor(theta + side * step)).weight().numpy() for side in (-1, 1))
    flow = weight.flow(torch.tensor(theta))
    is_smooth = np.maximum(np.abs(before), np.abs(after)) < 1 - 1e-4
    exact = flow.slope().numpy() * math.exp(flow.time)
    np.testing.assert_allclose(exact[is_smooth], ((after - before) / (2 * step))[is_smooth], rtol=1e-5, atol=1e-8)
    assert flow.time == pytest.approx(4 * alpha * strength)


@pytest.mark.parametrize("form", ["decoupled", "straight-through"])
@pytest.mark.parametrize("gradient", ["straight-through", "tanh", "flow"])
def test_a_gain_divides_the_latents_and_leaves_weight_and_gradient(form, gradient):
    theta, upstream = np.array([-1.1, -0.4, 0.02, 0.7]), torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    results = []
    for gain in (1.0, 25.0):
        weight = TernaryWeight(form)
        weight.set_alpha(0.4)
        weight.wdr_strength, weight.gradient, weight.gain = 0.6, gradient, gain
        latent = torch.tensor(theta / gain, requires_grad=True)
        soft = weight(latent)
        (soft * upstream).sum().backward()
        results.append((soft.detach(), latent.grad))
    torch.testing.assert_close(*results, rtol=1e-12, atol=0)


# How far the network is from a ternary one


def agreement_of(gradient, strengths=(0.4, 1.0)):
    """A network of two layers after one step of training: its agreement, and ∂loss/∂W per layer, by hand."""
    rng = np.random.default_rng(0)
    thetas = {"0": rng.normal(size=(3, 4)) * 0.6, "1": rng.normal(size=(2, 3)) * 0.6}
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)).double()
    parametrize_layers(model, {"0": 1.0, "1": 1.0}, "decoupled")
    for (name, weight), strength in zip(ternary_weights(model).items(), strengths, strict=True):
        weight.set_alpha(0.5)
        weight.wdr_strength, weight.gradient = strength, gradient
        latents(model)[name].data = torch.from_numpy(thetas[name])
    x = rng.normal(size=(7, 4))
    assert gradient_agreement(model) is None  # before the first step
    model(torch.from_numpy(x)).square().sum().backward()
    first, second = (numpy_decoupled(thetas[name], 0.5, own) for name, own in zip("01", strengths, strict=True))
    outer = 2 * x @ first.T @ second.T
    return gradient_agreement(model), thetas, {"0": (outer @ second).T @ x, "1": outer.T @ (x @ first.T)}


@pytest.mark.parametrize("gradient", ["straight-through", "tanh", "flow"])
def test_gradient_agreement_by_hand(gradient):
    strengths, step = {"0": 0.4, "1": 1.0}, 1e-6
    found, thetas, given = agreement_of(gradient, tuple(strengths.values()))
    used, exact, soft = {}, {}, []
    for name, theta in thetas.items():
        weight = numpy_decoupled(theta, 0.5, strengths[name])
        soft.append(np.abs(weight - np.round(weight)).ravel() > 0.01)
        after, before = (numpy_decoupled(theta + side * step, 0.5, strengths[name]) for side in (1, -1))
        exact[name] = given[name] * (after - before) / (2 * step)
        # The flow of the estimate ends at 4αλ = 1, earlier than this layer's.
        short = [numpy_decoupled(theta + side * step, 0.5, min(strengths[name], 0.5)) for side in (1, -1)]
        growth = np.exp(min(2 * strengths[name], 1.0))
        flow = np.minimum((short[0] - short[1]) / (2 * step) / growth, 1.0)
        used[name] = given[name] * {"straight-through": 1.0, "tanh": 1 - np.tanh(theta) ** 2, "flow": flow}[gradient]

    def cosine(ones, others):
        one, other = (np.concatenate([part.ravel() for part in parts.values()]) for parts in (ones, others))
        return one @ other / np.sqrt(one @ one * (other @ other))

    assert found.soft_fraction == pytest.approx(np.mean(np.concatenate(soft)))
    assert 0 < found.soft_fraction < 1
    assert found.cosine_exact == pytest.approx(cosine(used, exact), rel=1e-4)
    assert found.cosine_straight_through == pytest.approx(cosine(used, given), rel=1e-5)
    if gradient == "straight-through":
        assert found.cosine_straight_through == pytest.approx(1.0)


def test_a_strong_flow_leaves_no_weight_soft():
    found, _, _ = agreement_of("tanh", (1e3, 1e3))
    assert found.soft_fraction == 0.0
    assert -1 <= found.cosine_exact <= 1


@pytest.mark.parametrize("form", ["paper", "straight-through"])
def test_only_the_decoupled_form_has_an_agreement(form):
    model = ternary_linear([0.3, -0.6], form)
    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    assert gradient_agreement(model) is None


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


def test_wdr_takes_the_very_weight_of_the_forward_pass():
    model = ternary_linear([0.2, -1.0, 0.4], alpha=0.5)
    weight = ternary_weights(model)["0"]
    used = []
    model[0].parametrizations.weight.register_forward_hook(lambda _module, _inputs, output: used.append(output))
    with CountTanh() as count:
        model(torch.ones(1, 3, dtype=torch.float64))
        r = weight.wdr()
    assert count.calls == 1  # of the forward pass: the regularizer adds none
    assert len(used) == 1
    expected = (used[0] ** 2 * (weight.alpha - used[0] ** 2)).sum()
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


def test_a_new_pass_replaces_the_weight_of_the_last():
    model = ternary_linear([0.5, 0.5], alpha=1.0)
    x = torch.ones(1, 2, dtype=torch.float64)
    model(x)
    with torch.no_grad():
        latents(model)["0"].fill_(0.0)
    model(x)
    assert ternary_weights(model)["0"].wdr().item() == 0.0


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_only_a_training_pass_of_the_papers_form_keeps_its_weight(form):
    model = ternary_linear([0.5, -0.5], form)
    weight, x = ternary_weights(model)["0"], torch.ones(1, 2, dtype=torch.float64)
    model(x)
    if form == "paper":
        weight.pop_soft_weight()
    for quiet in (torch.no_grad(), torch.inference_mode(), rounding([weight])):
        with quiet:
            model(x)
        with pytest.raises(RuntimeError, match="forward pass"):
            weight.pop_soft_weight()


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
    parametrize_layers(model, {"0": 0.5, "1": 1.5}, "decoupled")
    assert model[2].weight is untouched
    for name, spread in {"0": 0.5, "1": 1.5}.items():
        assert np.sqrt(np.mean(latents(model)[name].detach().numpy() ** 2)) == pytest.approx(spread, rel=1e-5)
        assert ternary_weights(model)[name].form == "decoupled"


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


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_bake_leaves_a_plain_network_with_the_rounded_outputs(form):
    model, dense = mixed_network(seed=3, form=form)
    for weight in ternary_weights(model).values():
        weight.set_alpha(0.4)
        weight.wdr_strength = 5.0
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


def test_sparsity_of_the_decoupled_form_follows_its_border():
    model = ternary_linear([0.1, 0.29, -0.31, 0.6], "decoupled", alpha_of_threshold(0.3), strength=100.0)
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
