"""The control: where each layer's α and λ are at each moment, and what the regularizer adds to the loss.

The network is small and fully connected; every expected value is restated in numpy, in double precision.
"""

import copy
import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from sca_search.config.candidate import Candidate, Constant, FromPrior, Ramp, Steps, Tracked
from sca_search.ternary.methods.base import strength_unit
from sca_search.ternary.methods.sca import LayerSchedules, regularizer
from sca_search.ternary.parametrize import (
    latents,
    nearest_trits_of,
    parametrize_layers,
    ternary_weights,
    zero_counts,
)

SIZES = {"1": 20 * 12, "4": 12 * 10}


def plain_network():
    """Four layers, the two in the middle each followed by a normalization; always the same."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 20),
        nn.Linear(20, 12, bias=False),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Linear(12, 10, bias=False),
        nn.BatchNorm1d(10),
        nn.Linear(10, 3),
    )


def network(form="decoupled"):
    """Its two middle layers made ternary."""
    model = plain_network()
    parametrize_layers(model, dict.fromkeys(SIZES, 0.6), form)
    return model


def candidate(**changes):
    settings = {
        "sparsity": 0.6,
        "alpha": FromPrior(),
        "strength": 0.5,
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "epochs": 10,
        "frozen_epochs": 0,
        "frozen_learning_rate": 0.005,
    }
    return Candidate(**settings | changes)


def numpy_latents(model):
    return {name: latent.detach().double().numpy() for name, latent in latents(model).items()}


def numpy_border(theta, share):
    """The middle between the two magnitudes that the share divides."""
    ordered = np.sort(np.abs(theta).ravel())
    zeros = math.floor(share * ordered.size + 0.5)
    return (ordered[zeros - 1] + ordered[zeros]) / 2 if zeros else 0.0


def numpy_alpha(theta, share):
    return 2 * math.tanh(numpy_border(theta, share)) ** 2


def zeros_of(model):
    return {name: counted.zeros for name, counted in zero_counts(nearest_trits_of(model)).items()}


# So strong that rounding splits at the border, also where α is 0.
STRONG = 1e7


def disturb(model, seed):
    """What an optimizer does between two batches: every Θ moves."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for latent in latents(model).values():
            latent.add_(0.3 * torch.randn(latent.shape, generator=generator))


def one_pass(model, seed=0):
    return model(torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)))


# λ


def test_papers_strength_follows_its_schedule_in_its_unit():
    model = network("paper")
    late = {"4": Steps(value=3.0, factors=((4, 10.0),))}
    plan = candidate(form="paper", strength=Ramp(first=0.5, last=4.5, start=0.5), layer_strength=late)
    control = LayerSchedules(model, plan)
    seen = []
    for epoch in (None, 2.5, 3.99, 4, 6.25, 10):
        if epoch is not None:
            control.update(epoch)
        seen.append([weight.wdr_strength for weight in ternary_weights(model).values()])
        assert control.strength == pytest.approx(sum(seen[-1]) / 2)
        control.unit = 0.25  # after it was made
    np.testing.assert_allclose(seen, [(0.5, 3), (0.125, 0.75), (0.125, 0.75), (0.125, 7.5), (0.375, 7.5), (1.125, 7.5)])
    control.finish()
    assert control.strength == pytest.approx((1.125 + 7.5) / 2)


def test_decoupled_strength_is_u_over_4_alpha_at_the_start():
    """α changes with the weights and λ does not."""
    model = network()
    planned = {"1": 0.3, "4": 0.9}
    first = {name: numpy_alpha(theta, planned[name]) for name, theta in numpy_latents(model).items()}
    plan = candidate(
        allocation=planned,
        alpha=Tracked(start=0.2, rise=0.5),
        strength=Ramp(first=2.0, last=32.0, interpolation="exponential"),
        layer_strength={"4": Constant(value=7.0)},
    )
    control = LayerSchedules(model, plan)
    for epoch, u in ((0, 2), (2.5, 4), (5, 8), (10, 32)):
        control.update(epoch)
        found = {name: weight.wdr_strength for name, weight in ternary_weights(model).items()}
        assert found == pytest.approx({"1": u / (4 * first["1"]), "4": 7 / (4 * first["4"])}, rel=1e-5)
        disturb(model, int(epoch))
    control.finish()
    assert control.alphas() != pytest.approx(first, rel=1e-2)
    assert ternary_weights(model)["1"].wdr_strength == pytest.approx(8 / first["1"], rel=1e-5)


def test_strength_of_a_layer_without_zeros_is_finite():
    """Its α is 0, and that of a border of 0.0002 is 2 · 0.0002² = 8e-8: both have the λ of 4α = 1e-6."""
    model = network()
    latents(model)["4"].data.clamp_(min=0.0002)
    LayerSchedules(model, candidate(allocation={"1": 0.0, "4": 1 / 120}, strength=3.0))
    assert [weight.wdr_strength for weight in ternary_weights(model).values()] == pytest.approx([3e6, 3e6])


@pytest.mark.parametrize("gradient", ["straight-through", "tanh", "flow"])
def test_the_estimate_of_the_gradient_is_the_candidates(gradient):
    model = network()
    LayerSchedules(model, candidate(gradient=gradient))
    assert {weight.gradient for weight in ternary_weights(model).values()} == {gradient}


# α


def test_prior_puts_alpha_at_the_quantile_and_leaves_it_there():
    model = network("paper")
    expected = {name: numpy_alpha(theta, 0.6) for name, theta in numpy_latents(model).items()}
    control = LayerSchedules(model, candidate(form="paper"))
    assert control.alphas() == pytest.approx(expected, rel=1e-6)
    kept = control.alphas()
    for epoch in range(1, 6):
        disturb(model, epoch)
        control.update(epoch)
        assert control.alphas() == kept
    control.finish()
    assert control.alphas() == kept


@pytest.mark.parametrize("late", [Ramp(first=0, last=1, start=0.5), Steps(value=0, factors=())])
def test_alpha_of_a_late_pull_is_set_when_the_pull_begins(late):
    """Until then Θ is free to move, and the prior speaks of where it is when it is pulled. No pull: nothing to set."""
    model = network("paper")
    first = {name: numpy_alpha(theta, 0.6) for name, theta in numpy_latents(model).items()}
    control = LayerSchedules(model, candidate(form="paper", strength=late))
    found = first
    for step, epoch in enumerate((2.5, 5, 5.1, 7.5, 10)):
        disturb(model, step)
        if epoch <= 5 and isinstance(late, Ramp):
            found = {name: numpy_alpha(theta, 0.6) for name, theta in numpy_latents(model).items()}
        control.update(epoch)
        assert control.alphas() == pytest.approx(found, rel=1e-5)
    control.finish()
    assert control.alphas() == pytest.approx(found, rel=1e-5)


def test_only_the_layer_whose_pull_is_late_waits_with_its_alpha():
    model = network("paper")
    early = numpy_alpha(numpy_latents(model)["1"], 0.6)
    plan = candidate(form="paper", strength=0.5, layer_strength={"4": Ramp(first=0, last=1, start=0.5)})
    control = LayerSchedules(model, plan)
    disturb(model, 1)
    control.update(5)
    late = numpy_alpha(numpy_latents(model)["4"], 0.6)
    disturb(model, 2)
    control.update(6)
    assert control.alphas() == pytest.approx({"1": early, "4": late}, rel=1e-5)


def test_prior_is_evaluated_at_the_planned_sparsity_of_each_layer():
    model = network("paper")
    thetas = numpy_latents(model)
    control = LayerSchedules(model, candidate(form="paper", allocation={"4": 0.75}))
    expected = {"1": numpy_alpha(thetas["1"], 0.6), "4": numpy_alpha(thetas["4"], 0.75)}
    assert control.alphas() == pytest.approx(expected, rel=1e-6)


def test_tracked_sparsity_rises_to_its_plan_by_hand():
    """From epoch 2, over 6 of 10 epochs: 1 - (1 - (epoch - 2)/6)³ of the planned 0.6; a layer may have its own rise."""
    model = network()
    own = {"4": Tracked(start=0.4, rise=0.0)}
    control = LayerSchedules(model, candidate(alpha=Tracked(start=0.2, rise=0.6), layer_alpha=own, strength=STRONG))
    assert control.alphas() == {"1": 0.0, "4": 0.0}
    for epoch, share in ((1.99, 0), (3.5, 37 / 64), (5, 7 / 8), (6.5, 63 / 64), (8, 1), (10, 1)):
        disturb(model, int(epoch))
        control.update(epoch)
        shares = {"1": 0.6 * share, "4": 0.6 * (epoch >= 4)}
        expected = {name: numpy_alpha(theta, shares[name]) for name, theta in numpy_latents(model).items()}
        assert control.alphas() == pytest.approx(expected, rel=1e-5)
        assert zeros_of(model) == {name: math.floor(shares[name] * size + 0.5) for name, size in SIZES.items()}


def test_finish_has_the_whole_plan_by_the_last_weights():
    """However long the rise, and between two looks."""
    model = network()
    control = LayerSchedules(model, candidate(alpha=Tracked(rise=1.0, every=1000), strength=STRONG))
    disturb(model, 1)
    control.finish()
    assert zeros_of(model) == {"1": math.floor(0.6 * 240 + 0.5), "4": math.floor(0.6 * 120 + 0.5)}
    expected = {name: numpy_alpha(theta, 0.6) for name, theta in numpy_latents(model).items()}
    assert control.alphas() == pytest.approx(expected, rel=1e-5)


def test_threshold_is_that_of_the_latents_times_their_gain():
    borders = []
    for gain in (1.0, 20.0):
        model = network()
        for name, weight in ternary_weights(model).items():
            weight.gain = gain
            latents(model)[name].data /= gain
        control = LayerSchedules(model, candidate(alpha=Tracked(), adaptive=True, allocation={"1": 0.5, "4": 0.8}))
        latents(model)["4"].data *= 0.7
        control.finish()
        borders.append([weight.threshold for weight in ternary_weights(model).values()])
    assert borders[0] == pytest.approx(borders[1], rel=1e-5)


# Zeros that move between layers


def adaptive_control(model, **changes):
    """Of 216 zeros, 120 planned in the first layer and 96 in the second."""
    plan = {"alpha": Tracked(), "adaptive": True, "allocation": {"1": 0.5, "4": 0.8}, "strength": STRONG}
    return LayerSchedules(model, candidate(**plan | changes), least_nonzeros=7)


def test_an_adaptive_allocation_starts_from_the_plan_and_follows_the_weights():
    """Each |θ| over its layer's border at the start, and the 216 smallest of all are zero: zeros go where weights
    shrink."""
    model = network()
    expected, planned = {"1": 120, "4": 96}, {"1": 0.5, "4": 0.8}
    borders = {name: numpy_border(theta, planned[name]) for name, theta in numpy_latents(model).items()}
    control = adaptive_control(model)
    assert zeros_of(model) == expected
    for step in range(1, 31):  # the step before the first was when the control was made
        latents(model)["1"].data *= 0.98
        disturb(model, step)
        control.update(step / 10)
        if step % 10 == 0:
            ratios = {name: np.abs(theta).ravel() / borders[name] for name, theta in numpy_latents(model).items()}
            last = np.sort(np.concatenate(list(ratios.values())))[215]
            expected = {name: int((ratio <= last).sum()) for name, ratio in ratios.items()}
        assert zeros_of(model) == expected
        assert sum(expected.values()) == 216
    assert expected["1"] > 130


def test_an_adaptive_allocation_keeps_the_floor():
    model = network()
    control = adaptive_control(model)
    latents(model)["4"].data *= 1e-3
    control.finish()  # which looks at the last weights
    assert zeros_of(model) == {"1": 96, "4": 120 - 7}


def test_a_fixed_allocation_stays():
    model = network()
    control = adaptive_control(model, adaptive=False)
    latents(model)["4"].data *= 0.5
    control.finish()
    assert zeros_of(model) == {"1": 120, "4": 96}


# Resuming


@pytest.mark.parametrize(
    "plan",
    [
        {"form": "paper", "alpha": FromPrior(), "allocation": {"4": 0.9999}},  # nothing but zeros: t is infinite
        {"form": "paper", "alpha": Ramp(first=0.2, last=1.2)},
        {"alpha": Tracked(every=3, rise=0.5), "strength": Ramp(first=1.0, last=9.0)},
        {"alpha": Tracked(rise=0.5), "adaptive": True, "allocation": {"1": 0.5, "4": 0.8}},
    ],
    ids=["prior", "schedule", "tracked", "adaptive"],
)
def test_schedules_continue_from_their_state(plan):
    """The state belongs to earlier weights, not to those that the training continues with."""

    def numbers(control, model):
        return control.alphas(), [(w.wdr_strength, w.threshold) for w in ternary_weights(model).values()]

    def run(control, model, steps):
        for step in steps:
            disturb(model, step)
            latents(model)["1"].data *= 0.95
            control.update(step / 5)
            yield numbers(control, model)

    model = network(plan.get("form", "decoupled"))
    control = LayerSchedules(model, candidate(**plan))
    control.unit = 0.25
    *_, last = run(control, model, range(1, 15))
    state, resumed_model = json.loads(json.dumps(control.state())), copy.deepcopy(model)
    disturb(resumed_model, 99)  # the step after the last update
    disturb(model, 99)
    resumed = LayerSchedules(resumed_model, candidate(**plan))
    resumed.resume(state, steps=14)
    alphas, others = numbers(resumed, resumed_model)
    assert (alphas, others) == (pytest.approx(last[0], rel=1e-12), last[1])
    assert list(run(resumed, resumed_model, range(15, 40))) == list(run(control, model, range(15, 40)))
    assert resumed.state() == control.state()


# Tracked α


@pytest.mark.parametrize("share", [0.3, 0.9, 0.97])
def test_tracked_alpha_keeps_the_planned_zeros_at_every_look(share):
    """Strong enough, rounding leaves in each layer exactly the zeros that the plan has there."""
    model = network()
    control = LayerSchedules(model, candidate(sparsity=share, alpha=Tracked(), strength=60.0))
    for step in range(8):
        disturb(model, step)
        control.update(step)
        thetas = numpy_latents(model)
        assert control.alphas() == pytest.approx({name: numpy_alpha(x, share) for name, x in thetas.items()}, rel=1e-5)
        assert zeros_of(model) == {name: math.floor(share * size + 0.5) for name, size in SIZES.items()}


def test_tracked_alpha_moves_only_every_so_many_steps():
    model = network()
    control = LayerSchedules(model, candidate(alpha=Tracked(every=3)))
    changed = []
    for step in range(1, 10):
        before = control.alphas()
        disturb(model, step)
        control.update(step / 10)
        changed.append(control.alphas() != before)
    # The first look was when the control was made.
    assert changed == [False, False, True] * 3


@pytest.mark.parametrize("form", ["paper", "decoupled"])
@pytest.mark.parametrize("alpha", [Constant(value=0.7), Ramp(first=0.2, last=1.2)])
def test_alpha_given_is_the_same_in_every_layer(form, alpha):
    model = network(form)
    control = LayerSchedules(model, candidate(form=form, alpha=alpha))
    disturb(model, 0)
    control.update(5)
    assert control.alphas() == pytest.approx({"1": 0.7, "4": 0.7})
    assert [weight.threshold for weight in ternary_weights(model).values()] == pytest.approx(
        [math.atanh(0.35**0.5)] * 2
    )


@pytest.mark.parametrize("alpha", [FromPrior(), Tracked()])
def test_a_split_gives_each_layer_its_own_share(alpha):
    model = network()
    thetas = numpy_latents(model)
    control = LayerSchedules(model, candidate(alpha=alpha, allocation={"4": 0.9}, strength=60.0))
    expected = {"1": numpy_alpha(thetas["1"], 0.6), "4": numpy_alpha(thetas["4"], 0.9)}
    assert control.alphas() == pytest.approx(expected, rel=1e-6)
    assert zeros_of(model) == {"1": 144, "4": 108}


# The regularizer


def test_papers_penalty_is_strength_times_the_sum_of_eq_4():
    model = network("paper")
    control = LayerSchedules(model, candidate(form="paper", strength=0.03, allocation={"4": 0.8}))
    one_pass(model)
    alphas = control.alphas()
    r = 0.0
    for name, theta in numpy_latents(model).items():
        square = np.tanh(theta) ** 2
        r += ((alphas[name] - square) * square).sum()
    assert float(control.penalty().detach()) == pytest.approx(0.03 * r, rel=1e-5)


def test_penaltys_gradient_reaches_the_latent_weights_and_nothing_else():
    model = network("paper")
    control = LayerSchedules(model, candidate(form="paper"))
    one_pass(model)
    control.penalty().backward()
    assert all(latent.grad is not None and latent.grad.any() for latent in latents(model).values())
    theta = {id(latent) for latent in latents(model).values()}
    assert all(parameter.grad is None for parameter in model.parameters() if id(parameter) not in theta)


@pytest.mark.parametrize(("form", "strength"), [("paper", 0.0), ("paper", 0.5), ("decoupled", 0.5)])
def test_penalty_leaves_no_soft_weight_behind(form, strength):
    """A kept soft weight would hold its whole graph in memory until the next step."""
    model = network(form)
    control = LayerSchedules(model, candidate(form=form, strength=strength))
    one_pass(model)
    assert (control.penalty() == 0.0) == (form == "decoupled" or strength == 0.0)
    for weight in ternary_weights(model).values():
        with pytest.raises(RuntimeError, match="forward pass"):
            weight.pop_soft_weight()


# The unit of strength


def by_autograd(model, images, labels):
    """Both gradients on a plain network whose weights are written as functions of Θ, in double precision."""
    thetas = {name: latent.detach().double().requires_grad_() for name, latent in latents(model).items()}
    softs, pull = {}, 0.0
    for name, weight in ternary_weights(model).items():
        softs[f"{name}.weight"] = torch.tanh(thetas[name])
        square = softs[f"{name}.weight"] ** 2
        pull = pull + ((weight.alpha - square) * square).sum()
    logits = functional_call(plain_network().double(), softs, (images.double(),))
    half = len(labels) // 2
    wrong = torch.cat([labels[-half:], labels[:-half]])
    task = (logits.exp().sum(1).log() - logits[torch.arange(len(labels)), wrong]).mean()
    return norm_of_gradient(task, thetas) / norm_of_gradient(pull, thetas)


def norm_of_gradient(value, thetas):
    gradients = torch.autograd.grad(value, list(thetas.values()), retain_graph=True)
    return math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))


def unit_of(model, images, labels, loss=nn.functional.cross_entropy):
    """λ for a strength of 1, as SCA measures it."""
    return strength_unit(model, (images, labels), loss, lambda: regularizer(model), list(latents(model).values()))


@pytest.mark.parametrize("count", [16, 15])
def test_unit_is_the_ratio_of_the_two_gradients_with_rolled_labels(count):
    model = network("paper")
    LayerSchedules(model, candidate(form="paper"))
    generator = torch.Generator().manual_seed(3)
    images, labels = torch.randn(count, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    expected = by_autograd(model, images, labels)
    assert unit_of(model.train(), images, labels) == pytest.approx(expected, rel=1e-4)


def test_unit_leaves_no_gradient_and_no_soft_weight():
    model = network("paper")
    LayerSchedules(model, candidate(form="paper"))
    unit_of(model, torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3)
    assert all(parameter.grad is None for parameter in model.parameters())
    for weight in ternary_weights(model).values():
        with pytest.raises(RuntimeError, match="forward pass"):
            weight.pop_soft_weight()


def test_unit_is_0_where_nothing_pulls():
    """All Θ at 0 is a stationary point of R: there is no ratio to take."""
    model = network("paper")
    LayerSchedules(model, candidate(form="paper"))
    with torch.no_grad():
        for latent in latents(model).values():
            latent.zero_()
    assert unit_of(model, torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3) == 0


def test_strength_of_1_balances_the_two_gradients():
    """What the unit is for: at strength 1, λ‖∇R‖ is ‖∇task‖."""
    model = network("paper")
    control = LayerSchedules(model, candidate(form="paper", strength=1.0))
    generator = torch.Generator().manual_seed(3)
    images, labels = torch.randn(16, 8, generator=generator), torch.randint(0, 3, (16,), generator=generator)
    control.unit = unit_of(model.train(), images, labels)
    control.update(0)
    thetas = list(latents(model).values())
    logits = model(images)
    task = torch.autograd.grad(nn.functional.cross_entropy(logits, labels.roll(8)), thetas, retain_graph=True)
    pull = torch.autograd.grad(control.penalty(), thetas)
    ours, theirs = (math.sqrt(sum(float(g.square().sum()) for g in gradients)) for gradients in (task, pull))
    assert ours == pytest.approx(theirs, rel=1e-4)
