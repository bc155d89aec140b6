"""The method in somebody else's training loop."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sca_search.api.loop import Control, bake, export_baked, regularizer, relative_scale, sparsity, ternarize
from sca_search.data import load_data
from sca_search.errors import ExportError, ModelError
from sca_search.ternary.parametrize import latents, ternary_weights


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(),
        nn.Linear(20, 10),
    )  # fmt: skip


def train(model: nn.Module, control: Control, optimizer: torch.optim.Optimizer, epochs: int) -> float:
    """An ordinary loop over the digits with the two added lines; the validation accuracy."""
    data = load_data("digits", seed=0)
    batches = data.train.batches(64, seed=0)
    for _ in range(epochs):
        for images, labels in batches:
            control.step()
            loss = F.cross_entropy(model(images), labels) + regularizer(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    bake(model)
    with torch.no_grad():
        return float((model.eval()(data.val.images).argmax(1) == data.val.labels).float().mean())


def steps_of(epochs: int) -> int:
    return epochs * len(load_data("digits", seed=0).train.batches(64, seed=0))


@pytest.mark.parametrize("target", [0.0, 0.5, 0.9])
def test_bake_leaves_exactly_the_zeros_that_were_requested(target: float) -> None:
    model = ternarize(small_network(), target)
    bake(model)
    inner = [model[3].weight, model[5].weight]
    zeros, weights = sum(int((weight == 0).sum()) for weight in inner), 40 * 30 + 30 * 20
    assert zeros == math.floor(target * weights + 0.5)
    assert all(set(weight.unique().tolist()) <= {-1.0, 0.0, 1.0} for weight in inner)
    assert sparsity(model) == zeros / weights
    assert len(model[1].weight.unique()) > 3  # the first layer stays dense
    assert len(model[7].weight.unique()) > 3  # and so does the last


def test_ternarize_chooses_layers_by_name_and_by_running_an_example() -> None:
    model = small_network()
    assert set(ternary_weights(ternarize(model, only=["3"]))) == {"3"}
    assert set(ternary_weights(ternarize(small_network(), skip=["5"]))) == {"3"}
    assert set(ternary_weights(ternarize(small_network(), keep_first=False, keep_last=False))) == {"1", "3", "5", "7"}

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.middle, self.first = nn.Linear(8, 2), nn.Linear(8, 8), nn.Linear(4, 8)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            answers: torch.Tensor = self.last(self.middle(self.first(inputs)))
            return answers

    assert set(ternary_weights(ternarize(Backwards(), example=torch.zeros(2, 4)))) == {"middle"}


def test_control_leads_a_decoupled_network_through_the_strengths_of_a_first_trial() -> None:
    """u from 8 to 40, linearly, until nine tenths of the ternary part; it acts on the weights alone."""
    model = ternarize(small_network(), 0.5)
    alphas = {name: weight.alpha for name, weight in ternary_weights(model).items()}
    control = Control(model, 100, frozen_fraction=0.5)
    for fraction, u in ((0.0, 8.0), (0.225, 24.0), (0.45, 40.0), (0.49, 40.0)):
        control.move_to(fraction)
        strengths = {name: weight.wdr_strength for name, weight in ternary_weights(model).items()}
        assert strengths == pytest.approx({name: u / (4 * alpha) for name, alpha in alphas.items()})
    model(torch.randn(4, 64)).sum().backward()
    assert regularizer(model).item() == 0.0
    assert not regularizer(model).requires_grad


def test_regularizer_is_the_papers_sum_over_layers() -> None:
    model = ternarize(small_network(), 0.5, form="paper")
    expected = 0.0
    for name, theta in latents(model).items():
        soft = np.tanh(theta.detach().double().numpy())
        alpha = ternary_weights(model)[name].alpha
        expected += float(((alpha - soft**2) * soft**2).sum())
    assert float(regularizer(model).detach()) == pytest.approx(expected, rel=1e-5)
    regularizer(model).backward()
    assert all(theta.grad is not None for theta in latents(model).values())


@pytest.mark.e2e
@pytest.mark.parametrize("make", [lambda p: torch.optim.Adam(p, 1e-3), lambda p: torch.optim.AdamW(p, 3e-4)])
def test_loop_with_control_learns_at_the_sparsity_requested(make: object) -> None:
    model = ternarize(small_network(), 0.8)
    optimizer = make(model.parameters())  # type: ignore[operator]
    control = Control(model, steps_of(30), optimizer=optimizer)
    assert train(model, control, optimizer, 30) > 0.85
    assert sparsity(model) == pytest.approx(0.8, abs=0.001)


def test_papers_form_needs_a_strength_and_learns() -> None:
    model = ternarize(small_network(), 0.5, form="paper")
    with pytest.raises(ModelError, match="strength"):
        Control(model, 10)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    assert train(model, Control(model, steps_of(30), wdr_strength=1e-3), optimizer, 30) > 0.8
    assert sparsity(model) == pytest.approx(0.5, abs=0.001)


def test_control_of_the_decoupled_form_makes_weights_ternary_without_a_term_in_the_loss() -> None:
    model = ternarize(small_network(), 0.5)
    control = Control(model, 100, frozen_fraction=0.2)
    for _ in range(79):  # of the 80 steps before trits are frozen
        control.step()
    assert float(regularizer(model)) == 0.0
    for name, weight in ternary_weights(model).items():
        soft = weight.soft(latents(model)[name])
        assert float(((soft - soft.round()).abs() < 1e-3).float().mean()) > 0.99


def test_last_part_of_the_training_has_its_trits_frozen() -> None:
    model = ternarize(small_network(), 0.5)
    control = Control(model, 10, frozen_fraction=0.3)
    for step in range(10):
        control.step()
        assert control.is_fixed == (step >= 7)
    frozen = {name: theta.detach().clone() for name, theta in latents(model).items()}
    assert all(set(theta.unique().tolist()) <= {-1.0, 0.0, 1.0} for theta in frozen.values())
    assert not any(theta.requires_grad for theta in latents(model).values())
    bake(model)
    assert all(torch.equal(model.get_submodule(name).weight, theta) for name, theta in frozen.items())


def test_scale_for_a_small_learning_rate_leaves_the_forward_pass_as_it_was() -> None:
    images = torch.randn(4, 64)
    plain, scaled = ternarize(small_network(), 0.7).double(), ternarize(small_network(), 0.7).double()
    Control(plain, 10).step()
    control = Control(scaled, 10, optimizer=torch.optim.Adam(scaled.parameters(), 1e-3))
    control.step()
    assert control.state()["gain"] == pytest.approx(20)  # a rate of 0.001, and 0.02 where Θ has its usual size
    torch.testing.assert_close(plain(images.double()), scaled(images.double()), rtol=1e-4, atol=1e-5)


def test_scale_looks_at_the_highest_rate_to_come_and_leaves_other_optimizers_alone() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([parameter], lr=1.0)
    torch.optim.lr_scheduler.OneCycleLR(adam, max_lr=0.01, total_steps=10)
    assert relative_scale(adam) == pytest.approx(0.5)
    assert relative_scale(torch.optim.SGD([parameter], lr=1e-3)) == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ternarize(small_network(), 1.0), "below 1, got 1.0"),
        (lambda: ternarize(small_network(), -0.1), "got -0.1"),
        (lambda: ternarize(ternarize(small_network())), "already"),
        (lambda: ternarize(nn.ReLU()), "no layer to make ternary"),
        (lambda: ternarize(small_network(), only=["nothing"]), "'nothing' matches no weight layer"),
        (lambda: regularizer(small_network()), "call ternarize first"),
        (lambda: bake(small_network()), "call ternarize first"),
        (lambda: export_baked(small_network(), "out", torch.zeros(1, 64)), "no ternary layer"),
        (lambda: export_baked(ternarize(small_network()), "out", torch.zeros(1, 64)), "call bake first"),
        (lambda: sparsity(small_network()), "no ternary layer"),
        (lambda: Control(small_network(), 10), "call ternarize first"),
        (lambda: Control(ternarize(small_network()), 0), "steps must be at least 1, got 0"),
        (lambda: Control(ternarize(small_network()), 5, frozen_fraction=1.0), "below 1, got 1.0"),
        (lambda: Control(ternarize(small_network()), 5, wdr_strength=1.0), "for the paper's form only"),
    ],
)
def test_misuse_is_one_clear_sentence(call: object, words: str) -> None:
    with pytest.raises((ModelError, ExportError), match=words):
        call()  # type: ignore[operator]
