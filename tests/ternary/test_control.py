"""The control: where each layer's α, λ and sharpness are at each moment, and what the regularizer adds to the loss.

The network is small and fully connected; every expected value is restated in numpy, in double precision.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from sca_search.config.candidate import Candidate, Constant, FromPrior, Ramp, Steps, Tracked, sharpened
from sca_search.ternary.methods.base import strength_unit
from sca_search.ternary.methods.sca import LayerSchedules, regularizer
from sca_search.ternary.parametrize import (
    ZeroCount,
    latents,
    nearest_trits_of,
    parametrize_layers,
    ternary_weights,
    total,
    zero_counts,
)

SIZES = {"1": 20 * 12, "4": 12 * 10}


def sparsity(model: nn.Module) -> ZeroCount:
    """Zeros if the network were rounded now."""
    return total(zero_counts(nearest_trits_of(model)))


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


def network(form="sharpened"):
    """Its two middle layers made ternary."""
    model = plain_network()
    parametrize_layers(model, dict.fromkeys(SIZES, 0.6), form)
    return model


def candidate(**changes):
    settings = {
        "sparsity": 0.6,
        "alpha": FromPrior(),
        "strength": 0.5,
        "sharpness": 1.0,
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "epochs": 10,
        "frozen_epochs": 0,
        "frozen_learning_rate": 0.005,
    }
    return Candidate(**settings | changes)


def numpy_latents(model):
    return {name: latent.detach().double().numpy() for name, latent in latents(model).items()}


def numpy_alpha(theta, share):
    """2 tanh² of the middle between the two magnitudes that the share divides."""
    ordered = np.sort(np.abs(theta).ravel())
    zeros = math.floor(share * ordered.size + 0.5)
    return 2 * math.tanh((ordered[zeros - 1] + ordered[zeros]) / 2) ** 2


def numpy_soft(theta, beta, t):
    return 0.5 * (np.tanh(beta * (theta - t)) + np.tanh(beta * (theta + t)))


def disturb(model, seed):
    """What an optimizer does between two batches: every Θ moves."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for latent in latents(model).values():
            latent.add_(0.3 * torch.randn(latent.shape, generator=generator))


def one_pass(model, seed=0):
    return model(torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)))


# Schedules


def test_strength_and_sharpness_follow_their_schedules_within_an_epoch():
    model = network()
    strength = Ramp(first=0.0, last=4.0, start=0.5)
    control = LayerSchedules(model, candidate(strength=strength, sharpness=sharpened(last=200.0, first=2.0, stop=1.0)))
    seen = []
    for epoch in (0, 2.5, 5, 6.25, 7.5, 10):
        control.update(epoch)
        assert {weight.sharpness for weight in ternary_weights(model).values()} == {control.sharpness}
        seen.append((control.strength, control.sharpness))
    # β from 2 to 200 by equal factors: 2 · 100^(epoch / 10)
    expected = [(0, 2), (0, 2 * 100**0.25), (0, 20), (1, 2 * 100**0.625), (2, 2 * 100**0.75), (4, 200)]
    np.testing.assert_allclose(seen, expected, rtol=1e-12)


def test_the_gradients_sharpness_is_the_candidates_and_without_one_never_cut():
    for given, told in ((None, math.inf), (1.5, 1.5)):
        model = network()
        LayerSchedules(model, candidate(gradient_sharpness=given))
        assert {weight.gradient_sharpness for weight in ternary_weights(model).values()} == {told}


def test_strength_is_counted_in_its_unit():
    control = LayerSchedules(network(), candidate(strength=Steps(value=3.0, factors=((4, 10.0),))))
    control.unit = 0.25
    control.update(3.99)
    assert control.strength == 0.75
    control.update(4)
    assert control.strength == 7.5


def test_papers_form_stays_soft_whatever_the_sharpness():
    model = network("paper")
    control = LayerSchedules(model, candidate(form="paper", sharpness=sharpened()))
    control.update(10)
    assert control.sharpness == 1.0
    assert {weight.sharpness for weight in ternary_weights(model).values()} == {1.0}


def test_control_is_at_its_schedules_start_when_made():
    control = LayerSchedules(network(), candidate(strength=Ramp(first=0.5, last=1), sharpness=sharpened(first=3.0)))
    assert (control.strength, control.sharpness) == (0.5, 3.0)


def test_finish_goes_to_the_schedules_end():
    model = network()
    control = LayerSchedules(model, candidate(strength=Ramp(first=0, last=2), sharpness=sharpened(last=50.0)))
    control.finish()
    assert (control.strength, control.sharpness) == (2.0, 50.0)
    assert {weight.sharpness for weight in ternary_weights(model).values()} == {50.0}


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
    """A rise over 8 of 10 epochs: 1 - (1 - epoch/8)³ of the planned 0.6."""
    model = network()
    control = LayerSchedules(model, candidate(alpha=Tracked(rise=0.8), sharpness=2000.0))
    assert control.alphas() == {"1": 0.0, "4": 0.0}
    for epoch, share in ((2, 37 / 64), (4, 7 / 8), (6, 63 / 64), (8, 1), (10, 1)):
        disturb(model, epoch)
        control.update(epoch)
        expected = {name: numpy_alpha(theta, 0.6 * share) for name, theta in numpy_latents(model).items()}
        assert control.alphas() == pytest.approx(expected, rel=1e-5)
        assert sparsity(model).zeros == sum(math.floor(0.6 * share * size + 0.5) for size in SIZES.values())


def test_finish_has_the_whole_plan_however_long_the_rise():
    model = network()
    control = LayerSchedules(model, candidate(alpha=Tracked(rise=1.0, every=1000), sharpness=2000.0))
    control.finish()
    assert sparsity(model).zeros == math.floor(0.6 * 240 + 0.5) + math.floor(0.6 * 120 + 0.5)


def test_control_goes_on_as_a_training_left_it():
    """α of the prior belongs to the weights that the training began with, not to those it goes on from."""
    model = network("paper")
    control = LayerSchedules(model, candidate(form="paper"))
    control.unit = 0.25
    alphas, unit = control.alphas(), control.unit
    disturb(model, 1)
    again = LayerSchedules(model, candidate(form="paper"))
    assert again.alphas() != alphas
    again.resume(unit, alphas, steps=0)
    again.update(3)
    assert again.alphas() == alphas
    assert again.strength == 0.25 * 0.5


# Tracked α


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.97])
def test_tracked_alpha_keeps_the_planned_zeros_at_every_look(share):
    """Sharp enough, rounding leaves in each layer exactly the zeros that the plan has there."""
    model = network()
    control = LayerSchedules(model, candidate(sparsity=share, alpha=Tracked(), sharpness=2000.0))
    planned = sum(math.floor(share * size + 0.5) for size in SIZES.values())
    for step in range(8):
        disturb(model, step)
        control.update(step)
        thetas = numpy_latents(model)
        assert control.alphas() == pytest.approx({name: numpy_alpha(x, share) for name, x in thetas.items()}, rel=1e-5)
        assert sparsity(model).zeros == planned
        borders = {name: math.atanh(math.sqrt(alpha / 2)) for name, alpha in control.alphas().items()}
        softs = [numpy_soft(theta, 2000.0, borders[name]) for name, theta in thetas.items()]
        assert sum(int((np.round(soft) == 0).sum()) for soft in softs) == planned


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


def test_finish_looks_at_the_last_weights_even_between_two_looks():
    model = network()
    control = LayerSchedules(model, candidate(alpha=Tracked(every=1000)))
    disturb(model, 1)
    control.finish()
    assert control.alphas() == pytest.approx(
        {name: numpy_alpha(theta, 0.6) for name, theta in numpy_latents(model).items()}, rel=1e-5
    )


@pytest.mark.parametrize("form", ["paper", "sharpened"])
def test_alpha_given_is_the_same_in_every_layer(form):
    model = network(form)
    control = LayerSchedules(model, candidate(form=form, alpha=Constant(value=0.7)))
    assert control.alphas() == {"1": 0.7, "4": 0.7}
    disturb(model, 0)
    control.update(5)
    assert control.alphas() == {"1": 0.7, "4": 0.7}


def test_alpha_may_have_a_schedule_of_its_own():
    control = LayerSchedules(network("paper"), candidate(form="paper", alpha=Ramp(first=0.2, last=1.2)))
    control.update(5)
    assert control.alphas() == pytest.approx({"1": 0.7, "4": 0.7})


@pytest.mark.parametrize("alpha", [FromPrior(), Tracked()])
def test_a_split_gives_each_layer_its_own_share(alpha):
    model = network()
    thetas = numpy_latents(model)
    control = LayerSchedules(model, candidate(alpha=alpha, allocation={"4": 0.9}, sharpness=2000.0))
    expected = {"1": numpy_alpha(thetas["1"], 0.6), "4": numpy_alpha(thetas["4"], 0.9)}
    assert control.alphas() == pytest.approx(expected, rel=1e-6)
    assert sparsity(model).zeros == math.floor(0.6 * 240 + 0.5) + math.floor(0.9 * 120 + 0.5)


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


@pytest.mark.parametrize("beta", [2.0, 20.0])
def test_sharpened_penalty_has_its_maximum_where_rounding_divides(beta):
    """The same sum over the sharpened W, with an α that puts R's maximum at the border θ = t: W(t) = ½ tanh(2βt)."""
    model = network()
    control = LayerSchedules(model, candidate(strength=0.03, sharpness=beta))
    one_pass(model)
    alphas = control.alphas()
    r = 0.0
    for name, theta in numpy_latents(model).items():
        t = math.atanh(math.sqrt(alphas[name] / 2))
        square = numpy_soft(theta, beta, t) ** 2
        r += ((2 * numpy_soft(t, beta, t) ** 2 - square) * square).sum()
    assert float(control.penalty().detach()) == pytest.approx(0.03 * r, rel=1e-4)


@pytest.mark.parametrize("form", ["paper", "sharpened"])
def test_penaltys_gradient_reaches_the_latent_weights_and_nothing_else(form):
    model = network(form)
    control = LayerSchedules(model, candidate(form=form))
    one_pass(model)
    control.penalty().backward()
    assert all(latent.grad is not None and latent.grad.any() for latent in latents(model).values())
    theta = {id(latent) for latent in latents(model).values()}
    assert all(parameter.grad is None for parameter in model.parameters() if id(parameter) not in theta)


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_penalty_leaves_no_soft_weight_behind(strength):
    """A kept soft weight would hold its whole graph in memory until the next step."""
    model = network()
    control = LayerSchedules(model, candidate(strength=strength))
    one_pass(model)
    control.penalty()
    for weight in ternary_weights(model).values():
        with pytest.raises(RuntimeError, match="forward pass"):
            weight.pop_soft_weight()


def test_no_strength_is_no_penalty():
    model = network()
    control = LayerSchedules(model, candidate(strength=Ramp(first=0.0, last=1.0, start=0.5)))
    one_pass(model)
    assert control.penalty() == 0.0
    control.update(10)
    one_pass(model)
    assert control.penalty() != 0.0


# The unit of strength


def soft_and_alpha(weight, theta):
    """W as a function of Θ, and the α that belongs to it in R."""
    if weight.form == "paper":
        return torch.tanh(theta), weight.alpha
    beta, t = weight.sharpness, math.atanh(math.sqrt(weight.alpha / 2))
    soft = (torch.tanh(beta * (theta - t)) + torch.tanh(beta * (theta + t))) / 2
    return soft, 2 * (math.tanh(2 * beta * t) / 2) ** 2


def by_autograd(model, images, labels):
    """Both gradients on a plain network whose weights are written as functions of Θ, in double precision."""
    thetas = {name: latent.detach().double().requires_grad_() for name, latent in latents(model).items()}
    softs, pull = {}, 0.0
    for name, weight in ternary_weights(model).items():
        softs[f"{name}.weight"], alpha = soft_and_alpha(weight, thetas[name])
        square = softs[f"{name}.weight"] ** 2
        pull = pull + ((alpha - square) * square).sum()
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


@pytest.mark.parametrize("form", ["paper", "sharpened"])
@pytest.mark.parametrize("count", [16, 15])
def test_unit_is_the_ratio_of_the_two_gradients_with_rolled_labels(form, count):
    model = network(form)
    LayerSchedules(model, candidate(form=form, sharpness=2.0))
    generator = torch.Generator().manual_seed(3)
    images, labels = torch.randn(count, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    expected = by_autograd(model, images, labels)
    assert unit_of(model.train(), images, labels) == pytest.approx(expected, rel=1e-4)


def test_unit_leaves_no_gradient_and_no_soft_weight():
    model = network()
    LayerSchedules(model, candidate())
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
    model = network()
    control = LayerSchedules(model, candidate(strength=1.0, sharpness=2.0))
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


def test_layers_may_have_schedules_of_their_own():
    model = network()
    plan = candidate(
        sharpness=4.0,
        strength=2.0,
        layer_strength={"4": Ramp(first=0.0, last=8.0)},
        layer_sharpness={"1": 9.0},
    )
    control = LayerSchedules(model, plan)
    control.update(5.0)
    weights = ternary_weights(model)
    assert {name: (weight.wdr_strength, weight.sharpness) for name, weight in weights.items()} == {
        "1": (2.0, 9.0),
        "4": (4.0, 4.0),
    }
    assert (control.strength, control.sharpness) == (3.0, 6.5)
    expected = 0.0
    for name, (strength, beta) in {"1": (2.0, 9.0), "4": (4.0, 4.0)}.items():
        t = math.atanh(math.sqrt(weights[name].alpha / 2))
        square = numpy_soft(numpy_latents(model)[name], beta, t) ** 2
        # The border θ = t lies at W = ½ tanh(2βt), and R's maximum is put there.
        expected += strength * ((0.5 * math.tanh(2 * beta * t) ** 2 - square) * square).sum()
    one_pass(model)
    assert control.penalty().item() == pytest.approx(expected, rel=1e-5)
