"""Every method's defining formula against numpy, and a short training of each on the real digits."""

import math

import numpy as np
import pytest
import torch

from sca_search.config.candidate import Candidate, Constant, Tracked
from sca_search.config.load import resolve
from sca_search.config.names import METHODS, SCA
from sca_search.config.study import StudySpec
from sca_search.errors import ModelError, SpecError
from sca_search.export.folder import ExportOptions
from sca_search.export.run import export_run
from sca_search.export.state_dict import count_zeros, counted_sparsity, save_plain
from sca_search.runs.folder import RunFolder
from sca_search.study.setup import make_task
from sca_search.study.space import Space
from sca_search.ternary.methods import method_class
from sca_search.ternary.methods.binary import BinaryConnect, Bwn, Dorefa
from sca_search.ternary.methods.incremental import Inq
from sca_search.ternary.methods.proximal import Parq
from sca_search.ternary.methods.pruning import MaskedWeight
from sca_search.ternary.methods.quantized import Quantizer, as_weights
from sca_search.ternary.methods.random_weights import BayesBinn, RandomSigns, RandomTrits, mean, variance
from sca_search.ternary.methods.regularized import (
    Attracted,
    BnnPlusL1,
    BnnPlusL2,
    Tang,
    nearest_scaled,
)
from sca_search.ternary.methods.thresholds import EntropyConstrained, Ttq, Twn
from sca_search.ternary.parametrize import total
from sca_search.training.task import PausedError, Rungs
from sca_search.training.train import train_candidate, train_dense


def random_weights(*shape, seed=0):
    return np.random.default_rng(seed).normal(0.0, 0.6, shape).astype(np.float32)


def soft_and_gradient(quantizer: Quantizer, values: np.ndarray, outer: np.ndarray):
    """W, and the gradient of Σ outer · W by the latent weights."""
    latent = torch.tensor(values, requires_grad=True)
    weight = quantizer(latent)
    (weight * torch.tensor(outer)).sum().backward()
    return weight.detach().numpy(), latent.grad.numpy()


# Formulas, restated


def test_binary_connect_takes_signs_and_passes_gradients_on():
    values, outer = random_weights(4, 5), random_weights(4, 5, seed=1)
    values[0, 0] = 0.0
    weight, gradient = soft_and_gradient(BinaryConnect(None, 0), values, outer)
    np.testing.assert_array_equal(weight, np.where(values >= 0, 1, -1))
    np.testing.assert_allclose(gradient, outer, rtol=1e-6)


def test_bwn_scales_each_filter_by_its_mean_magnitude():
    values, outer = random_weights(3, 2, 3, 3), random_weights(3, 2, 3, 3, seed=1)
    weight, gradient = soft_and_gradient(Bwn(None, 0), values, outer)
    scale = np.abs(values).reshape(3, 18).mean(1)[:, None, None, None]
    np.testing.assert_allclose(weight, scale * np.sign(values), rtol=1e-5)
    np.testing.assert_allclose(gradient, outer * (1 / 18 + scale * (np.abs(values) < 1)), rtol=1e-5)


def test_bwn_of_a_transposed_convolution_scales_its_outputs():
    values = random_weights(2, 3, 2, 2)  # inputs first
    weight, _ = soft_and_gradient(Bwn(None, 1), values, values)
    scale = np.abs(values).mean((0, 2, 3))[None, :, None, None]
    np.testing.assert_allclose(weight, scale * np.sign(values), rtol=1e-5)


def test_dorefa_scales_a_layer_by_its_mean_magnitude():
    values, outer = random_weights(4, 5), random_weights(4, 5, seed=1)
    weight, gradient = soft_and_gradient(Dorefa(None, 0), values, outer)
    np.testing.assert_allclose(weight, np.abs(values).mean() * np.sign(values), rtol=1e-5)
    np.testing.assert_allclose(gradient, outer, rtol=1e-6)


def test_twn_has_its_threshold_and_its_scale():
    values, outer = random_weights(6, 7), random_weights(6, 7, seed=1)
    weight, gradient = soft_and_gradient(Twn(None, 0), values, outer)
    kept = np.abs(values) > 0.7 * np.abs(values).mean()
    expected = np.where(kept, np.sign(values) * np.abs(values)[kept].mean(), 0.0)
    np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, outer, rtol=1e-6)
    assert 0 < (weight == 0).sum() < 42


def test_ttq_has_two_scales_and_the_papers_three_gradients():
    values, outer = random_weights(5, 8), random_weights(5, 8, seed=1)
    quantizer = Ttq(None, 0)
    quantizer.planned_sparsity = 0.5
    quantizer.positive.data.fill_(1.5)
    quantizer.negative.data.fill_(0.25)
    weight, gradient = soft_and_gradient(quantizer, values, outer)
    threshold = np.sort(np.abs(values).ravel())[19:21].mean()
    positive, negative = values > threshold, values < -threshold
    np.testing.assert_allclose(weight, 1.5 * positive - 0.25 * negative, atol=1e-6)
    assert (weight == 0).sum() == 20
    np.testing.assert_allclose(gradient, outer * np.where(positive, 1.5, np.where(negative, 0.25, 1.0)), rtol=1e-5)
    assert quantizer.positive.grad.item() == pytest.approx(outer[positive].sum(), rel=1e-5)
    assert quantizer.negative.grad.item() == pytest.approx(-outer[negative].sum(), rel=1e-5)


def test_ttq_begins_at_mean_magnitudes():
    values = torch.tensor([[2.0, 4.0, -1.0, -3.0, 0.1, -0.1]])
    quantizer = Ttq(None, 0)
    quantizer.planned_sparsity = 2 / 6
    quantizer.begin(values)
    assert (quantizer.positive.item(), quantizer.negative.item()) == (3.0, 2.0)


def entropy_constrained(values, positive, negative, strength):
    """The clusters of EC2T, weight by weight."""
    centers = np.array([-negative, 0.0, positive])
    nearest = [int(np.argmin([(w - c) ** 2 for c in centers])) for w in values.ravel()]
    below, zero, above = (nearest.count(cluster) / values.size for cluster in range(3))
    if zero < 0.5:
        below, zero, above = below / (below + above) / 2, 0.5, above / (below + above) / 2
    bits = -np.log2([below, zero, above])
    most = min(
        (values.max() ** 2 - (values.max() - positive) ** 2) / (bits[2] - bits[1]),
        (values.min() ** 2 - (values.min() + negative) ** 2) / (bits[0] - bits[1]),
    )
    clusters = [np.argmin((w - centers) ** 2 + strength * most * bits) for w in values.ravel()]
    return np.array(clusters).reshape(values.shape) - 1


@pytest.mark.parametrize(("positive", "negative"), [(0.9, 0.7), (0.2, 0.3), (1.3, 1.2)])
def test_ec2t_assigns_at_the_least_distance_and_information_with_ttqs_gradients(positive, negative):
    values, outer = random_weights(12, 15), random_weights(12, 15, seed=1)
    quantizer = EntropyConstrained(None, 0)
    quantizer.positive.data.fill_(positive)
    quantizer.negative.data.fill_(negative)
    zeros = []
    for strength in (0.0, 0.1, 0.4, 0.9):
        quantizer.strength = strength
        trits = entropy_constrained(values, positive, negative, strength)
        weight, gradient = soft_and_gradient(quantizer, values, outer)
        np.testing.assert_allclose(weight, np.choose(trits + 1, [-negative, 0.0, positive]), atol=1e-6)
        np.testing.assert_allclose(gradient, outer * np.choose(trits + 1, [negative, 1.0, positive]), rtol=1e-5)
        zeros.append((trits == 0).sum())
    assert zeros == sorted(set(zeros))  # more zeros with more strength
    assert quantizer.positive.grad.item() != 0.0


def test_ec2t_with_the_largest_strength_has_a_single_sign_at_most():
    values = random_weights(12, 15)
    quantizer = EntropyConstrained(None, 0)
    quantizer.begin(torch.tensor(values))
    quantizer.strength = 1.001
    trits = quantizer.trits(torch.tensor(values)).numpy()
    assert (trits > 0).sum() == 0 or (trits < 0).sum() == 0
    quantizer.strength = 0.999
    trits = quantizer.trits(torch.tensor(values)).numpy()
    assert (trits > 0).sum() >= 1
    assert (trits < 0).sum() >= 1


def test_ec2t_keeps_its_scales_above_a_part_of_the_deviation():
    values = random_weights(12, 15)
    quantizer = EntropyConstrained(None, 0)
    quantizer.begin(torch.tensor(values))
    least = 0.675 * values.std(ddof=1)
    assert quantizer.positive.item() == pytest.approx(max(0.3 * values.max(), least), rel=1e-5)
    assert quantizer.negative.item() == pytest.approx(max(-0.3 * values.min(), least), rel=1e-5)
    quantizer.negative.data.fill_(-1.0)
    quantizer.update(torch.tensor(values), elapsed=0.5)
    assert quantizer.negative.item() == pytest.approx(least, rel=1e-5)


def test_tangs_regularizer_rounds_and_pulls():
    values, outer = np.array([[-1.4, -0.6, -0.3, 0.0, 0.4, 0.7]], np.float32), random_weights(1, 6)
    weight, gradient = soft_and_gradient(Tang(None, 0), values, outer)
    np.testing.assert_array_equal(weight, [[-1, -1, 0, 0, 0, 1]])
    np.testing.assert_allclose(gradient, outer, rtol=1e-6)
    inside = np.clip(values, -1, 1)
    assert Tang(None, 0).regularizer(torch.tensor(values)).item() == pytest.approx(
        ((1 - inside**2) * inside**2).sum(), rel=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        (BnnPlusL1, lambda scale, w: np.abs(scale - np.abs(w)) * np.abs(w)),
        (BnnPlusL2, lambda scale, w: (scale - np.abs(w)) ** 2 * w**2),
    ],
)
def test_bnn_plus_rounds_by_its_scale_and_pulls_there(kind, formula):
    values, outer = random_weights(3, 4), random_weights(3, 4, seed=1)
    quantizer = kind(None, 0)
    quantizer.begin(torch.tensor(values))
    scale = np.abs(values).mean()
    weight, gradient = soft_and_gradient(quantizer, values, outer)
    trits = np.where(np.abs(values) > scale / 2, np.sign(values), 0.0)
    np.testing.assert_allclose(weight, scale * trits, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, outer, rtol=1e-5)
    assert quantizer.learned.grad.item() == pytest.approx((outer * trits).sum(), rel=1e-4)
    assert quantizer.regularizer(torch.tensor(values)).item() == pytest.approx(formula(scale, values).sum(), rel=1e-4)


def test_inq_has_one_power_of_two_and_fixes_the_largest_first():
    values = np.array([[1.2, -0.9, 0.5, -0.49, 0.3, 0.05, -0.7, 0.2]], np.float32)
    latent = torch.tensor(values)
    quantizer = Inq(None, 0)
    quantizer.begin(latent)
    assert quantizer.scale.item() == 2 ** math.floor(math.log2(4 * 1.2 / 3)) == 1.0
    quantizer.update(latent, elapsed=0.0)
    np.testing.assert_array_equal(quantizer.fixed.numpy(), [[1, 1, 1, 0, 0, 0, 1, 0]])
    weight, gradient = soft_and_gradient(quantizer, values, np.ones_like(values))
    np.testing.assert_allclose(weight, [[1, -1, 1, -0.49, 0.3, 0.05, -1, 0.2]])
    np.testing.assert_array_equal(gradient, [[0, 0, 0, 1, 1, 1, 0, 1]])
    np.testing.assert_array_equal(quantizer.levels(latent).trits.numpy(), [[1, -1, 1, 0, 0, 0, -1, 0]])
    quantizer.update(latent, elapsed=1 / 3)
    assert int(quantizer.fixed.sum()) == 6


def test_elb_projects_to_the_nearest_scaled_trits():
    values = random_weights(1, 9)
    found = nearest_scaled(torch.tensor(values))
    distance = float(((as_weights(found).numpy() - values) ** 2).sum())
    # Of all choices of the k largest magnitudes, each with its best scale, none is nearer than a hair.
    ordered = np.sort(np.abs(values).ravel())[::-1]
    best = min(float((values**2).sum() - ordered[:k].sum() ** 2 / k) for k in range(1, 10))
    assert distance <= best * 1.05
    trits, scale = found.trits.numpy(), found.positive.item()
    assert scale == pytest.approx((values * trits).sum() / np.abs(trits).sum(), rel=1e-5)


def test_elb_pulls_to_its_target_and_remembers_the_error():
    values = random_weights(2, 3)
    latent = torch.tensor(values)
    quantizer = Attracted(None, 0)
    quantizer.begin(latent)
    target = as_weights(nearest_scaled(latent)).numpy()
    assert quantizer.regularizer(latent).item() == pytest.approx(0.5 * ((values - target) ** 2).sum(), rel=1e-5)
    quantizer.update(latent, elapsed=1 / 40)
    np.testing.assert_allclose(quantizer.error.numpy(), values - target, atol=1e-6)
    after = values - target
    again = as_weights(nearest_scaled(torch.tensor(values + after))).numpy()
    quantizer.update(latent, elapsed=2 / 40)
    np.testing.assert_allclose(quantizer.target.numpy(), again, atol=1e-6)
    np.testing.assert_allclose(quantizer.error.numpy(), after + values - again, atol=1e-6)


@pytest.mark.parametrize("elapsed", [0.0, 0.3, 0.5, 0.8, 1.0])
def test_parq_is_affine_between_the_levels_and_steeper_with_time(elapsed):
    values, outer = random_weights(9, 10), random_weights(9, 10, seed=1)
    quantizer = Parq(None, 0)
    quantizer.update(torch.tensor(values), elapsed)
    weight, gradient = soft_and_gradient(quantizer, values, outer)
    first, at, last = (1 / (1 + math.exp(10 * (each - 0.5))) for each in (0.0, elapsed, 1.0))
    slope = (at - last) / (first - last)
    scale = nearest_scaled(torch.tensor(values)).positive.item()
    levels = np.array([-scale, 0.0, scale])
    upper = np.clip(np.searchsorted(levels, values), 1, 2)  # the interval of each latent
    low, high = levels[upper - 1], levels[upper]
    with np.errstate(divide="ignore"):
        expected = np.clip((low + high) / 2 + (values - (low + high) / 2) / np.float64(slope), low, high)
    np.testing.assert_allclose(weight, expected, atol=1e-5)
    np.testing.assert_allclose(gradient, outer, rtol=1e-6)
    if elapsed == 0.0:
        np.testing.assert_allclose(weight, np.clip(values, -scale, scale), atol=1e-5)
    if elapsed == 1.0:
        np.testing.assert_allclose(weight, as_weights(quantizer.levels(torch.tensor(values))), atol=1e-5)


def test_pruning_masks_small_weights_and_their_gradients():
    values, outer = random_weights(6, 7), random_weights(6, 7, seed=1)
    masked = MaskedWeight("straight-through", None)
    masked.set_threshold(0.4)
    weight, gradient = soft_and_gradient(masked, values, outer)
    kept = np.abs(values) > 0.4
    np.testing.assert_array_equal(weight, np.where(kept, values, 0.0))
    np.testing.assert_array_equal(gradient, np.where(kept, outer, 0.0))


def test_lr_net_starts_from_the_dense_weights():
    weight = random_weights(40, 5)
    scaled = weight / weight.std(ddof=1)
    zero = np.clip(0.95 - 0.9 * np.abs(scaled), 0.05, 0.95)
    positive = np.clip(0.5 * (1 + scaled / (1 - zero)), 0.05, 0.95)
    logits = RandomTrits(0.6, 0).right_inverse(torch.tensor(weight))
    np.testing.assert_allclose(torch.sigmoid(logits[0]).numpy(), zero, rtol=1e-4)
    np.testing.assert_allclose(torch.sigmoid(logits[1]).numpy(), positive, rtol=1e-4)


def test_lr_net_has_the_moments_of_the_trits_that_it_draws():
    torch.manual_seed(0)
    zero, positive = torch.full((200_000,), 0.3).logit(), torch.full((200_000,), 0.8).logit()
    drawn = RandomTrits(0.6, 0).levels(zero, positive).trits.numpy()
    assert set(np.unique(drawn)) == {-1.0, 0.0, 1.0}
    # P(0) = 0.3, P(1) = 0.56, P(-1) = 0.14
    assert mean(zero, positive)[0].item() == pytest.approx(0.42, abs=1e-5)
    assert variance(zero, positive)[0].item() == pytest.approx(0.7 - 0.42**2, abs=1e-5)
    assert drawn.mean() == pytest.approx(0.42, abs=0.01)
    assert drawn.var() == pytest.approx(0.7 - 0.42**2, abs=0.01)


# On a network


@pytest.fixture(scope="module")
def task():
    return make_task(StudySpec.model_validate({"data": {"train_limit": 600}}))


@pytest.fixture(scope="module")
def start(task):
    return train_dense(task, epochs=6, learning_rate=0.01, seed=0)


def candidate_of(method, task, **flags):
    plans = METHODS[method].plans_sparsity
    spec = resolve(None, {"method": method, "epochs": 4, **({"target_sparsity": 0.7} if plans else {}), **flags})
    space = Space(spec, task.layer_shapes)
    candidate = space.candidate(space.first_guess(), 0.7 if plans else 0.0, seed=0)
    return candidate.model_copy(update={"frozen_epochs": 1})


def test_lr_nets_outputs_have_mean_and_variance_of_their_sums(task, start):
    model = task.model_with(start.state)
    method = method_class("lr-net")(model, candidate_of("lr-net", task), task)
    layer = model.get_submodule("fc1")
    inputs = torch.rand(1, 128, generator=torch.Generator().manual_seed(0))
    held = layer.parametrizations.weight
    with torch.no_grad():
        expected_mean = inputs @ mean(held.original0, held.original1).T
        expected_variance = inputs.square() @ variance(held.original0, held.original1).T
        layer.train()
        drawn = layer(inputs.expand(20_000, -1))
    bias = 0.0 if layer.bias is None else layer.bias.detach()
    np.testing.assert_allclose((drawn.mean(0) - bias).numpy(), expected_mean[0].numpy(), atol=0.15)
    np.testing.assert_allclose(drawn.var(0).numpy(), expected_variance[0].numpy(), rtol=0.06)
    assert method.latents().keys() == {"conv2", "conv2/1", "fc1", "fc1/1"}


def test_elq_adds_the_change_of_the_loss_and_the_distance_to_the_levels(task, start):
    model = task.model_with(start.state)
    method = method_class("elq")(model, candidate_of("elq", task), task)
    method.update(2.0)  # half of the training: 75 % of the weights are fixed
    images, labels = next(iter(task.data.train.batches(64, seed=0)))
    again = lambda: task.loss(model.train()(images), labels)  # noqa: E731
    first = again()
    loss = first + method.penalty() + method.second_pass(first, again)
    loss.backward()

    own = {name: start.state[f"{name}.weight"].numpy().astype(np.float64) for name in task.ternary_layers}
    networks, distance, free = {True: task.model_with(start.state), False: task.model_with(start.state)}, 0.0, {}
    for name, weight in own.items():
        theta = 0.6 * weight / np.sqrt((weight**2).mean())
        threshold = 0.7 * np.abs(theta).mean()
        levels = np.where(
            np.abs(theta) > threshold, np.sign(theta) * np.abs(theta)[np.abs(theta) > threshold].mean(), 0
        )
        order = np.argsort(np.argsort(np.abs(theta).ravel())).reshape(theta.shape)
        free[name] = order < theta.size - round(0.75 * theta.size)
        mixed = np.where(free[name], theta, levels)
        distance += ((mixed - levels) ** 2).sum()
        own[name] = mixed - levels
        for is_quantized, values in ((True, levels), (False, mixed)):
            networks[is_quantized].get_parameter(f"{name}.weight").data.copy_(torch.tensor(values))
    losses = {key: task.loss(network.train()(images), labels) for key, network in networks.items()}
    for each in losses.values():
        each.backward()
    plain, quantized = losses[False].item(), losses[True].item()
    assert loss.item() == pytest.approx(plain + 0.5 * abs(plain - quantized) + method.strength * distance, rel=1e-4)
    factor = 0.5 * np.sign(plain - quantized)
    for name, latent in method.latents().items():
        of_plain, of_quantized = (networks[key].get_parameter(f"{name}.weight").grad.numpy() for key in (False, True))
        expected = (1 + factor) * of_plain - factor * of_quantized + 2 * method.strength * own[name]
        np.testing.assert_allclose(latent.grad.numpy(), np.where(free[name], expected, 0.0), rtol=1e-3, atol=1e-5)


def test_elq_keeps_the_trits_of_fixed_weights(task, start):
    method = method_class("elq")(task.model_with(start.state), candidate_of("elq", task), task)
    method.update(0.0)
    fixed = {name: quantizer.fixed.clone() for name, quantizer in method.quantizers.items()}
    before = {name: levels.trits[fixed[name]] for name, levels in method.final_weights().levels.items()}
    for latent in method.latents().values():
        latent.data.add_(0.01)  # as by the momentum of an optimizer
    method.update(1.0)
    assert all(0.49 < float(mask.float().mean()) < 0.51 for mask in fixed.values())
    for name, levels in method.final_weights().levels.items():
        assert torch.equal(levels.trits[fixed[name]], before[name])


def test_ec2t_has_less_strength_in_smaller_layers(task, start):
    candidate = candidate_of("ec2t", task)
    method = method_class("ec2t")(task.model_with(start.state), candidate, task)
    # conv2 has 12,800 weights, fc1 8,192
    assert method.quantizers["conv2"].strength == pytest.approx(0.15)
    assert method.quantizers["fc1"].strength == pytest.approx(0.15 * (8192 / 12800 + 0.05) / 1.05)
    assert method.strength == 0.15


def test_pruning_ends_at_its_planned_zeros_and_trains_the_other_weights_on(task, start, tmp_path):
    candidate = candidate_of("pruning", task)
    trained = train_candidate(candidate.model_copy(update={"frozen_epochs": 0}), task, start)
    longer = train_candidate(candidate, task, start)
    for name in task.ternary_layers:
        before, after = (each.model.get_parameter(f"{name}.weight") for each in (trained, longer))
        assert torch.equal(before == 0, after == 0)
        assert bool((before != after).any())
        assert len(after.unique()) > 1000
    assert longer.baked_layers == ()
    save_plain(tmp_path / "a", longer.model, longer.baked_layers, task.data.input, longer.pruned_layers)
    zeros = sum(int((longer.model.get_parameter(f"{name}.weight") == 0).sum()) for name in task.ternary_layers)
    assert zeros == math.floor(0.7 * 20992 + 0.5)
    assert counted_sparsity(tmp_path / "a") == zeros / 20992


def test_pruning_raises_its_sparsity_along_a_cubic(task, start):
    candidate = candidate_of("pruning", task).model_copy(update={"adaptive": False})
    assert isinstance(candidate.alpha, Tracked)
    assert (candidate.alpha.start, candidate.alpha.rise) == (0.0, 0.5)
    model = task.model_with(start.state)
    method = method_class("pruning")(model, candidate, task)
    for epoch, fraction in ((0.0, 0.0), (1.0, 1 - 0.5**3), (2.0, 1.0), (4.0, 1.0)):  # of four
        method.update(epoch)
        for name in task.ternary_layers:
            planned = fraction * candidate.sparsity_of(name)
            found = float((model.get_submodule(name).weight == 0).float().mean())
            assert found == pytest.approx(planned, abs=1e-4)
    method.finish()
    images = next(iter(task.data.val.batches(64)))[0]
    with torch.no_grad():
        before = model.eval()(images)
        method.detach(method.final_weights())
        np.testing.assert_allclose(model(images).numpy(), before.numpy(), rtol=1e-4, atol=1e-4)


def test_bayes_binn_moves_by_the_learning_rule(task, start):
    model = task.model_with(start.state)
    method = method_class("bayes-binn")(model, candidate_of("bayes-binn", task), task)
    assert isinstance(method, BayesBinn)
    method.update(0.0)
    images, labels = next(iter(task.data.train.batches(64, seed=0)))
    task.loss(model.train()(images), labels).backward()
    natural = method.latents()["fc1"]
    quantizer = method.quantizers["fc1"]
    assert isinstance(quantizer, RandomSigns)
    before, drawn, gradient = (
        each.detach().double().numpy() for each in (natural, quantizer.drawn, quantizer.drawn.grad)
    )
    scale = 600 * (1 - drawn**2 + 1e-10) / 1e-10 / (1 - np.tanh(before) ** 2 + 1e-10)
    before = before.copy()
    method.after_backward()
    expected = (1 - 1e-4) * before - 1e-4 * scale * gradient
    np.testing.assert_allclose(natural.detach().numpy(), expected, rtol=1e-2, atol=1e-4)


def test_bayes_binn_leaves_nothing_of_its_weights_to_the_optimizer(task, start):
    model = task.model_with(start.state)
    method = method_class("bayes-binn")(model, candidate_of("bayes-binn", task), task)
    assert {id(each) for each in method.self_updated()} == {id(each) for each in method.latents().values()}


@pytest.mark.parametrize("method", METHODS)
def test_short_training_is_far_above_chance(method, task, start):
    trained = train_candidate(candidate_of(method, task), task, start)
    assert trained.score.accuracy > 0.8
    counted = total(trained.counts)
    if METHODS[method].plans_sparsity:
        assert counted.zeros == pytest.approx(0.7 * counted.weights, abs=2)
    elif "0" not in METHODS[method].weights:
        assert counted.zeros == 0
    for name, own in trained.baked_trits().items():
        assert set(torch.unique(own).tolist()) <= {-1.0, 0.0, 1.0}, name
        assert not own.requires_grad


@pytest.mark.parametrize(
    "method", ["twn", "ttq", "inq", "elq", "elb", "parq", "ec2t", "pruning", "lr-net", "bayes-binn"]
)
def test_training_that_paused_goes_on_as_if_it_had_not(method, task, start, tmp_path):
    candidate = candidate_of(method, task)
    whole = train_candidate(candidate, task, start, rungs=Rungs((2,), lambda _epoch, _score: True, tmp_path / "a"))
    checkpoint = tmp_path / "b"
    with pytest.raises(PausedError):
        train_candidate(candidate, task, start, rungs=Rungs((2,), lambda _epoch, _score: False, checkpoint))
    again = train_candidate(candidate, task, start, rungs=Rungs((2,), lambda _epoch, _score: True, checkpoint))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


@pytest.mark.parametrize("method", ["bwn", "twn", "ttq", "bnn-plus-l2", "elq", "parq", "ec2t"])
def test_baked_network_computes_what_the_rounded_one_did(method, task, start):
    model = task.model_with(start.state)
    attached = method_class(method)(model, candidate_of(method, task), task)
    images = next(iter(task.data.val.batches(64)))[0]
    model.eval()
    with torch.no_grad(), attached.rounded():
        before = model(images)
    attached.detach(attached.final_weights())
    with torch.no_grad():
        after = model.eval()(images)
    np.testing.assert_allclose(after.numpy(), before.numpy(), rtol=1e-4, atol=1e-4)


def test_lr_net_rejects_transposed_convolutions(task):
    class Transposed(type(task)):
        @property
        def transposed(self):
            return {"conv2": 1}

    changed = Transposed(**{name: getattr(task, name) for name in task.__dataclass_fields__})
    with pytest.raises(ModelError, match="lr-net cannot train a transposed convolution, got 'conv2'"):
        method_class("lr-net")(task.make_model(), candidate_of("lr-net", task), changed)


# Studies


def test_a_study_of_an_added_method_has_no_goal_but_the_front(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", METHODS["twn"])
    spec = StudySpec.model_validate({"search": {"method": "mine"}})
    assert spec.goal.front
    assert not spec.plans_sparsity


def test_methods_have_a_class_and_a_reference():
    for name, known in METHODS.items():
        found = method_class(name)
        module = __import__(found.__module__, fromlist=["__doc__"])
        assert len(module.__doc__.splitlines()) >= 1
        assert known.weights == "float" or "W" in module.__doc__ or "w" in module.__doc__


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"method": "twm"}, "must be one of .* got 'twm'; did you mean 'twn'"),
        ({"method": "twn", "target_sparsity": 0.5}, "must not be given with the method 'twn', which cannot choose its"),
        ({"method": "bwn", "min_accuracy": 0.5}, "must not be given with the method 'bwn'"),
        ({"method": "dorefa", "max_kb": 10.0}, "must not be given with the method 'dorefa'"),
        ({"method": "pruning", "max_kb": 10.0}, "must not be given with the method 'pruning', whose weights are float"),
        ({"method": "ttq", "form": "paper"}, "must not be given with the method 'ttq', got 'paper'"),
    ],
)
def test_goal_that_a_method_cannot_have_is_rejected(flags, sentence):
    with pytest.raises(SpecError, match=sentence):
        resolve(None, flags)


def test_method_that_lands_has_the_whole_front_for_a_goal():
    assert resolve(None, {"method": "twn"}).goal.front
    assert not resolve(None, {"method": "twn"}).plans_sparsity
    assert resolve(None, {"method": SCA}).goal.target_sparsity == 0.5


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "method", ["ttq", "bwn", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("twn", "binary-connect"))]
)
def test_method_exports_and_verifies(method, tmp_path, run):
    """From the command to files whose answers are compared: scales are folded, two levels are two layers."""
    flags = ["--method", method, "--trials", "1", "--epochs", "2", "--dense-epochs", "3", "--refits", "0"]
    done = run(*flags, "--train-limit", "300", "--out", str(tmp_path), "--name", method)
    assert done.returncode == 0, done.stderr
    study = RunFolder(tmp_path / method)
    exported = export_run(study.path, None, None, ExportOptions(formats=("packed", "c"), seconds=1.0))
    assert exported.verification.holds
    layers = count_zeros(study.chosen_file)
    assert len(layers) == (4 if method == "ttq" else 2)
    zeros = sum(count.zeros for count in layers.values())
    weights = sum(count.weights for count in layers.values())
    expected = (zeros - weights // 2) / (weights // 2) if method == "ttq" else zeros / weights
    assert counted_sparsity(study.chosen_file) == pytest.approx(expected)


def test_candidate_of_another_method_keeps_its_strength():
    spec = resolve(None, {"method": "tang"})
    guess = Space(spec).first_guess()
    candidate = Space(spec).candidate(guess, 0.0, seed=3)
    assert isinstance(candidate, Candidate)
    assert candidate.strength == Constant(value=METHODS["tang"].strength[2])
    assert not candidate.exact
    assert {"learning_rate", "latent_learning_rate", "frozen_learning_rate", "distillation", "temperature"} == (
        guess.keys() - {"strength"}
    )
